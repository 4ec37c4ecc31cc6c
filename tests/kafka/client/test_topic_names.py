from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.reading import cluster
from support.until import until

from gateway.errors import BrokerUnavailable
from gateway.kafka.client import topic_names as module
from gateway.kafka.client.topic_names import TopicNames
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.protocol.requests import MetadataAnswer, TopicAnswer


class Brokers:
    """Answers once it is allowed to, with what `topics` holds then."""

    def __init__(self) -> None:
        self.topics = ["a"]
        self.asked = 0
        self.fails = False
        self.answers = asyncio.Event()

    async def ask(self, topics: Sequence[str] | None) -> tuple[int, MetadataAnswer]:
        assert topics is None
        self.asked += 1
        await self.answers.wait()
        if self.fails:
            raise BrokerUnavailable("none")
        found = {name: TopicAnswer(name, None, 0, {}) for name in self.topics}
        return 1, MetadataAnswer(0, None, (), found)


def names() -> tuple[TopicNames, Any]:
    brokers: Any = Brokers()
    return TopicNames(brokers), brokers


async def test_all_topics_of_a_cluster_are_named(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    embedded.create_topic("pay-eu", partitions=3)
    async with cluster(embedded.bootstrap) as made:
        assert await made.topics() >= {"orders", "pay-eu"}
        asked = made.requests["Metadata"]
        await made.topics()
        assert made.requests["Metadata"] <= asked + 1  # that one is the refresh of what is watched


async def test_who_asks_at_the_same_time_shares_one_answer():
    made, brokers = names()
    asking = [asyncio.create_task(made.all()) for _ in range(20)]
    await until(lambda: brokers.asked)
    brokers.answers.set()
    assert set(await asyncio.gather(*asking)) == {frozenset({"a"})}
    assert await made.all() == {"a"}
    assert brokers.asked == 1


async def test_one_who_leaves_does_not_take_the_answer_from_the_others():
    made, brokers = names()
    first, second = (asyncio.create_task(made.all()) for _ in range(2))
    await until(lambda: brokers.asked)
    first.cancel()
    await asyncio.wait([first])
    brokers.answers.set()
    assert await second == {"a"}


async def test_an_answer_is_asked_for_again_when_it_is_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AGE", 0.0)
    made, brokers = names()
    brokers.answers.set()
    await made.all()
    brokers.topics.append("b")
    assert await made.all() == {"a", "b"}


async def test_a_failure_is_told_and_not_kept():
    made, brokers = names()
    brokers.answers.set()
    brokers.fails = True
    with pytest.raises(BrokerUnavailable):
        await made.all()
    brokers.fails = False
    assert await made.all() == {"a"}


async def test_nothing_of_it_outlives_its_end():
    made, brokers = names()
    asking = asyncio.create_task(made.all())
    await until(lambda: brokers.asked)
    await made.close()
    with pytest.raises(BrokerUnavailable):
        await asking
