"""Ends of epochs, asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.hub.reads.leader_queries import LeaderLookups
from gateway.kafka.client.offsets import EpochEnd

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


class FakeCluster:
    """Answers, when let, that every epoch ended at ten times its number; writes down requests."""

    def __init__(self) -> None:
        self.requests: list[dict[TopicPartition, int]] = []
        self.leaders: dict[TopicPartition, tuple[int, int] | None] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: KafkaError | None = None
        self.error_codes: dict[TopicPartition, int] = {}

    async def list_offsets(self, specs, isolation_level) -> dict:
        raise NotImplementedError

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.leaders.get(tp, (1, 5))

    async def fetch_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict:
        self.requests.append(dict(epochs))
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return {
            tp: self.error_codes.get(tp, EpochEnd(epoch, 10 * epoch))
            for tp, epoch in epochs.items()
        }


async def test_who_asks_at_the_same_time_is_answered_by_one_request():
    leaders = FakeCluster()
    epochs = LeaderLookups(leaders)
    asking = (epochs.find_epoch_end(tp, 3) for tp in (ONE, TWO) for _ in range(500))
    ends = await asyncio.gather(*asking)
    assert set(ends) == {EpochEnd(3, 30)}
    assert leaders.requests == [{ONE: 3, TWO: 3}]


async def test_two_epochs_of_a_partition_take_two_requests():
    leaders = FakeCluster()
    epochs = LeaderLookups(leaders)
    ends = await asyncio.gather(
        epochs.find_epoch_end(ONE, 3), epochs.find_epoch_end(ONE, 4), epochs.find_epoch_end(TWO, 4)
    )
    assert ends == [EpochEnd(3, 30), EpochEnd(4, 40), EpochEnd(4, 40)]
    assert leaders.requests == [{ONE: 3, TWO: 4}, {ONE: 4}]


async def test_partitions_of_two_leaders_are_asked_apart():
    """A frozen one would keep the other's clients waiting."""
    leaders = FakeCluster()
    leaders.leaders = {ONE: (1, 5), TWO: (2, 5)}
    epochs = LeaderLookups(leaders)
    await asyncio.gather(epochs.find_epoch_end(ONE, 3), epochs.find_epoch_end(TWO, 3))
    assert leaders.requests == [{ONE: 3}, {TWO: 3}]


async def test_a_leader_gets_a_limited_number_of_requests_at_once():
    """The last of thousands would have exceeded their time at the broker, and closed the connection
    of all."""
    leaders = FakeCluster()
    leaders.leaders = {TWO: (2, 5)}
    leaders.may_answer.clear()
    epochs = LeaderLookups(leaders)
    waiting = [asyncio.create_task(epochs.find_epoch_end(ONE, epoch)) for epoch in range(100)]
    await wait_until(lambda: len(leaders.requests) == 32)
    other = asyncio.create_task(epochs.find_epoch_end(TWO, 3))
    await wait_until(lambda: len(leaders.requests) == 33)
    assert leaders.requests[-1] == {TWO: 3}
    for leaving in waiting[50:]:
        leaving.cancel()
    await asyncio.wait(waiting[50:])
    leaders.may_answer.set()
    assert await asyncio.gather(*waiting[:50]) == [EpochEnd(each, 10 * each) for each in range(50)]
    assert await other == EpochEnd(3, 30)
    assert len(leaders.requests) == 51, "nobody waited for the others any more"


async def test_who_comes_while_an_answer_is_under_way_asks_anew():
    """Its token may be younger than that answer, which would take its place for cut off."""
    leaders = FakeCluster()
    epochs = LeaderLookups(leaders)
    leaders.may_answer.clear()
    first = asyncio.create_task(epochs.find_epoch_end(ONE, 3))
    await wait_until(lambda: leaders.requests, "the request")
    second = asyncio.create_task(epochs.find_epoch_end(ONE, 3))
    await wait_until(lambda: len(leaders.requests) == 2, "another request")
    leaders.may_answer.set()
    assert await first == await second == EpochEnd(3, 30)


async def test_one_who_goes_away_takes_nobodys_answer_along():
    leaders = FakeCluster()
    epochs = LeaderLookups(leaders)
    leaders.may_answer.clear()
    leaving, staying = (asyncio.create_task(epochs.find_epoch_end(ONE, 3)) for _ in range(2))
    await wait_until(lambda: leaders.requests, "the request")
    leaving.cancel()
    leaders.may_answer.set()
    assert await staying == EpochEnd(3, 30)
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_closing_ends_those_who_wait():
    leaders = FakeCluster()
    epochs = LeaderLookups(leaders)
    leaders.may_answer.clear()
    waiting = asyncio.create_task(epochs.find_epoch_end(ONE, 3))
    await wait_until(lambda: leaders.requests, "the request")
    await epochs.close()
    assert await waiting is None


async def test_a_request_that_fails_leaves_the_client_without_an_answer():
    """It cancelled the task of the client instead, and that one asked again without a pause."""
    leaders = FakeCluster()
    leaders.error = BrokerUnavailable("away")
    epochs = LeaderLookups(leaders)
    assert await epochs.find_epoch_end(ONE, 3) is None
    leaders.error = None
    assert await epochs.find_epoch_end(ONE, 3) == EpochEnd(3, 30)


async def test_an_error_code_is_the_answer_to_its_partition_alone():
    leaders = FakeCluster()
    leaders.error_codes = {ONE: 74}
    epochs = LeaderLookups(leaders)
    answers = await asyncio.gather(*(epochs.find_epoch_end(tp, 3) for tp in (ONE, TWO)))
    assert answers == [74, EpochEnd(3, 30)]
