"""Which partitions a client of some keys reads; that it reads no other is shown end to end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.config import Topic
from gateway.core.channel.conditions import Condition
from gateway.core.channel.filters import Filter, Filters
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import Token, TokenWriter, TopicPlaces, decode, seal
from gateway.errors import BrokerUnavailable
from gateway.hub.fanout.view import View
from gateway.hub.reads.key_partitions import Placing
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer

KEYS = (b"ada", b"bob")
ADA = Filters((Filter(key=b"ada"),))


class Metadata:
    """What the brokers say of topics, when they are asked."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.coming: list[Change] = []
        self.error: Exception | None = None
        self.asked = 0

    def listen(self, listener: Any) -> Any:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def refresh(self, reason: str) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        for change in self.coming:
            self.tell(change)

    def tell(self, change: Change) -> None:
        for listener in self.listeners:
            listener(change)


class Brokers:
    def __init__(self) -> None:
        self.metadata = Metadata()


def has(count: int, topic: str = "orders") -> Change:
    one = PartitionAnswer(0, 0, (0,), (0,), 0)
    return Change(TopicAnswer(topic, None, 0, dict.fromkeys(range(count), one)))


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    yield Brokers()


def placing(brokers: Brokers, partitioner: str | None = "murmur2") -> Placing:
    def settings(name: str) -> Topic:
        return Topic.model_validate(
            {"name": name} | ({"partitioner": partitioner} if name == "orders" else {})
        )

    made = Placing(cast(Cluster, brokers), settings)
    brokers.metadata.tell(has(12))
    return made


def view(filters: Filters = ADA, *topics: str) -> View:
    return View(topics or ("orders",), filters, "value", "error")


def token(count: int) -> Token:
    places = TopicPlaces("orders", "id", [5] * count, [0] * count)
    return decode(seal(TokenWriter("c", [places]).text(), b"view-").decode())


async def read(made: Placing, *args: Any, count: int = 12, topic: str = "orders") -> set[int]:
    reads = await made.reads(*args)
    return {p for p in range(count) if reads is None or reads(TopicPartition(topic, p))}


EVERY = set(range(12))


async def test_a_client_of_some_keys_reads_their_partitions(brokers: Brokers):
    made = placing(brokers)
    both = Filters((Filter(key=Condition(one_of=("ada", "bob"))),))
    assert await read(made, view(), None) == {partition_of(b"ada", 12)}
    assert await read(made, view(), token(12)) == {partition_of(b"ada", 12)}
    assert await read(made, view(both), None) == {partition_of(key, 12) for key in KEYS}


@pytest.mark.parametrize(
    "filters",
    [
        Filters(),
        Filters((Filter(key=b"ada"), Filter(headers=(("h", b"v"),)))),
        Filters((Filter(key=Condition(prefix="a")),)),
    ],
)
async def test_one_whose_filters_name_no_keys_reads_all(brokers: Brokers, filters: Filters):
    assert await placing(brokers).reads(view(filters), None) is None
    assert brokers.metadata.asked == 0


async def test_all_are_read_where_nobody_said_how_keys_are_placed(brokers: Brokers):
    assert await placing(brokers, None).reads(view(), None) is None
    made = placing(brokers)
    assert await read(made, view(ADA, "orders", "other"), None, topic="other") == EVERY


async def test_all_are_read_by_one_whose_token_knows_of_another_number(brokers: Brokers):
    made = placing(brokers)
    assert await read(made, view(), token(6)) == EVERY
    assert await read(made, view(), token(24)) == EVERY


async def test_all_are_read_once_the_number_was_seen_to_change(brokers: Brokers):
    made = placing(brokers)
    before = await made.reads(view(), token(12))
    brokers.metadata.tell(has(24))
    assert await read(made, view(), token(24), count=24) == set(range(24))
    assert before is not None
    assert all(before(TopicPartition("orders", p)) for p in range(24))


async def test_a_change_that_the_brokers_know_of_is_asked_for_first(brokers: Brokers):
    made = placing(brokers)
    brokers.metadata.coming.append(has(24))
    assert await read(made, view(), token(12)) == EVERY


async def test_a_topic_that_is_gone_for_a_while_has_not_changed(brokers: Brokers):
    made = placing(brokers)
    brokers.metadata.tell(has(0))
    brokers.metadata.tell(has(12))
    assert await read(made, view(), token(12)) == {partition_of(b"ada", 12)}


async def test_all_are_read_while_no_broker_answers(brokers: Brokers):
    made = placing(brokers)
    brokers.metadata.error = BrokerUnavailable("no")
    assert await made.reads(view(), token(12)) is None


async def test_it_listens_no_longer_once_it_is_closed(brokers: Brokers):
    made = placing(brokers)
    made.close()
    assert brokers.metadata.listeners == []
