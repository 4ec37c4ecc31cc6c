"""Steps, on a loop whose time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from support.virtual_time import in_virtual_time

from gateway.core.channel.tail import Tail, TailUpdate
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Entry, Ready, Record, TopicPartition
from gateway.hub.reads.shared_tail import SteppedTail

A = TopicPartition("prices", 0)


class RecordingStepped(SteppedTail):
    """Writes down what each step was. One is taken every 10 s at most."""

    def __init__(self, **options: Any) -> None:
        log = PartitionLog(A, 1 << 20, 60.0)
        log.open(0, 0)
        super().__init__(Tail("c", [log], {"prices": "id"}, is_conflated=True), 10.0, **options)
        self.step_offsets: list[list[int]] = []
        turn = self.tail.apply_entries

        def record_step(entries: Iterable[Entry], now: int) -> TailUpdate:
            made = turn(entries, now)
            self.step_offsets.append([item.entry.offset for item in made.entries])
            return made

        self.tail.apply_entries = record_step  # type: ignore[method-assign]


def record(offset: int, size: int = 1) -> Record:
    return Record(A, offset, 0, 0, b"k", b"v" * size)


@in_virtual_time
async def test_what_comes_after_a_quiet_time_goes_out_at_once_and_the_rest_together():
    steps = RecordingStepped()
    steps.publish([record(0)], 1)
    assert steps.step_offsets == [[0]]
    steps.publish([record(1)], 1)
    await asyncio.sleep(9.0)
    steps.publish([record(2)], 1)
    await asyncio.sleep(0.9)
    assert steps.step_offsets == [[0]]
    await asyncio.sleep(0.2)
    assert steps.step_offsets == [[0], [1, 2]]
    steps.publish([record(3)], 1)
    assert len(steps.step_offsets) == 2, "a step is no quiet time"
    await asyncio.sleep(10.0)
    assert steps.step_offsets == [[0], [1, 2], [3]]
    await asyncio.sleep(10.0)
    steps.publish([record(4)], 1)
    assert steps.step_offsets == [[0], [1, 2], [3], [4]]


@in_virtual_time
async def test_who_waits_for_a_partition_does_not_wait_for_the_interval():
    steps = RecordingStepped()
    steps.publish([record(0)], 1)
    waiting = asyncio.get_running_loop().create_future()
    steps.ready_waiters.add(waiting)
    steps.publish([record(1)], 1)
    assert not waiting.done()
    steps.publish([Ready(A, 2, 2, 0)], 1)
    assert waiting.done()
    assert steps.step_offsets == [[0], [1, 2]]


@in_virtual_time
async def test_more_than_is_to_be_held_makes_a_step():
    steps = RecordingStepped(max_step_bytes=1000)
    steps.publish([record(0)], 1)
    steps.publish([record(1, 500)], 1)
    assert len(steps.step_offsets) == 1
    steps.publish([record(2, 500)], 1)
    assert steps.step_offsets == [[0], [1, 2]]
