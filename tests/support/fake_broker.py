"""A broker of a few lines, for what a real one cannot be made to do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

SUPPORTED_VERSIONS = {
    0: (0, 9),
    1: (4, 17),
    2: (1, 7),
    3: (0, 12),
    17: (0, 1),
    18: (0, 0),
    23: (2, 4),
}
API_VERSIONS = 18


class BrokerRequest(NamedTuple):
    api_key: int
    api_version: int
    client_id: str
    body: bytes


RequestHandler = Callable[[BrokerRequest], Awaitable[bytes | None]]


async def never_answer(request: BrokerRequest) -> bytes | None:
    """Takes the request and says nothing, as a frozen broker."""
    await asyncio.Event().wait()
    return None


class FakeBroker:
    """Answers ApiVersions; the rest is up to `answer`, whose None closes the connection.

    `answer` gives what follows the correlation id. `asked` has all requests but ApiVersions.
    mute: not even ApiVersions is answered.
    """

    def __init__(
        self, handle_request: RequestHandler = never_answer, *, is_mute: bool = False
    ) -> None:
        self.handle_request = handle_request
        self.is_mute = is_mute
        self.requests: list[BrokerRequest] = []
        self.accepted_count = 0
        self.supported_versions = dict(SUPPORTED_VERSIONS)
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connection_count(self) -> int:
        return sum(not reader.at_eof() for reader in self._writers.values())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.close_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close_connections(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.close()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.accepted_count += 1
        self._writers[writer] = reader
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (frame := await _read_frame(reader)) is not None:
                answer = await self._build_response(frame)
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

    async def _build_response(self, frame: bytes) -> bytes | None:
        api, version, _, size = struct.unpack_from(">hhih", frame)
        asked = BrokerRequest(api, version, frame[10 : 10 + size].decode(), frame[10 + size :])
        if self.is_mute:
            return await never_answer(asked)
        if api == API_VERSIONS:
            rows = (
                struct.pack(">hhh", key, *span) for key, span in self.supported_versions.items()
            )
            return struct.pack(">hi", 0, len(self.supported_versions)) + b"".join(rows)
        self.requests.append(asked)
        return await self.handle_request(asked)


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
