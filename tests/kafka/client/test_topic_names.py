from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.errors import BrokerUnavailable
from gateway.kafka.client.brokers import TopicNames
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.protocol.requests import MetadataResponse, TopicMetadata


class FakeBrokers:
    """Answers once it is allowed to, with what `topics` holds then."""

    def __init__(self) -> None:
        self.topics = ["a"]
        self.request_count = 0
        self.is_failing = False
        self.may_answer = asyncio.Event()

    async def fetch_metadata(self, topics: Sequence[str] | None) -> tuple[int, MetadataResponse]:
        assert topics is None
        self.request_count += 1
        await self.may_answer.wait()
        if self.is_failing:
            raise BrokerUnavailable("none")
        found = {name: TopicMetadata(name, None, 0, {}) for name in self.topics}
        return 1, MetadataResponse(0, None, (), found)


class FakePattern:
    """Matches names that begin with its letter, and writes down which it was asked for."""

    def __init__(self, letter: str, log: list[tuple[str, str]]) -> None:
        self._letter, self._log = letter, log

    def fullmatch(self, name: str) -> bool:
        self._log.append((self._letter, name))
        return name.startswith(self._letter)


def build_topic_names(**options: Any) -> tuple[TopicNames, Any]:
    brokers: Any = FakeBrokers()
    return TopicNames(brokers, **options), brokers


async def test_all_topics_of_a_cluster_are_named(embedded: EmbeddedKafka):
    embedded.create_topic("orders")
    embedded.create_topic("pay-eu", partitions=3)
    async with open_cluster(embedded.bootstrap) as made:
        assert await made.list_topics() >= {"orders", "pay-eu"}
        asked = made.request_counts["Metadata"]
        await made.list_topics()
        assert (
            made.request_counts["Metadata"] <= asked + 1
        )  # that one is the refresh of what is watched


async def test_who_asks_at_the_same_time_shares_one_answer():
    made, brokers = build_topic_names()
    asking = [asyncio.create_task(made.fetch_all()) for _ in range(20)]
    await wait_until(lambda: brokers.request_count)
    brokers.may_answer.set()
    assert set(await asyncio.gather(*asking)) == {frozenset({"a"})}
    assert await made.fetch_all() == {"a"}
    assert brokers.request_count == 1


async def test_one_who_leaves_does_not_take_the_answer_from_the_others():
    made, brokers = build_topic_names()
    first, second = (asyncio.create_task(made.fetch_all()) for _ in range(2))
    await wait_until(lambda: brokers.request_count)
    first.cancel()
    await asyncio.wait([first])
    brokers.may_answer.set()
    assert await second == {"a"}


async def test_an_answer_is_asked_for_again_when_it_is_old():
    made, brokers = build_topic_names(max_age_s=0.0)
    brokers.may_answer.set()
    await made.fetch_all()
    brokers.topics.append("b")
    assert await made.fetch_all() == {"a", "b"}


async def test_a_failure_is_told_and_not_kept():
    made, brokers = build_topic_names()
    brokers.may_answer.set()
    brokers.is_failing = True
    with pytest.raises(BrokerUnavailable):
        await made.fetch_all()
    brokers.is_failing = False
    assert await made.fetch_all() == {"a"}


async def test_nothing_of_it_outlives_its_end():
    made, brokers = build_topic_names()
    asking = asyncio.create_task(made.fetch_all())
    await wait_until(lambda: brokers.request_count)
    await made.close()
    with pytest.raises(BrokerUnavailable):
        await asking


async def test_a_pattern_is_matched_with_new_names_only():
    """Each consumer matched all names every 5 s, which took all of the event loop's time."""
    made, brokers = build_topic_names(max_age_s=0.0)
    brokers.may_answer.set()
    log: list[tuple[str, str]] = []
    pattern: Any = FakePattern("a", log)
    matches = await made.match(pattern)
    assert matches == {"a"}
    brokers.topics = ["a", "b"]
    assert await made.match(pattern) is matches
    brokers.topics = ["ab", "b"]
    assert await made.match(pattern) == {"ab"}
    assert log == [("a", "a"), ("a", "b"), ("a", "ab")]


async def test_other_tasks_run_while_patterns_are_matched():
    """Thousands of names were matched in one piece, and then fewer than 100, which took seconds of
    a client's pattern."""
    made, brokers = build_topic_names(match_turn_s=0.0)
    brokers.may_answer.set()
    brokers.topics = [f"a{n}" for n in range(50)]
    await made.fetch_all()
    log: list[tuple[str, str]] = []
    patterns: list[Any] = [FakePattern(letter, log) for letter in "ab"]
    matching = asyncio.gather(*map(made.match, patterns))
    most = done = 0
    while not matching.done():
        await asyncio.sleep(0)
        most, done = max(most, len(log) - done), len(log)
    assert [len(matches) for matches in await matching] == [50, 0]
    assert most <= 2
