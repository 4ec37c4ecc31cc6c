"""What a hub tells of partitions: their state, how far they are behind, what they lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.brokers import embedded_kafka
from support.until import until

from gateway.config import Settings
from gateway.core.log.partition_reader import NO_PROGRESS, At, OutOfRange, Reading, State
from gateway.core.log.record import Gap, Reason, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.hub import figures as hubs
from gateway.hub.fanout.hub import Hub
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.embedded import EmbeddedKafka
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

kafka = embedded_kafka({"orders": 2})
TP = TopicPartition("orders", 0)


@pytest.fixture
async def hub(kafka: EmbeddedKafka) -> AsyncIterator[Hub]:
    settings = Settings.model_validate(
        {"kafka": {"servers": kafka.bootstrap, "topics": [{"name": "orders"}],
                   "bootstrap": ["orders"]}}
    )  # fmt: skip
    cluster = Cluster(ClusterSettings.of(settings.kafka))
    made = Hub(cluster, settings)
    async with cluster:
        await made.start()
        try:
            await until(lambda: not made.topics.cold(), "the topic", 60)
            yield made
        finally:
            await made.close()


def told(hub: Hub) -> Figures:
    figures = Figures()
    hubs.read(hub, figures)
    return figures


async def test_a_hub_that_reads_tells_of_its_partitions_and_requests(hub: Hub):
    await until(lambda: len(told(hub)[catalog.LAG]) == 2, "the first answers", 60)
    figures = told(hub)
    assert figures[catalog.READY] == {("orders", "0"): True, ("orders", "1"): True}
    assert figures[catalog.LAG] == {("orders", "0"): 0, ("orders", "1"): 0}
    states = {("orders", "0", "streaming"): 1, ("orders", "1", "streaming"): 1}
    assert figures[catalog.STATE] == states
    (seconds,) = figures[catalog.READY_SECONDS].values()
    assert sum(seconds[:-1]) == 2
    assert {("Metadata",), ("Fetch",)} <= figures[catalog.REQUEST_SECONDS].keys()
    assert figures[catalog.CONNECTS][("tail",)] >= 1
    assert figures[catalog.CACHE] == {("orders",): 0}


async def test_gaps_of_the_shared_reads_are_counted_with_what_is_in_them(hub: Hub):
    feed = hub.feeds.by_partition[TP]
    for start, end, reason in (
        (0, 20, Reason.RETENTION),
        (20, 25, Reason.RETENTION),
        (25, 5, Reason.TRUNCATED),
    ):
        hub.feeds._deliver(feed.reading, [Gap(TP, start, end, 0, reason)])
    hub.feeds.flush()
    figures = told(hub)
    assert figures[catalog.GAPS] == {("orders", "retention"): 2, ("orders", "truncated"): 1}
    assert figures[catalog.GAP_RECORDS] == {
        ("orders", "retention"): 25, ("orders", "truncated"): 0,
    }  # fmt: skip


async def test_a_partition_that_is_not_heard_of_any_more_is_not_ready(hub: Hub):
    reading = hub.feeds.by_partition[TP].reading
    hub.feeds.fetcher.drop(TP)
    reading.heard_at = asyncio.get_running_loop().time() - NO_PROGRESS
    assert told(hub)[catalog.READY][("orders", "0")] is False


def reading() -> Reading:
    made = Reading(TP, At(5), OutOfRange.EARLIEST, Backoff(1.0, lambda: 0.5))
    made.leader, made.is_ready, made.last_stable_offset = 1, True, 12
    return made


def figures_of(one: Reading) -> Figures:
    figures = Figures()
    hubs._partition(one, 0.0, figures)
    return figures


def test_lag_is_what_is_between_the_place_and_what_may_be_read():
    one = reading()
    assert figures_of(one)[catalog.LAG] == {("orders", "0"): 7}
    one.last_stable_offset = 3  # told before the place moved
    assert figures_of(one)[catalog.LAG] == {("orders", "0"): 0}
    one.last_stable_offset = -1
    assert figures_of(one)[catalog.LAG] == {}


def test_the_state_of_a_partition_is_one_and_its_cause_is_told_while_it_has_one():
    one = reading()
    assert figures_of(one)[catalog.STATE] == {("orders", "0", "streaming"): 1}
    assert figures_of(one)[catalog.RECOVERING] == {}
    one.on_error(Cause.TIMEOUT, 0.0)
    assert figures_of(one)[catalog.STATE] == {("orders", "0", "recovering"): 1}
    assert figures_of(one)[catalog.RECOVERING] == {("orders", "0", "timeout"): 1}
    one.state = State.RESETTING
    assert figures_of(one)[catalog.STATE] == {("orders", "0", "resetting"): 1}
    one.on_leader(None, 3, 0.0)
    assert figures_of(one)[catalog.STATE] == {("orders", "0", "leaderless"): 1}
    assert figures_of(one)[catalog.RECOVERING] == {("orders", "0", "no-leader"): 1}


async def test_one_that_was_not_started_or_is_closed_tells_that_much():
    settings = Settings.model_validate({"kafka": {"servers": ["127.0.0.1:9"]}})
    hub = Hub(Cluster(ClusterSettings.of(settings.kafka)), settings)
    figures = told(hub)
    assert figures[catalog.REACHABLE] == {(): False}
    assert figures[catalog.STATE] == {}
