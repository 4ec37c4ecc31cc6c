from __future__ import annotations

import asyncio
from collections import Counter

from support.waiting import wait_until

from gateway.web.websocket.connection import SLOT_COUNT, PingScheduler


class FakePingTarget:
    ping_slot = 0

    def __init__(self) -> None:
        self.pings: list[tuple[float, bytes, bytes]] = []

    def on_ping_due(self, now: float, payload: bytes, frame: bytes) -> None:
        self.pings.append((now, payload, frame))


async def test_each_is_visited_once_a_round():
    pulse = PingScheduler(asyncio.get_running_loop(), 0.1)
    hearts = [FakePingTarget() for _ in range(3 * SLOT_COUNT)]
    for heart in hearts:
        pulse.add(heart)
    await wait_until(lambda: min(len(heart.pings) for heart in hearts) >= 3)
    counts = [len(heart.pings) for heart in hearts]
    assert max(counts) - min(counts) <= 1
    for heart in hearts:
        pulse.discard(heart)
    assert all(frame == b"\x89\x04" + payload for _, payload, frame in hearts[0].pings)
    assert len({payload for _, payload, _ in hearts[0].pings}) == len(hearts[0].pings)


async def test_those_that_come_at_once_are_spread_over_the_round():
    pulse = PingScheduler(asyncio.get_running_loop(), 60.0)
    hearts = [FakePingTarget() for _ in range(10 * SLOT_COUNT)]
    for heart in hearts:
        pulse.add(heart)
    assert set(Counter(heart.ping_slot for heart in hearts).values()) == {10}
    for heart in hearts:
        pulse.discard(heart)


async def test_no_timer_runs_for_nobody():
    pulse = PingScheduler(asyncio.get_running_loop(), 60.0)
    first, second = FakePingTarget(), FakePingTarget()
    assert not pulse.is_running
    for heart in (first, second):
        pulse.add(heart)
    assert pulse.is_running
    pulse.discard(first)
    pulse.discard(first)  # who is gone already changes nothing
    assert pulse.is_running
    pulse.discard(second)
    assert not pulse.is_running


async def test_one_may_go_while_another_is_visited():
    """A ping that is not answered ends a connection from within the round."""
    pulse = PingScheduler(asyncio.get_running_loop(), 0.05)
    hearts = [FakePingTarget() for _ in range(2 * SLOT_COUNT)]

    class DiscardingTarget(FakePingTarget):
        def on_ping_due(self, now: float, payload: bytes, frame: bytes) -> None:
            super().on_ping_due(now, payload, frame)
            for each in (*hearts, self):
                pulse.discard(each)

    last = DiscardingTarget()
    for heart in (*hearts, last):
        pulse.add(heart)
    await wait_until(lambda: last.pings)
    assert not pulse.is_running
