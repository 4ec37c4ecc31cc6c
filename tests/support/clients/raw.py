"""An EventSource made of a socket, as WHATWG HTML 9.2 has it, whose every byte can be the last.

It reconnects after `retry` with `Last-Event-ID`, gives up for good on any answer but a 200 of
text/event-stream, and needs no process and no proxy: for tests with hundreds of cuts.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from support.clients.client import Event, SseClient
from support.sse import Parser
from support.until import until


class Response(NamedTuple):
    status: int
    headers: dict[str, str]


class RawClient(SseClient):
    """
    responses: the head of every answer.
    wire:      the bytes of the body as they came, chunks taken off, of the last connection.
    size:      bytes read off the socket in the last connection, HTTP and all.
    retry:     seconds until it reconnects, until the stream says otherwise.
    """

    name: ClassVar[str] = "raw"
    reconnects: ClassVar[bool] = True
    kind: ClassVar[str] = "text/event-stream"

    def __init__(
        self,
        url: str,
        *,
        last_event_id: str = "",
        headers: Mapping[str, str] | None = None,
        retry: float = 0.05,
        receive_buffer: int | None = None,
    ) -> None:
        super().__init__(url, last_event_id=last_event_id, headers=headers)
        self.responses: list[Response] = []
        self._wire = bytearray()
        self.size = 0
        self.retry = retry
        self._id = last_event_id
        self._receive_buffer = receive_buffer
        self._budget: int | None = None
        self._reset = False
        self._reading = asyncio.Event()
        self._reading.set()
        self._running: asyncio.Task[None] | None = None
        self._connection: asyncio.Task[None] | None = None

    @property
    def wire(self) -> bytes:
        return bytes(self._wire)

    @property
    def last_event_id(self) -> str:
        """Also of events without data, as a browser has it."""
        return self._id

    @property
    def url(self) -> str:
        return self._parts.geturl()

    def lead_to(self, netloc: str) -> None:
        self._parts = self._parts._replace(netloc=netloc.removeprefix("http://"))

    async def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    def cut(self, *, reset: bool = False) -> None:
        """Close the socket now; `reset`: with RST, as a crash does, not FIN."""
        self._reset = reset
        if self._connection is not None:
            self._connection.cancel()

    def cut_after(self, count: int, *, reset: bool = False) -> None:
        """Read exactly `count` bytes more off the socket, then cut."""
        self._reset = reset
        self._budget = count

    def hold(self) -> None:
        """Stop reading: a slow client."""
        self._reading.clear()

    def release(self) -> None:
        self._reading.set()

    async def until_closed(self) -> None:
        """It has given up for good."""
        await until(lambda: self.closed, lambda: f"{self.name} goes on: {self.state()}")

    async def _run(self) -> None:
        while not self.closed:
            self._connection = asyncio.create_task(self._connect())
            try:
                await asyncio.wait([self._connection])
            finally:
                self._connection.cancel()
                outcome = (await asyncio.gather(self._connection, return_exceptions=True))[0]
            if isinstance(outcome, OSError | EOFError):
                self.errors.append(repr(outcome))
            elif isinstance(outcome, Exception):
                self.errors.append(repr(outcome))
                self.closed = True
            if not self.closed:
                await asyncio.sleep(self.retry)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            if self._receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            self.size, self._wire = 0, bytearray()
            try:
                await loop.sock_connect(sock, (self._parts.hostname, self._parts.port or 80))
                await loop.sock_sendall(sock, self._request())
                await self._read(sock)
            finally:
                if self._reset:
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self._reset = False

    def _request(self) -> bytes:
        target = self._parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        headers = {"Host": self._parts.netloc, "Accept": self.kind} | self.headers
        headers |= {"Cache-Control": "no-store"}
        if self._id:
            headers["Last-Event-ID"] = self._id
        lines = [f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode()

    def parser(self) -> Parser:
        """What takes the body of a connection apart."""
        return Parser(self._id)

    def gives_up(self, response: Response) -> bool:
        """Whether an answer that is no stream ends it for good."""
        return True

    async def _read(self, sock: socket.socket) -> None:
        body = _Body()
        parser = self.parser()
        while piece := await self._receive(sock):
            data = body.feed(piece)
            if body.response is not None and not self._accepted(body):
                return
            self._wire += data
            for event in parser.feed(data):
                told = Event(event=event.type, id=event.last_event_id, data=event.data)
                self.events.append(told)
            self._id = parser.last_event_id
            if parser.retry_ms is not None:
                self.retry = parser.retry_ms / 1000
            if body.ended:
                return

    async def _receive(self, sock: socket.socket) -> bytes:
        """At most what may still be read; b"" at the end, also at that of the budget."""
        await self._reading.wait()
        if self._budget == 0:
            self._budget = None
            return b""
        want = 65536 if self._budget is None else min(65536, self._budget)
        piece = await asyncio.get_running_loop().sock_recv(sock, want)
        if self._budget is not None:
            # A budget set while this waited for bytes holds from here on: never read too far.
            self._budget = max(0, self._budget - len(piece))
        self.size += len(piece)
        return piece

    def _accepted(self, body: _Body) -> bool:
        """Whether it is a stream, and a browser would read on; noted once per answer."""
        response = body.response
        assert response is not None
        kind = response.headers.get("content-type", "")
        stream = response.status == 200 and kind.startswith(self.kind)
        if not body.noted:
            body.noted = True
            self.responses.append(response)
            self.closed = not stream and self.gives_up(response)
            self.opened += stream
        return stream


class _Body:
    """Takes HTTP/1.1 off an answer: head, and chunks if there are."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self.noted = False
        self.ended = False
        self._rest = b""
        self._left = 0  # bytes of the current chunk still to come
        self._chunked = False

    def feed(self, piece: bytes) -> bytes:
        self._rest += piece
        if self.response is None and not self._head():
            return b""
        if self._chunked:
            return self._chunks()
        data, self._rest = self._rest, b""
        return data

    def _head(self) -> bool:
        head, end, rest = self._rest.partition(b"\r\n\r\n")
        if not end:
            return False
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.response = Response(int(status.split()[1]), headers)
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._rest = rest
        return True

    def _chunks(self) -> bytes:
        """A cut chunk gives what came of it: browsers do not wait for its end."""
        found = b""
        while self._rest and not self.ended:
            if self._left == 0:
                line, end, rest = self._rest.partition(b"\r\n")
                if not end:
                    break
                self._rest = rest
                if line:  # the empty one ends the chunk before
                    self._left = int(line.split(b";")[0], 16)
                    self.ended = self._left == 0
                continue
            data = self._rest[: self._left]
            self._rest = self._rest[len(data) :]
            self._left -= len(data)
            found += data
        return found
