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


class ShellProcess:
    """The process, and what it said on both of its outputs."""

    def __init__(self, process: Process) -> None:
        self.process, self.output = process, ""
        self._read_task = asyncio.create_task(self._read_output())

    @property
    def is_ended(self) -> bool:
        return self._read_task.done()

    @property
    def complete_lines(self) -> list[str]:
        """Whole ones."""
        return self.output.split("\n")[:-1]

    async def _read_output(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.output += line.decode()

    async def wait_ended(self, timeout_s: float) -> int:
        """Its exit code, when all it said is here."""
        async with asyncio.timeout(timeout_s):
            await self._read_task
            return await self.process.wait()


@asynccontextmanager
async def running_shell(
    command: str, directory: Path, **environment: str
) -> AsyncIterator[ShellProcess]:
    """What a person gets who types this there, with the virtual environment activated; it and all
    that it started is killed at the end of the block."""
    process = await asyncio.create_subprocess_shell(
        f"exec {command}" if "|" not in command else command,
        cwd=directory,
        env={**os.environ, **_build_environment(), **environment},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    running = ShellProcess(process)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await running.wait_ended(30)


def _build_environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    return {"PATH": path, "NO_PROXY": direct, "no_proxy": direct, "PYTHONUNBUFFERED": "1"}
