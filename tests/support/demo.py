"""`gateway demo` as a process."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from support.shell import ShellProcess
from support.waiting import wait_until

START_TIMEOUT_S = 240.0  # s; where thirty things shared two cores, it took more than 60


class DemoProcess(ShellProcess):
    @property
    def port(self) -> int:
        """0 until it listens."""
        found = re.search(r"listening on http://127.0.0.1:(\d+)", self.output)
        return int(found[1]) if found else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bootstrap_servers(self) -> str:
        """Its Kafka's."""
        found = re.search(r"embedded Kafka on (\S+)", self.output)
        assert found, self.output
        return found[1]

    async def send_signal(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        return await self.wait_ended(START_TIMEOUT_S)


@asynccontextmanager
async def running_demo(
    port: int = 0,
    *options: str,
    directory: Path | None = None,
    command: Sequence[str] = ("demo",),
    environment: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> AsyncIterator[DemoProcess]:
    """Listening; ended with the block. command: of `gateway`, one that takes a port so."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway"),
        *(*command, "--port", str(port), "--no-browser", *options),
        cwd=directory,
        env=environment,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    running = DemoProcess(process)
    try:
        await wait_until(
            lambda: running.port or running.is_ended, lambda: running.output, timeout_s
        )
        assert running.port, running.output
        yield running
    finally:
        if process.returncode is None:
            await running.send_signal(signal.SIGKILL)
