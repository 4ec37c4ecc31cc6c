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

from support.shell import Running
from support.until import until

WITHIN = 60.0  # s; demos, browsers and whatever else runs share two cores


class Demo(Running):
    @property
    def port(self) -> int:
        """0 until it listens."""
        found = re.search(r"listening on http://127.0.0.1:(\d+)", self.said)
        return int(found[1]) if found else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def servers(self) -> str:
        """Its Kafka's."""
        found = re.search(r"embedded Kafka on (\S+)", self.said)
        assert found, self.said
        return found[1]

    async def end(self, number: int) -> int:
        self.process.send_signal(number)
        return await self.wait(WITHIN)


@asynccontextmanager
async def demo(
    port: int = 0,
    *options: str,
    place: Path | None = None,
    command: Sequence[str] = ("demo",),
    environ: Mapping[str, str] | None = None,
    within: float = WITHIN,
) -> AsyncIterator[Demo]:
    """Listening; ended with the block. command: of `gateway`, one that takes a port so."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway"),
        *(*command, "--port", str(port), "--no-browser", *options),
        cwd=place,
        env=environ,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    running = Demo(process)
    try:
        await until(lambda: running.port or running.ended, lambda: running.said, within)
        assert running.port, running.said
        yield running
    finally:
        if process.returncode is None:
            await running.end(signal.SIGKILL)
