from __future__ import annotations

import asyncio

from support.virtual_time import run_in_virtual_time

from gateway.hub.reads.pacing import WallClockTimer


class WallClock:
    """A clock on the wall that somebody may step, beside the loop's own."""

    def __init__(self) -> None:
        self.offset_s = 1_000_000.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.offset_s


def measure_ring_time(after: float, *steps: tuple[float, float]) -> float:
    """Return when an alarm rings by the loop's clock, with steps of the wall clock at times."""

    async def main() -> float:
        loop, wall, rang = asyncio.get_running_loop(), WallClock(), asyncio.Event()
        WallClockTimer(wall() + after, rang.set, wall)
        for at, step in steps:
            await asyncio.sleep(at - loop.time())
            wall.offset_s += step
        await rang.wait()
        return loop.time()

    return run_in_virtual_time(main())


def test_it_rings_at_its_time():
    assert 35.0 <= measure_ring_time(35.0) < 35.1
    assert measure_ring_time(-5.0) < 0.1


def test_it_rings_within_ten_seconds_of_a_step_past_its_time():
    """A stream outlived its token by as much as the clock was stepped."""
    assert measure_ring_time(3600.0, (5.0, 3600.0)) <= 15.0


def test_a_clock_that_was_behind_for_a_while_does_not_put_it_off():
    """The timer was armed anew for the whole rest, as long as the clock had been behind."""
    assert 15.0 <= measure_ring_time(15.0, (5.0, -3600.0), (22.0, 3600.0)) <= 32.0


def test_one_that_was_cancelled_does_not_ring():
    async def main() -> bool:
        rang = asyncio.Event()
        alarm = WallClockTimer(WallClock()() + 20.0, rang.set, WallClock())
        await asyncio.sleep(12.0)
        alarm.cancel()
        await asyncio.sleep(60.0)
        return rang.is_set()

    assert not run_in_virtual_time(main())
