from __future__ import annotations

import asyncio
from collections import Counter

from support.until import until

from gateway.web.websocket.pings import SLOTS, Pulse


class Heart:
    slot = 0

    def __init__(self) -> None:
        self.beats: list[tuple[float, bytes, bytes]] = []

    def beat(self, now: float, payload: bytes, frame: bytes) -> None:
        self.beats.append((now, payload, frame))


async def test_each_is_visited_once_a_round():
    pulse = Pulse(asyncio.get_running_loop(), 0.1)
    hearts = [Heart() for _ in range(3 * SLOTS)]
    for heart in hearts:
        pulse.add(heart)
    await until(lambda: min(len(heart.beats) for heart in hearts) >= 3)
    counts = [len(heart.beats) for heart in hearts]
    assert max(counts) - min(counts) <= 1
    for heart in hearts:
        pulse.discard(heart)
    assert all(frame == b"\x89\x04" + payload for _, payload, frame in hearts[0].beats)
    assert len({payload for _, payload, _ in hearts[0].beats}) == len(hearts[0].beats)


async def test_those_that_come_at_once_are_spread_over_the_round():
    pulse = Pulse(asyncio.get_running_loop(), 60.0)
    hearts = [Heart() for _ in range(10 * SLOTS)]
    for heart in hearts:
        pulse.add(heart)
    assert set(Counter(heart.slot for heart in hearts).values()) == {10}
    for heart in hearts:
        pulse.discard(heart)


async def test_no_timer_runs_for_nobody():
    pulse = Pulse(asyncio.get_running_loop(), 60.0)
    first, second = Heart(), Heart()
    assert pulse._timer is None
    for heart in (first, second):
        pulse.add(heart)
    assert pulse._timer is not None
    pulse.discard(first)
    pulse.discard(first)  # who is gone already changes nothing
    assert pulse._timer is not None
    pulse.discard(second)
    assert pulse._timer is None


async def test_one_may_go_while_another_is_visited():
    """A ping that is not answered ends a connection from within the round."""
    pulse = Pulse(asyncio.get_running_loop(), 0.05)
    hearts = [Heart() for _ in range(2 * SLOTS)]

    class Last(Heart):
        def beat(self, now: float, payload: bytes, frame: bytes) -> None:
            super().beat(now, payload, frame)
            for each in (*hearts, self):
                pulse.discard(each)

    last = Last()
    for heart in (*hearts, last):
        pulse.add(heart)
    await until(lambda: last.beats)
    assert pulse._timer is None
