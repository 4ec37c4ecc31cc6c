"""Lines of slices: who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from gateway.hub.reads.slices import Slice, Slices


class Work:
    """Notes what was worked."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self, slices: Slices, line: str, name: str) -> asyncio.Future[str]:
        return asyncio.ensure_future(slices.work(line, Slice(partial(self.note, name))))

    def note(self, name: str, is_over: Callable[[], bool]) -> str:
        assert not is_over()
        self.done.append(name)
        return name


async def test_each_line_has_one_slice_in_turn_and_other_tasks_run_in_between():
    work, slices = Work(), Slices()
    names = ["a1", "a2", "a3", "b1", "b2"]
    waiting = [
        asyncio.ensure_future(slices.work(n[0], Slice(partial(work.note, n)))) for n in names
    ]
    counts = list[int]()
    while len(work.done) < len(names):
        await asyncio.sleep(0)
        counts.append(len(work.done))
    assert work.done == ["a1", "b1", "a2", "b2", "a3"]
    assert set(range(1, 6)) <= set(counts)
    assert await asyncio.gather(*waiting) == names


async def test_what_others_wait_for_has_a_line_of_its_own_for_each_client():
    """A view of 48 partitions had as many lines: others had every 49th slice. Then what was asked
    for last came first: a client's views kept others waiting for the first of them."""
    work, slices = Work(), Slices()
    waiting = [work.start(slices, "a", f"a{n}") for n in range(3)]
    locked = (Slice(partial(work.note, f"locked{n}")) for n in range(2))
    waiting += [asyncio.ensure_future(slices.work("a", each, is_locked=True)) for each in locked]
    waiting += [work.start(slices, "b", f"b{n}") for n in range(3)]
    await asyncio.gather(*waiting)
    assert work.done == ["a0", "locked0", "b0", "a1", "locked1", "b1", "a2", "b2"]


async def test_what_two_lines_need_is_worked_once_by_the_one_whose_turn_comes_first():
    """A client waited for all that another one had asked for, which had to encode its block."""
    work, slices = Work(), Slices()
    shared = Slice(partial(work.note, "shared"))
    first = [
        asyncio.ensure_future(slices.work("a", Slice(partial(work.note, f"a{n}"))))
        for n in range(9)
    ]
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(slices.work(line, shared)) for line in ("a", "b")]
    assert await asyncio.gather(*waiting) == ["shared", "shared"]
    await asyncio.gather(*first)
    assert work.done.index("shared") < 3
    assert work.done.count("shared") == 1


async def test_what_nobody_waits_for_any_more_is_left_out():
    work, slices = Work(), Slices()
    shared = Slice(partial(work.note, "shared"))
    waiting = [asyncio.ensure_future(slices.work("a", shared)) for _ in range(2)]
    gone = work.start(slices, "a", "gone")
    await asyncio.sleep(0)
    waiting[0].cancel()
    gone.cancel()
    assert await waiting[1] == "shared"
    assert await work.start(slices, "b", "b") == "b"
    assert work.done == ["shared", "b"]


async def test_an_error_is_raised_to_all_who_wait_and_the_lines_go_on():
    def fail(is_over: Callable[[], bool]) -> None:
        raise ValueError("no")

    slices, failing = Slices(), Slice(fail)
    waiting = [slices.work(line, failing) for line in ("a", "b")]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["no", "no"]
    with pytest.raises(ValueError, match="no"):
        await slices.work("a", Slice(fail))
    assert await slices.work("a", Slice(lambda is_over: 7)) == 7
