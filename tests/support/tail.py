"""`gateway tail` as a process: what it wrote so far, where, and how it ended.

async with tail(f"{gateway.base_url}/records/orders", "--from", "earliest") as it:
    await it.wait(3)
    assert await it.interrupt() == 130
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from support.heard import Received, received_envelope
from support.until import until

WITHIN = 60.0  # s


@asynccontextmanager
async def tail(*arguments: str, stdout: int = PIPE, **environment: str) -> AsyncIterator[Tail]:
    """Killed with the block if it still runs. environment: all it has but PATH.

    stdout: a descriptor of the test's own, in place of being read into `out`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "tail", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=PIPE,
        env={"PATH": os.environ["PATH"], **environment},
    )
    running = Tail(process)
    try:
        yield running
    finally:
        await running.kill()


class Tail:
    """out, err: all it wrote to stdout and stderr so far."""

    def __init__(self, process: Process) -> None:
        assert process.stderr is not None
        self.out = b""
        self.err = ""
        self._process = process
        self._readers = [asyncio.create_task(self._read(process.stderr, self._said))]
        if process.stdout is not None:
            self._readers.append(asyncio.create_task(self._read(process.stdout, self._wrote)))

    @property
    def lines(self) -> list[bytes]:
        """Those of stdout that are whole."""
        return self.out.split(b"\n")[:-1]

    def records(self) -> list[Received]:
        """The lines as envelopes, for the oracle."""
        return [received_envelope({"data": line}) for line in self.lines]

    async def wait(self, enough: int | Callable[[], object]) -> None:
        """Until there are so many lines, or the condition holds."""
        met = (lambda: len(self.lines) >= enough) if isinstance(enough, int) else enough
        await until(met, lambda: f"{len(self.lines)} lines; it said {self.err}", WITHIN)

    async def following(self) -> None:
        await self.wait(lambda: "gateway: following" in self.err)

    async def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        await asyncio.wait_for(self._process.wait(), WITHIN)
        await asyncio.gather(*self._readers)
        return self._process.returncode or 0

    async def interrupt(self, number: int = signal.SIGINT) -> int:
        self._process.send_signal(number)
        return await self.ended()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read(self, stream: asyncio.StreamReader, take: Callable[[bytes], None]) -> None:
        while piece := await stream.read(65536):
            take(piece)

    def _wrote(self, piece: bytes) -> None:
        self.out += piece

    def _said(self, piece: bytes) -> None:
        self.err += piece.decode(errors="replace")
