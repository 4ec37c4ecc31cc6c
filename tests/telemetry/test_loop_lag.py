from __future__ import annotations

import asyncio
from time import perf_counter

from support.tasks import running_task
from support.waiting import wait_until

from gateway.telemetry.process import INTERVAL_S, LoopLag


async def test_what_holds_the_loop_up_is_measured():
    lag = LoopLag()
    async with running_task(lag.run()):
        await asyncio.sleep(0)
        until = perf_counter() + INTERVAL_S + 0.2
        while perf_counter() < until:
            pass
        await wait_until(lambda: lag.seconds.count, "a measurement")
    assert lag.seconds.sum > 0.1
