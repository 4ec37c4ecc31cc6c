"""A broker of a few lines, for what a real one cannot be made to do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

SPEAKS = {0: (0, 9), 1: (4, 17), 2: (1, 7), 3: (0, 12), 17: (0, 1), 18: (0, 0), 23: (2, 4)}
API_VERSIONS = 18


class Asked(NamedTuple):
    api: int
    version: int
    client_id: str
    body: bytes


Answer = Callable[[Asked], Awaitable[bytes | None]]


async def silent(asked: Asked) -> bytes | None:
    """Takes the request and says nothing, as a frozen broker."""
    await asyncio.Event().wait()
    return None


class FakeBroker:
    """Answers ApiVersions; the rest is up to `answer`, whose None closes the connection.

    `answer` gives what follows the correlation id. `asked` has all requests but ApiVersions.
    mute: not even ApiVersions is answered.
    """

    def __init__(self, answer: Answer = silent, *, mute: bool = False) -> None:
        self.answer = answer
        self.mute = mute
        self.asked: list[Asked] = []
        self.accepted = 0
        self.speaks = dict(SPEAKS)
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connected(self) -> int:
        return sum(not reader.at_eof() for reader in self._writers.values())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers[writer] = reader
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (frame := await _frame(reader)) is not None:
                answer = await self._answer(frame)
                if answer is None:
                    return
                answer = frame[4:8] + answer
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            self._writers.pop(writer, None)
            self._tasks.discard(task)

    async def _answer(self, frame: bytes) -> bytes | None:
        api, version, _, size = struct.unpack_from(">hhih", frame)
        asked = Asked(api, version, frame[10 : 10 + size].decode(), frame[10 + size :])
        if self.mute:
            return await silent(asked)
        if api == API_VERSIONS:
            rows = (struct.pack(">hhh", key, *span) for key, span in self.speaks.items())
            return struct.pack(">hi", 0, len(self.speaks)) + b"".join(rows)
        self.asked.append(asked)
        return await self.answer(asked)


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
