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

from support.received import ReceivedRecord, parse_envelope
from support.waiting import wait_until

OUTPUT_TIMEOUT_S = 60.0  # s


@asynccontextmanager
async def running_tail(
    *arguments: str, stdout: int = PIPE, **environment: str
) -> AsyncIterator[TailProcess]:
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
    running = TailProcess(process)
    try:
        yield running
    finally:
        await running.kill()


class TailProcess:
    """out, err: all it wrote to stdout and stderr so far."""

    def __init__(self, process: Process) -> None:
        assert process.stderr is not None
        self.stdout = b""
        self.stderr = ""
        self._process = process
        self._readers = [asyncio.create_task(self._read_stream(process.stderr, self._add_stderr))]
        if process.stdout is not None:
            self._readers.append(
                asyncio.create_task(self._read_stream(process.stdout, self._add_stdout))
            )

    @property
    def complete_lines(self) -> list[bytes]:
        """Those of stdout that are whole."""
        return self.stdout.split(b"\n")[:-1]

    def parse_records(self) -> list[ReceivedRecord]:
        """The lines as envelopes, for the oracle."""
        return [parse_envelope({"data": line}) for line in self.complete_lines]

    async def wait_for_output(self, condition: int | Callable[[], object]) -> None:
        """Until there are so many lines, or the condition holds."""
        met = (
            (lambda: len(self.complete_lines) >= condition)
            if isinstance(condition, int)
            else condition
        )
        await wait_until(
            met,
            lambda: f"{len(self.complete_lines)} lines; it said {self.stderr}",
            OUTPUT_TIMEOUT_S,
        )

    async def wait_until_following(self) -> None:
        await self.wait_for_output(lambda: "gateway: following" in self.stderr)

    async def wait_ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        await asyncio.wait_for(self._process.wait(), OUTPUT_TIMEOUT_S)
        await asyncio.gather(*self._readers)
        return self._process.returncode or 0

    async def send_signal(self, signal_number: int = signal.SIGINT) -> int:
        self._process.send_signal(signal_number)
        return await self.wait_ended()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_stream(
        self, stream: asyncio.StreamReader, consume: Callable[[bytes], None]
    ) -> None:
        while piece := await stream.read(65536):
            consume(piece)

    def _add_stdout(self, piece: bytes) -> None:
        self.stdout += piece

    def _add_stderr(self, piece: bytes) -> None:
        self.stderr += piece.decode(errors="replace")
