from __future__ import annotations

import asyncio

from support.virtual_time import run_virtually

from gateway.hub.fanout.alarm import WallAlarm


class Wall:
    """A clock on the wall that somebody may step, beside the loop's own."""

    def __init__(self) -> None:
        self.step = 1_000_000.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.step


def ringing(after: float, *steps: tuple[float, float]) -> float:
    """Return when an alarm rings by the loop's clock, with steps of the wall clock at times."""

    async def main() -> float:
        loop, wall, rang = asyncio.get_running_loop(), Wall(), asyncio.Event()
        WallAlarm(wall() + after, rang.set, wall)
        for at, step in steps:
            await asyncio.sleep(at - loop.time())
            wall.step += step
        await rang.wait()
        return loop.time()

    return run_virtually(main())


def test_it_rings_at_its_time():
    assert 35.0 <= ringing(35.0) < 35.1
    assert ringing(-5.0) < 0.1


def test_it_rings_within_ten_seconds_of_a_step_past_its_time():
    """A stream outlived its token by as much as the clock was stepped."""
    assert ringing(3600.0, (5.0, 3600.0)) <= 15.0


def test_a_clock_that_was_behind_for_a_while_does_not_put_it_off():
    """The timer was armed anew for the whole rest, as long as the clock had been behind."""
    assert 15.0 <= ringing(15.0, (5.0, -3600.0), (22.0, 3600.0)) <= 32.0


def test_one_that_was_cancelled_does_not_ring():
    async def main() -> bool:
        rang = asyncio.Event()
        alarm = WallAlarm(Wall()() + 20.0, rang.set, Wall())
        await asyncio.sleep(12.0)
        alarm.cancel()
        await asyncio.sleep(60.0)
        return rang.is_set()

    assert not run_virtually(main())
