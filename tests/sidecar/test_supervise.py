"""What fails is begun again, and does not hold up the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.routing import BaseRoute

from gateway.sidecar import supervise as module
from gateway.sidecar.supervise import kept


class Failing:
    """A part that fails when it is ended, or at once."""

    routes: Sequence[BaseRoute] = ()

    def __init__(self, *, at_once: bool) -> None:
        self.begun = asyncio.Semaphore(0)
        self._at_once = at_once

    async def run(self) -> None:
        self.begun.release()
        try:
            if not self._at_once:
                await asyncio.Event().wait()
        finally:
            raise ValueError("it broke")

    async def check(self) -> None: ...


async def test_a_part_that_fails_is_begun_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.0)
    part = Failing(at_once=True)
    running = asyncio.create_task(kept(part.run, "it"))
    async with asyncio.timeout(60):
        for _ in range(3):
            await part.begun.acquire()
        running.cancel()
        await asyncio.wait([running])


async def test_a_part_that_fails_while_it_ends_is_not():
    """It was begun again, and the sidecar never ended."""
    part = Failing(at_once=False)
    running = asyncio.create_task(kept(part.run, "it"))
    async with asyncio.timeout(60):
        await part.begun.acquire()
        running.cancel()
        await asyncio.wait([running])
    assert part.begun.locked()
