"""Starts by time, before a client begins."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.virtual_time import run_in_virtual_time

from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import Start, TimestampStart
from gateway.core.log.record import PartitionPosition, TopicPartition
from gateway.hub.reads.position_resolver import (
    MAX_LOOKUPS_AT_ONCE,
    OTHERS_TIMEOUT_S,
    LookupTurns,
    resolve_starts,
)

FAST, SILENT = TopicPartition("orders", 0), TopicPartition("orders", 1)


class SlowReader:
    """Resolves the start of one partition after some seconds, and of the other one never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def resolve_start(self, tp: TopicPartition, start: Start) -> PartitionPosition:
        await asyncio.sleep(self._seconds if tp == FAST else 3600.0)
        return PartitionPosition(5)


@pytest.mark.parametrize(("first_after", "returned_after"), [(0.1, 0.35), (0.9, 1.0), (2.0, 1.0)])
def test_others_are_waited_for_a_moment_after_the_first_but_not_beyond_the_deadline(
    first_after, returned_after
):
    """Where the first one came late, the deadline was exceeded by a quarter of a second."""

    async def resolve() -> None:
        loop = asyncio.get_running_loop()
        logs = [PartitionLog(tp, 1 << 20, 60.0) for tp in (FAST, SILENT)]
        reader: Any = SlowReader(first_after)
        tail = Tail("cluster", logs, {"orders": "id"})
        began = loop.time()
        positions = await resolve_starts(reader, tail, TimestampStart(0), began + 1.0)
        assert loop.time() - began == pytest.approx(returned_after)
        assert positions[FAST].is_pending == (first_after > returned_after)
        assert positions[SILENT].is_pending

    run_in_virtual_time(resolve())


def test_nothing_is_looked_up_for_a_client_that_left():
    """Each partition without a leader was asked for four times a second until it had one."""

    async def resolve() -> None:
        logs = [PartitionLog(tp, 1 << 20, 60.0) for tp in (FAST, SILENT)]
        reader: Any = SlowReader(3600.0)
        tail = Tail("cluster", logs, {"orders": "id"})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await resolve_starts(reader, tail, TimestampStart(0), math.inf)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(resolve())


def test_a_turn_ends_although_a_partition_has_no_leader():
    """64 streams of a topic without a leader held up the other streams of their client for 20 s."""

    async def take_turns() -> None:
        loop, turns, began = asyncio.get_running_loop(), LookupTurns(), list[float]()

        async def look_up() -> None:
            async with turns.take("ada"):
                began.append(loop.time())
                await asyncio.sleep(3600.0)

        started = loop.time()
        await asyncio.gather(*(look_up() for _ in range(2 * MAX_LOOKUPS_AT_ONCE + 1)))
        waited = [at - started for at in began]
        assert waited == pytest.approx(
            [0.0] * MAX_LOOKUPS_AT_ONCE
            + [OTHERS_TIMEOUT_S] * MAX_LOOKUPS_AT_ONCE
            + [2 * OTHERS_TIMEOUT_S]
        )

    run_in_virtual_time(take_turns())
