"""Commands as people type them, and what they say."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Running:
    """The process, and what it said on both of its outputs."""

    def __init__(self, process: Process) -> None:
        self.process, self.said = process, ""
        self._reading = asyncio.create_task(self._read())

    @property
    def ended(self) -> bool:
        return self._reading.done()

    @property
    def lines(self) -> list[str]:
        """Whole ones."""
        return self.said.split("\n")[:-1]

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said += line.decode()

    async def wait(self, within: float) -> int:
        """Its exit code, when all it said is here."""
        async with asyncio.timeout(within):
            await self._reading
            return await self.process.wait()


@asynccontextmanager
async def shell(line: str, place: Path, **environment: str) -> AsyncIterator[Running]:
    """What a person gets who types this there, with the virtual environment activated; it and all
    that it started is killed at the end of the block."""
    process = await asyncio.create_subprocess_shell(
        f"exec {line}" if "|" not in line else line,
        cwd=place,
        env={**os.environ, **_activated(), **environment},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    running = Running(process)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await running.wait(30)


def _activated() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    return {"PATH": path, "NO_PROXY": direct, "no_proxy": direct, "PYTHONUNBUFFERED": "1"}
