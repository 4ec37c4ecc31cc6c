"""What fails is begun again, and does not hold up the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.routing import BaseRoute

from gateway.sidecar import supervision as module
from gateway.sidecar.supervision import run_supervised


class FailingPart:
    """A part that fails when it is ended, or at once."""

    routes: Sequence[BaseRoute] = ()

    def __init__(self, *, fails_at_once: bool) -> None:
        self.has_begun = asyncio.Semaphore(0)
        self._fails_at_once = fails_at_once

    async def run(self) -> None:
        self.has_begun.release()
        try:
            if not self._fails_at_once:
                await asyncio.Event().wait()
        finally:
            raise ValueError("it broke")

    async def check_ready(self) -> None: ...


async def test_a_part_that_fails_is_begun_again(monkeypatch):
    monkeypatch.setattr(module, "RESTART_DELAY_S", 0.0)
    part = FailingPart(fails_at_once=True)
    running = asyncio.create_task(run_supervised(part.run, "it"))
    async with asyncio.timeout(60):
        for _ in range(3):
            await part.has_begun.acquire()
        running.cancel()
        await asyncio.wait([running])


async def test_a_part_that_fails_while_it_ends_is_not():
    """It was begun again, and the sidecar never ended."""
    part = FailingPart(fails_at_once=False)
    running = asyncio.create_task(run_supervised(part.run, "it"))
    async with asyncio.timeout(60):
        await part.has_begun.acquire()
        running.cancel()
        await asyncio.wait([running])
    assert part.has_begun.locked()
