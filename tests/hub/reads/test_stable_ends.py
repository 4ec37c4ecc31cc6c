"""Where partitions end, asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from support.until import until

from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.hub.reads.stable_ends import StableEnds
from gateway.kafka.client.offsets import Offset

ONE, TWO = TopicPartition("prices", 0), TopicPartition("prices", 1)


class Leaders:
    """Answers that every partition ends at 7, but for a node that is frozen; writes down what it
    was asked."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.leaders: dict[TopicPartition, tuple[int, int] | None] = {}
        self.refusing = 0
        self.frozen: set[TopicPartition] = set()

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.leaders.get(tp, (1, 5))

    async def list_offsets(self, specs: Mapping[TopicPartition, int]) -> dict:
        assert set(specs.values()) == {LATEST}
        self.asked.append(sorted(specs))
        if self.frozen & specs.keys():
            await asyncio.sleep(3600)
        if self.refusing:
            self.refusing -= 1
            if self.refusing % 2:
                raise BrokerUnavailable("away", retry_after=1.0)
            return dict.fromkeys(specs, 5)
        return dict.fromkeys(specs, Offset(7, -1, 0))


async def test_who_asks_in_one_turn_is_answered_by_one_request():
    leaders = Leaders()
    ends = StableEnds(leaders)
    assert set(await asyncio.gather(*(ends.of(tp) for tp in (ONE, TWO) * 100))) == {7}
    assert leaders.asked == [[ONE, TWO]]
    await ends.of(ONE)
    assert len(leaders.asked) == 2, "an answer is as old as its question"


async def test_a_frozen_leader_keeps_nobody_else_waiting():
    leaders = Leaders()
    leaders.leaders, leaders.frozen = {TWO: (2, 5)}, {TWO}
    ends = StableEnds(leaders)
    waiting = asyncio.create_task(ends.of(TWO))
    assert await ends.of(ONE) == 7
    await until(lambda: [TWO] in leaders.asked, "the other request")
    assert not waiting.done()
    await ends.close()
    waiting.cancel()


async def test_whoever_does_not_answer_is_asked_again():
    leaders = Leaders()
    leaders.refusing = 2
    assert await StableEnds(leaders).of(ONE) == 7
    assert len(leaders.asked) == 3
