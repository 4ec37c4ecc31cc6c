"""Which partitions a client of some keys reads; that it reads no other is shown end to end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.config import Topic
from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import (
    ResumeToken,
    TokenWriter,
    TopicPositions,
    parse_token,
    seal_token,
)
from gateway.errors import BrokerUnavailable
from gateway.hub.reads.key_indexes import KeyPartitions
from gateway.hub.reads.view import View
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.produce.pending_records import compute_partition
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata

KEYS = (b"ada", b"bob")
ADA = Filters((Filter(key=b"ada"),))


class FakeMetadata:
    """What the brokers say of topics, when they are asked."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.pending_changes: list[TopicChange] = []
        self.error: Exception | None = None
        self.refresh_count = 0

    def add_listener(self, listener: Any) -> Any:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def refresh(self, reason: str) -> None:
        self.refresh_count += 1
        if self.error is not None:
            raise self.error
        for change in self.pending_changes:
            self.notify_listeners(change)

    def notify_listeners(self, change: TopicChange) -> None:
        for listener in self.listeners:
            listener(change)


class FakeCluster:
    def __init__(self) -> None:
        self.metadata = FakeMetadata()


def build_change(count: int, topic: str = "orders") -> TopicChange:
    one = PartitionMetadata(0, 0, (0,), (0,), 0)
    return TopicChange(TopicMetadata(topic, None, 0, dict.fromkeys(range(count), one)))


@pytest.fixture
async def brokers() -> AsyncIterator[FakeCluster]:
    yield FakeCluster()


def build_placing(brokers: FakeCluster, partitioner: str | None = "murmur2") -> KeyPartitions:
    def get_settings(name: str) -> Topic:
        return Topic.model_validate(
            {"name": name} | ({"partitioner": partitioner} if name == "orders" else {})
        )

    made = KeyPartitions(cast(Cluster, brokers), get_settings)
    brokers.metadata.notify_listeners(build_change(12))
    return made


def build_view(filters: Filters = ADA, *topics: str) -> View:
    return View(topics or ("orders",), filters, "value", "error")


def build_token(count: int) -> ResumeToken:
    places = TopicPositions("orders", "id", [5] * count, [0] * count)
    return parse_token(seal_token(TokenWriter("c", [places]).to_text(), b"view-").decode())


async def find_read_partitions(
    key_partitions: KeyPartitions, *args: Any, count: int = 12, topic: str = "orders"
) -> set[int]:
    reads = await key_partitions.build_partition_predicate(*args)
    return {p for p in range(count) if reads is None or reads(TopicPartition(topic, p))}


EVERY = set(range(12))


async def test_a_client_of_some_keys_reads_their_partitions(brokers: FakeCluster):
    made = build_placing(brokers)
    both = Filters((Filter(key=Condition(one_of=("ada", "bob"))),))
    assert await find_read_partitions(made, build_view(), None) == {compute_partition(b"ada", 12)}
    assert await find_read_partitions(made, build_view(), build_token(12)) == {
        compute_partition(b"ada", 12)
    }
    assert await find_read_partitions(made, build_view(both), None) == {
        compute_partition(key, 12) for key in KEYS
    }


@pytest.mark.parametrize(
    "filters",
    [
        Filters(),
        Filters((Filter(key=b"ada"), Filter(headers=(("h", b"v"),)))),
        Filters((Filter(key=Condition(prefix="a")),)),
    ],
)
async def test_one_whose_filters_name_no_keys_reads_all(brokers: FakeCluster, filters: Filters):
    assert await build_placing(brokers).build_partition_predicate(build_view(filters), None) is None
    assert brokers.metadata.refresh_count == 0


async def test_all_are_read_where_nobody_said_how_keys_are_placed(brokers: FakeCluster):
    assert await build_placing(brokers, None).build_partition_predicate(build_view(), None) is None
    made = build_placing(brokers)
    assert (
        await find_read_partitions(made, build_view(ADA, "orders", "other"), None, topic="other")
        == EVERY
    )


async def test_all_are_read_by_one_whose_token_knows_of_another_number(brokers: FakeCluster):
    made = build_placing(brokers)
    assert await find_read_partitions(made, build_view(), build_token(6)) == EVERY
    assert await find_read_partitions(made, build_view(), build_token(24)) == EVERY


async def test_all_are_read_once_the_number_was_seen_to_change(brokers: FakeCluster):
    made = build_placing(brokers)
    before = await made.build_partition_predicate(build_view(), build_token(12))
    brokers.metadata.notify_listeners(build_change(24))
    assert await find_read_partitions(made, build_view(), build_token(24), count=24) == set(
        range(24)
    )
    assert before is not None
    assert all(before(TopicPartition("orders", p)) for p in range(24))


async def test_a_change_that_the_brokers_know_of_is_asked_for_first(brokers: FakeCluster):
    made = build_placing(brokers)
    brokers.metadata.pending_changes.append(build_change(24))
    assert await find_read_partitions(made, build_view(), build_token(12)) == EVERY


async def test_a_topic_that_is_gone_for_a_while_has_not_changed(brokers: FakeCluster):
    made = build_placing(brokers)
    brokers.metadata.notify_listeners(build_change(0))
    brokers.metadata.notify_listeners(build_change(12))
    assert await find_read_partitions(made, build_view(), build_token(12)) == {
        compute_partition(b"ada", 12)
    }


async def test_all_are_read_while_no_broker_answers(brokers: FakeCluster):
    made = build_placing(brokers)
    brokers.metadata.error = BrokerUnavailable("no")
    assert await made.build_partition_predicate(build_view(), build_token(12)) is None


async def test_it_listens_no_longer_once_it_is_closed(brokers: FakeCluster):
    made = build_placing(brokers)
    made.close()
    assert brokers.metadata.listeners == []
