"""What a fetcher of a group makes of answers that no broker of the tests gives on purpose."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.simulated_kafka import SimulatedCluster, SimulatedKafka
from support.virtual_time import run_in_virtual_time

from gateway.core.group.partition_state import EARLIEST, PartitionState
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group import prefetch_fetcher
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.group.consumer_options import ConsumerOptions
from gateway.kafka.group.prefetch_fetcher import MAX_FORMER_LEADER_ATTEMPTS, PrefetchFetcher

TP = TopicPartition("orders", 0)


class LeaderStandIn:
    """A cluster whose leader has an epoch and a log as a test says."""

    def __init__(self, leader_epoch: int, log_end: int) -> None:
        self.leader_epoch, self.log_end = leader_epoch, log_end
        self.refreshes = 0
        self.metadata = SimpleNamespace(request_refresh=self._count_refresh)

    def get_topic(self, name: str) -> None: ...

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int]:
        return 1, self.leader_epoch

    def _count_refresh(self, reason: str) -> None:
        self.refreshes += 1


def build_fetcher(
    leader: Any, monkeypatch: pytest.MonkeyPatch, reset: int | None = EARLIEST
) -> tuple[PrefetchFetcher, PartitionState]:
    async def fetch_log_bounds(cluster: Any, tps: Any) -> dict[TopicPartition, range]:
        return {tp: range(leader.log_end) for tp in tps}

    monkeypatch.setattr(prefetch_fetcher, "fetch_log_bounds", fetch_log_bounds)
    fetcher = PrefetchFetcher(leader, ConsumerOptions(), reset, lambda *gap: None)
    state = fetcher.add_partition(TP)
    state.seek(5, epoch=3)
    return fetcher, state


async def test_a_former_leader_takes_a_group_back_to_nowhere(monkeypatch: pytest.MonkeyPatch):
    """It has fewer records and a lower epoch, like the log of a topic that was created again."""
    leader = LeaderStandIn(leader_epoch=2, log_end=2)
    fetcher, state = build_fetcher(leader, monkeypatch)
    for _ in range(MAX_FORMER_LEADER_ATTEMPTS):
        await fetcher.resolve_out_of_range(state, state.lineage)
    assert leader.refreshes == MAX_FORMER_LEADER_ATTEMPTS
    leader.leader_epoch, leader.log_end = 3, 9
    await fetcher.resolve_out_of_range(state, state.lineage)
    assert (state.position, state.offset_spec) == (5, None)


@pytest.mark.parametrize("log_end", [2, 9])
async def test_an_epoch_that_stays_higher_than_the_leaders_is_of_another_log(monkeypatch, log_end):
    """Brokers say OFFSET_OUT_OF_RANGE of it wherever the offset lies; a group whose offset lay in
    the log asked for it again for ever."""
    leader = LeaderStandIn(leader_epoch=2, log_end=log_end)
    fetcher, state = build_fetcher(leader, monkeypatch)
    for _ in range(MAX_FORMER_LEADER_ATTEMPTS + 1):
        await fetcher.resolve_out_of_range(state, state.lineage)
    assert (state.offset_spec, state.missing_offset) == (EARLIEST, 5)


async def test_an_offset_of_another_log_stops_a_consumer_without_a_reset(monkeypatch):
    fetcher, state = build_fetcher(LeaderStandIn(leader_epoch=2, log_end=2), monkeypatch, None)
    for _ in range(MAX_FORMER_LEADER_ATTEMPTS + 1):
        await fetcher.resolve_out_of_range(state, state.lineage)
    assert state.is_stopped
    assert TP in fetcher.failures


def test_a_fetch_that_no_poll_waits_for_has_no_connection():
    """Each seek during a long poll left one behind, for as long as the poll was to wait: a client
    with two connections took all descriptors of the process."""

    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic(TP.topic, 1)
        cluster = SimulatedCluster(kafka)
        consumer = GroupConsumer(cast(Cluster, cluster), "")
        consumer.assign([TP])
        consumer.seek(TP, 0)
        poll = asyncio.create_task(consumer.poll(300.0))
        for _ in range(3):
            await asyncio.sleep(1.0)  # of virtual time, in which requests take at most 0.02 s
            assert cluster.lent_spares == 1
            consumer.seek(TP, 0)
        poll.cancel()
        await asyncio.sleep(1.0)
        assert cluster.lent_spares == 0
        await consumer.close()

    run_in_virtual_time(play())
