"""Where partitions end, asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.waiting import wait_until

from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, TransactionOpen
from gateway.hub.reads.leader_queries import LeaderLookups
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, OffsetAndTimestamp

ONE, TWO = TopicPartition("prices", 0), TopicPartition("prices", 1)


class FakeCluster:
    """Answers that every partition ends at 7, but for a node that is frozen; writes down what it
    was asked. While `transaction_start` is set, the last stable offset is there."""

    def __init__(self) -> None:
        self.requests: list[list[TopicPartition]] = []
        self.leaders: dict[TopicPartition, tuple[int, int] | None] = {}
        self.refusals_left = 0
        self.transaction_start: int | None = None
        self.frozen_partitions: set[TopicPartition] = set()

    fetch_epoch_ends = None

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.leaders.get(tp, (1, 5))

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation_level: int = READ_COMMITTED
    ) -> dict:
        assert set(specs.values()) == {LATEST}
        self.requests.append(sorted(specs))
        if self.frozen_partitions & specs.keys():
            await asyncio.sleep(3600)
        if self.refusals_left:
            self.refusals_left -= 1
            if self.refusals_left % 2:
                raise BrokerUnavailable("away", retry_after=1.0)
            return dict.fromkeys(specs, 5)
        end = 7
        if isolation_level != READ_UNCOMMITTED and self.transaction_start is not None:
            end = self.transaction_start
        return dict.fromkeys(specs, OffsetAndTimestamp(end, -1, 0))


async def test_who_asks_in_one_turn_is_answered_by_one_request():
    leaders = FakeCluster()
    ends = LeaderLookups(leaders)
    assert set(await asyncio.gather(*(ends.find_end(tp) for tp in (ONE, TWO) * 100))) == {7}
    assert leaders.requests == [[ONE, TWO]]
    await ends.find_end(ONE)
    assert len(leaders.requests) == 2, "an answer is as old as its question"


async def test_a_frozen_leader_keeps_nobody_else_waiting():
    leaders = FakeCluster()
    leaders.leaders, leaders.frozen_partitions = {TWO: (2, 5)}, {TWO}
    ends = LeaderLookups(leaders)
    waiting = asyncio.create_task(ends.find_end(TWO))
    assert await ends.find_end(ONE) == 7
    await wait_until(lambda: [TWO] in leaders.requests, "the other request")
    assert not waiting.done()
    await ends.close()
    waiting.cancel()


async def test_whoever_does_not_answer_is_asked_again():
    leaders = FakeCluster()
    leaders.refusals_left = 2
    assert await LeaderLookups(leaders).find_end(ONE) == 7
    assert len(leaders.requests) == 3


async def test_the_settled_end_waits_for_open_transactions():
    """Conditions of writes compared with the record before the transaction, as if later records
    that were acknowledged did not exist."""
    leaders = FakeCluster()
    ends = LeaderLookups(leaders)
    assert await ends.find_settled_end(ONE) == 7
    leaders.transaction_start = 3
    waiting = asyncio.create_task(ends.find_settled_end(ONE))
    assert await ends.find_end(ONE) == 3
    await wait_until(lambda: len(leaders.requests) > 5)
    assert not waiting.done()
    leaders.transaction_start = None
    assert await waiting == 7


async def test_the_settled_end_is_not_waited_for_longer_than_allowed():
    leaders = FakeCluster()
    leaders.transaction_start = 3
    with pytest.raises(TransactionOpen, match="a transaction is open"):
        await LeaderLookups(leaders, transaction_timeout_s=0.0).find_settled_end(ONE)
