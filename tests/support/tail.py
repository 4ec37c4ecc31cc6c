"""`gateway tail` as a fork of the program: what it wrote so far, where, and how it ended.

async with tail(f"{gateway.base_url}/records/orders", "--from", "earliest") as it:
    await it.wait(3)
    assert await it.interrupt() == 130
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager

from support.fork_server import ForkedCommand
from support.received import ReceivedRecord, parse_envelope
from support.waiting import wait_until

_JSON_VALUE = re.compile(r'(?<="value":)[{].*[}](?=,"headers":)')


def _quote_value(value: re.Match[str]) -> str:
    return json.dumps(value[0])


@asynccontextmanager
async def running_tail(
    *arguments: str, stdout: int | None = None, **environment: str
) -> AsyncIterator[TailProcess]:
    """Killed with the block if it still runs. environment: all it has but PATH.

    stdout: a descriptor of the test's own, in place of being read into `stdout`.
    """
    running = TailProcess()
    await running.start(arguments, environment, stdout)
    try:
        yield running
    finally:
        await running.kill()


class TailProcess:
    """stdout, stderr: all it wrote so far."""

    def __init__(self) -> None:
        self.stdout = b""
        self.stderr = ""
        self._readers: list[asyncio.Task[None]] = []

    async def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdout: int | None
    ) -> None:
        with ExitStack() as stack:
            empty = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, empty)
            if stdout is None:
                stdout = await self._open_pipe(self._add_stdout, stack)
            stderr = await self._open_pipe(self._add_stderr, stack)
            self._command = ForkedCommand(
                ("tail", *arguments),
                {"PATH": os.environ["PATH"], **environment},
                streams=(empty, stdout, stderr),
            )

    async def _open_pipe(self, consume: Callable[[bytes], None], stack: ExitStack) -> int:
        """Read a pipe until all have closed the side that is returned, as the stack does here."""
        reading, writing = os.pipe()
        stack.callback(os.close, writing)
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
        )
        self._readers.append(asyncio.create_task(self._read_stream(stream, transport, consume)))
        return writing

    @property
    def complete_lines(self) -> list[bytes]:
        """Those of stdout that are whole."""
        return self.stdout.split(b"\n")[:-1]

    def parse_records(self) -> list[ReceivedRecord]:
        """The lines as envelopes, for the oracle: values that are JSON are text again."""
        return [
            parse_envelope({"data": _JSON_VALUE.sub(_quote_value, line.decode())})
            for line in self.complete_lines
        ]

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
        )

    async def wait_until_following(self) -> None:
        await self.wait_for_output(lambda: "gateway: following" in self.stderr)

    async def wait_ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        await wait_until(
            lambda: self._command.poll() is not None, lambda: f"its end: {self.stderr}"
        )
        await asyncio.gather(*self._readers)
        return self._command.returncode or 0

    async def send_signal(self, signal_number: int = signal.SIGINT) -> int:
        self._command.send_signal(signal_number)
        return await self.wait_ended()

    async def kill(self) -> None:
        self._command.kill()
        self._command.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_stream(
        self,
        stream: asyncio.StreamReader,
        transport: asyncio.BaseTransport,
        consume: Callable[[bytes], None],
    ) -> None:
        try:
            while piece := await stream.read(65536):
                consume(piece)
        finally:
            transport.close()

    def _add_stdout(self, piece: bytes) -> None:
        self.stdout += piece

    def _add_stderr(self, piece: bytes) -> None:
        self.stderr += piece.decode(errors="replace")
