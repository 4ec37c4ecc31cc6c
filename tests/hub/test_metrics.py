"""What a hub tells of partitions: their state, how far they are behind, what they lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.brokers import embedded_kafka
from support.waiting import wait_until

from gateway.config import Settings
from gateway.core.log.partition_reader import (
    STALL_TIMEOUT_S,
    FetchResult,
    PartitionReader,
    ReaderState,
)
from gateway.core.log.record import Gap, GapReason, Record, TopicPartition
from gateway.core.log.recovery import Cause
from gateway.hub import metrics as hubs
from gateway.hub.fanout.hub import Hub
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.embedded import EmbeddedKafka
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

kafka = embedded_kafka({"orders": 2})
TP = TopicPartition("orders", 0)


@pytest.fixture
async def hub(kafka: EmbeddedKafka) -> AsyncIterator[Hub]:
    settings = Settings.model_validate(
        {"kafka": {"servers": kafka.bootstrap, "topics": [{"name": "orders"}],
                   "bootstrap": ["orders"]}}
    )  # fmt: skip
    cluster = Cluster(ClusterSettings.from_config(settings.kafka))
    made = Hub(cluster, settings)
    async with cluster:
        await made.start()
        try:
            await wait_until(lambda: not made.topics.list_unread_bootstrap(), "the topic", 60)
            yield made
        finally:
            await made.close()


def collect_figures(hub: Hub) -> MetricSamples:
    figures = MetricSamples()
    hubs.collect_hub_metrics(hub, figures)
    return figures


async def test_a_hub_that_reads_tells_of_its_partitions_and_requests(hub: Hub):
    await wait_until(
        lambda: len(collect_figures(hub)[catalog.PARTITION_LAG_RECORDS]) == 2,
        "the first answers",
        60,
    )
    figures = collect_figures(hub)
    assert figures[catalog.PARTITION_READY] == {("orders", "0"): True, ("orders", "1"): True}
    assert figures[catalog.PARTITION_LAG_RECORDS] == {("orders", "0"): 0, ("orders", "1"): 0}
    states = {("orders", "0", "streaming"): 1, ("orders", "1", "streaming"): 1}
    assert figures[catalog.PARTITION_STATE] == states
    (seconds,) = figures[catalog.PARTITION_READY_SECONDS].values()
    assert sum(seconds[:-1]) == 2
    assert {("Metadata",), ("Fetch",)} <= figures[catalog.KAFKA_REQUEST_SECONDS].keys()
    assert figures[catalog.BROKER_CONNECTS][("tail",)] >= 1
    assert figures[catalog.CACHE_BYTES] == {("orders",): 0}


async def test_gaps_of_the_shared_reads_are_counted_with_what_is_in_them(hub: Hub):
    feed = hub.shared_reads.by_partition[TP]
    for start, end, reason in (
        (0, 20, GapReason.RETENTION),
        (20, 25, GapReason.RETENTION),
        (25, 5, GapReason.TRUNCATED),
    ):
        hub.shared_reads.on_entries(feed.reader, [Gap(TP, start, end, 0, reason)])
    hub.shared_reads.flush()
    figures = collect_figures(hub)
    assert figures[catalog.GAPS] == {("orders", "retention"): 2, ("orders", "truncated"): 1}
    assert figures[catalog.GAP_RECORDS] == {
        ("orders", "retention"): 25, ("orders", "truncated"): 0,
    }  # fmt: skip


async def test_a_partition_that_is_not_heard_of_any_more_is_not_ready(hub: Hub):
    reading = hub.shared_reads.by_partition[TP].reader
    hub.shared_reads.fetcher.remove_partition(TP)
    reading.last_response_at = asyncio.get_running_loop().time() - STALL_TIMEOUT_S
    assert collect_figures(hub)[catalog.PARTITION_READY][("orders", "0")] is False


async def take_reader(hub: Hub) -> PartitionReader:
    """The reader of the partition at offset 0 of 7, which nobody but the test moves."""
    reader = hub.shared_reads.by_partition[TP].reader
    await wait_until(lambda: reader.is_ready and reader.state is ReaderState.STREAMING)
    hub.shared_reads.fetcher.remove_partition(TP)
    reader.last_stable_offset = 7
    return reader


def collect_partition_figures(hub: Hub, metric: catalog.Metric) -> dict[tuple[str, ...], float]:
    samples = collect_figures(hub)[metric]
    return {labels: value for labels, value in samples.items() if labels[:2] == ("orders", "0")}


async def test_lag_is_what_is_between_the_place_and_what_may_be_read(hub: Hub):
    reader, lag = await take_reader(hub), catalog.PARTITION_LAG_RECORDS
    assert collect_partition_figures(hub, lag) == {("orders", "0"): 7}
    reader.last_stable_offset = -1
    assert collect_partition_figures(hub, lag) == {}
    record = Record(TP, 9, 0, 0, None, b"")
    reader.on_fetch(FetchResult([record], 10, 0, 3, 3, 0), 0.0)  # told before the place moved
    assert collect_partition_figures(hub, lag) == {("orders", "0"): 0}


async def test_the_state_of_a_partition_is_one_and_its_cause_is_told_while_it_has_one(hub: Hub):
    reader = await take_reader(hub)
    state, recovering = catalog.PARTITION_STATE, catalog.PARTITION_RECOVERING
    assert collect_partition_figures(hub, state) == {("orders", "0", "streaming"): 1}
    assert collect_partition_figures(hub, recovering) == {}
    reader.on_error(Cause.TIMEOUT, 0.0)
    assert collect_partition_figures(hub, state) == {("orders", "0", "recovering"): 1}
    assert collect_partition_figures(hub, recovering) == {("orders", "0", "timeout"): 1}
    reader.state = ReaderState.RESETTING
    assert collect_partition_figures(hub, state) == {("orders", "0", "resetting"): 1}
    reader.on_leader_change(None, 3, 0.0)
    assert collect_partition_figures(hub, state) == {("orders", "0", "leaderless"): 1}
    assert collect_partition_figures(hub, recovering) == {("orders", "0", "no-leader"): 1}


async def test_one_that_was_not_started_or_is_closed_tells_that_much():
    settings = Settings.model_validate({"kafka": {"servers": ["127.0.0.1:9"]}})
    hub = Hub(Cluster(ClusterSettings.from_config(settings.kafka)), settings)
    figures = collect_figures(hub)
    assert figures[catalog.KAFKA_REACHABLE] == {(): False}
    assert figures[catalog.PARTITION_STATE] == {}
