"""Steps, on a loop whose time the test has in its hands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from gateway.core.log.partition_log import Log
from gateway.core.log.record import Entry, Ready, Record, TopicPartition
from gateway.core.log.tail import Tail, Turn
from gateway.hub.fanout import stepped
from gateway.hub.fanout.stepped import Stepped

A = TopicPartition("prices", 0)


class Steps(Stepped):
    """Writes down what each step was."""

    def __init__(self) -> None:
        log = Log(A, 1 << 20, 60.0)
        log.open(0, 0)
        self.now = 100.0
        super().__init__(Tail("c", [log], {"prices": "id"}, conflates=True), 10.0)
        self.taken: list[list[int]] = []
        turn = self.tail.turn

        def taking(entries: Iterable[Entry], now: int) -> Turn:
            made = turn(entries, now)
            self.taken.append([item.entry.offset for item in made.items])
            return made

        self.tail.turn = taking  # type: ignore[method-assign]


@pytest.fixture
async def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    monkeypatch.setattr(made._loop, "time", lambda: made.now)
    yield made
    if made._timer is not None:
        made._timer.cancel()


def record(offset: int, size: int = 1) -> Record:
    return Record(A, offset, 0, 0, b"k", b"v" * size)


async def test_what_comes_after_a_quiet_time_goes_out_at_once_and_the_rest_together(steps: Steps):
    steps.publish([record(0)], 1)
    assert steps.taken == [[0]]
    steps.publish([record(1)], 1)
    steps.now += 9.0
    steps.publish([record(2)], 1)
    assert steps.taken == [[0]]
    assert steps._timer is not None and steps._timer.when() == 110.0
    steps._step()
    assert steps.taken == [[0], [1, 2]]
    steps.publish([record(3)], 1)
    assert len(steps.taken) == 2, "a step is no quiet time"
    steps.now += 10.0
    steps.publish([record(4)], 1)
    assert steps.taken == [[0], [1, 2], [3, 4]]


async def test_who_waits_for_a_partition_does_not_wait_for_the_interval(steps: Steps):
    steps.publish([record(0)], 1)
    waiting = asyncio.get_running_loop().create_future()
    steps.changed.add(waiting)
    steps.publish([record(1)], 1)
    assert not waiting.done()
    steps.publish([Ready(A, 2, 2, 0)], 1)
    assert waiting.done()
    assert steps.taken == [[0], [1, 2]]


async def test_more_than_is_to_be_held_makes_a_step(steps: Steps, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stepped, "MOST", 1000)
    steps.publish([record(0)], 1)
    steps.publish([record(1, 500)], 1)
    assert len(steps.taken) == 1
    steps.publish([record(2, 500)], 1)
    assert steps.taken == [[0], [1, 2]]
