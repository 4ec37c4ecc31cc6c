"""Steps, on a loop whose time the test has in its hands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Entry, Ready, Record, TopicPartition
from gateway.core.log.tail import Tail, TailUpdate
from gateway.hub.fanout import stepped_tail
from gateway.hub.fanout.stepped_tail import SteppedTail

A = TopicPartition("prices", 0)


class RecordingStepped(SteppedTail):
    """Writes down what each step was."""

    def __init__(self) -> None:
        log = PartitionLog(A, 1 << 20, 60.0)
        log.open(0, 0)
        self.clock_time = 100.0
        super().__init__(Tail("c", [log], {"prices": "id"}, is_conflated=True), 10.0)
        self.step_offsets: list[list[int]] = []
        turn = self.tail.apply_entries

        def record_step(entries: Iterable[Entry], now: int) -> TailUpdate:
            made = turn(entries, now)
            self.step_offsets.append([item.entry.offset for item in made.entries])
            return made

        self.tail.apply_entries = record_step  # type: ignore[method-assign]


@pytest.fixture
async def steps(monkeypatch: pytest.MonkeyPatch) -> RecordingStepped:
    made = RecordingStepped()
    monkeypatch.setattr(made._loop, "time", lambda: made.clock_time)
    yield made
    if made._timer is not None:
        made._timer.cancel()


def record(offset: int, size: int = 1) -> Record:
    return Record(A, offset, 0, 0, b"k", b"v" * size)


async def test_what_comes_after_a_quiet_time_goes_out_at_once_and_the_rest_together(
    steps: RecordingStepped,
):
    steps.publish([record(0)], 1)
    assert steps.step_offsets == [[0]]
    steps.publish([record(1)], 1)
    steps.clock_time += 9.0
    steps.publish([record(2)], 1)
    assert steps.step_offsets == [[0]]
    assert steps._timer is not None and steps._timer.when() == 110.0
    steps._publish_step()
    assert steps.step_offsets == [[0], [1, 2]]
    steps.publish([record(3)], 1)
    assert len(steps.step_offsets) == 2, "a step is no quiet time"
    steps.clock_time += 10.0
    steps.publish([record(4)], 1)
    assert steps.step_offsets == [[0], [1, 2], [3, 4]]


async def test_who_waits_for_a_partition_does_not_wait_for_the_interval(steps: RecordingStepped):
    steps.publish([record(0)], 1)
    waiting = asyncio.get_running_loop().create_future()
    steps.ready_waiters.add(waiting)
    steps.publish([record(1)], 1)
    assert not waiting.done()
    steps.publish([Ready(A, 2, 2, 0)], 1)
    assert waiting.done()
    assert steps.step_offsets == [[0], [1, 2]]


async def test_more_than_is_to_be_held_makes_a_step(
    steps: RecordingStepped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stepped_tail, "MAX_STEP_BYTES", 1000)
    steps.publish([record(0)], 1)
    steps.publish([record(1, 500)], 1)
    assert len(steps.step_offsets) == 1
    steps.publish([record(2, 500)], 1)
    assert steps.step_offsets == [[0], [1, 2]]
