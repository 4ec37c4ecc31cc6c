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

from support.clients.client import ReceivedEvent, SseClient
from support.sse import SseParser
from support.waiting import wait_until


class ResponseHead(NamedTuple):
    status: int
    headers: dict[str, str]


class RawClient(SseClient):
    """
    responses: the head of every answer.
    body:      as it came, chunks taken off, of the last connection, unless `keeps_body` is false.
    size:      bytes read off the socket in the last connection, HTTP and all.
    retry:     seconds until it reconnects, until the stream says otherwise.
    """

    name: ClassVar[str] = "raw"
    reconnects_itself: ClassVar[bool] = True
    media_type: ClassVar[str] = "text/event-stream"
    keeps_body: ClassVar[bool] = True

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
        self.responses: list[ResponseHead] = []
        self._body = bytearray()
        self.received_bytes = 0
        self.reconnect_delay = retry
        self._last_event_id = last_event_id
        self._receive_buffer = receive_buffer
        self._bytes_until_cut: int | None = None
        self._should_reset = False
        self._is_reading = asyncio.Event()
        self._is_reading.set()
        self._run_task: asyncio.Task[None] | None = None
        self._connection_task: asyncio.Task[None] | None = None

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    @property
    def last_event_id(self) -> str:
        """Also of events without data, as a browser has it."""
        return self._last_event_id

    @property
    def url(self) -> str:
        return self._url_parts.geturl()

    def set_server(self, netloc: str) -> None:
        self._url_parts = self._url_parts._replace(netloc=netloc.removeprefix("http://"))

    async def start(self) -> None:
        self._run_task = asyncio.create_task(self._run_connections())

    async def stop(self) -> None:
        if self._run_task is not None:
            self._run_task.cancel()
            await asyncio.gather(self._run_task, return_exceptions=True)
            self._run_task = None

    def cut(self, *, reset: bool = False) -> None:
        """Close the socket now; `reset`: with RST, as a crash does, not FIN."""
        self._should_reset = reset
        if self._connection_task is not None:
            self._connection_task.cancel()

    def cut_after(self, count: int, *, reset: bool = False) -> None:
        """Read exactly `count` bytes more off the socket, then cut."""
        self._should_reset = reset
        self._bytes_until_cut = count

    @property
    def is_cut_pending(self) -> bool:
        """Whether the bytes that `cut_after` allowed are not read yet."""
        return self._bytes_until_cut is not None

    def stop_reading(self) -> None:
        """Stop reading: a slow client."""
        self._is_reading.clear()

    def resume_reading(self) -> None:
        self._is_reading.set()

    async def wait_closed(self) -> None:
        """It has given up for good."""
        await wait_until(
            lambda: self.is_closed, lambda: f"{self.name} goes on: {self.describe_state()}"
        )

    def describe_state(self) -> str:
        connection = self._connection_task
        is_connected = connection is not None and not connection.done()
        statuses = [response.status for response in self.responses]
        return (
            f"{super().describe_state()}; {'connected' if is_connected else 'not connected'}, "
            f"{self.received_bytes} bytes of the last connection, comes back "
            f"{self.reconnect_delay} s after its end, answers {statuses[-5:]}"
        )

    async def _run_connections(self) -> None:
        while not self.is_closed:
            self._connection_task = asyncio.create_task(self._open_and_read())
            try:
                await asyncio.wait([self._connection_task])
            finally:
                self._connection_task.cancel()
                outcome = (await asyncio.gather(self._connection_task, return_exceptions=True))[0]
            if isinstance(outcome, OSError | EOFError):
                self.errors.append(repr(outcome))
            elif isinstance(outcome, Exception):
                self.errors.append(repr(outcome))
                self.is_closed = True
            if not self.is_closed:
                await asyncio.sleep(self.reconnect_delay)

    async def _open_and_read(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            if self._receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            self.received_bytes, self._body = 0, bytearray()
            try:
                await loop.sock_connect(
                    sock, (self._url_parts.hostname, self._url_parts.port or 80)
                )
                await loop.sock_sendall(sock, self._build_request())
                await self._read_response(sock)
            finally:
                if self._should_reset:
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self._should_reset = False

    def _build_request(self) -> bytes:
        target = self._url_parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        headers = {"Host": self._url_parts.netloc, "Accept": self.media_type} | self.headers
        headers |= {"Cache-Control": "no-store"}
        if self._last_event_id:
            headers["Last-Event-ID"] = self._last_event_id
        lines = [f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode()

    def create_parser(self) -> SseParser:
        """What takes the body of a connection apart."""
        return SseParser(self._last_event_id)

    def should_give_up(self, response: ResponseHead) -> bool:
        """Whether an answer that is no stream ends it for good."""
        return True

    async def _read_response(self, sock: socket.socket) -> None:
        body = _BodyDecoder()
        parser = self.create_parser()
        while piece := await self._receive_piece(sock):
            data = body.feed(piece)
            if body.response is not None and not self._is_stream(body):
                return
            if self.keeps_body:
                self._body += data
            for event in parser.feed(data):
                told = ReceivedEvent(
                    event=event.event_type, id=event.last_event_id, data=event.data
                )
                self.events.append(told)
            self._last_event_id = parser.last_event_id
            if parser.retry_ms is not None:
                self.reconnect_delay = parser.retry_ms / 1000
            if body.is_ended:
                return

    async def _receive_piece(self, sock: socket.socket) -> bytes:
        """At most what may still be read; b"" at the end, also at that of the budget."""
        await self._is_reading.wait()
        if self._bytes_until_cut == 0:
            self._bytes_until_cut = None
            return b""
        want = 65536 if self._bytes_until_cut is None else min(65536, self._bytes_until_cut)
        piece = await asyncio.get_running_loop().sock_recv(sock, want)
        if self._bytes_until_cut is not None:
            # A budget set while this waited for bytes holds from here on: never read too far.
            self._bytes_until_cut = max(0, self._bytes_until_cut - len(piece))
        self.received_bytes += len(piece)
        return piece

    def _is_stream(self, body: _BodyDecoder) -> bool:
        """Whether it is a stream, and a browser would read on; noted once per answer."""
        response = body.response
        assert response is not None
        kind = response.headers.get("content-type", "")
        stream = response.status == 200 and kind.startswith(self.media_type)
        if not body.is_noted:
            body.is_noted = True
            self.responses.append(response)
            self.is_closed = not stream and self.should_give_up(response)
            self.open_count += stream
        return stream


class _BodyDecoder:
    """Takes HTTP/1.1 off an answer: head, chunks if there are, and what is behind its length."""

    def __init__(self) -> None:
        self.response: ResponseHead | None = None
        self.is_noted = False
        self.is_ended = False
        self._buffer = b""
        self._chunk_bytes_left = 0  # bytes of the current chunk still to come
        self._is_chunked = False
        self._body_bytes_left: int | None = None  # by Content-Length

    def feed(self, piece: bytes) -> bytes:
        self._buffer += piece
        if self.response is None and not self._parse_head():
            return b""
        if self._is_chunked:
            return self._decode_chunks()
        data, self._buffer = self._buffer[: self._body_bytes_left], b""
        if self._body_bytes_left is not None:
            self._body_bytes_left -= len(data)
            self.is_ended = self._body_bytes_left == 0
        return data

    def _parse_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.response = ResponseHead(int(status.split()[1]), headers)
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if "content-length" in headers:
            self._body_bytes_left = int(headers["content-length"])
        self._buffer = rest
        return True

    def _decode_chunks(self) -> bytes:
        """A cut chunk gives what came of it: browsers do not wait for its end."""
        found = b""
        while self._buffer and not self.is_ended:
            if self._chunk_bytes_left == 0:
                line, end, rest = self._buffer.partition(b"\r\n")
                if not end:
                    break
                self._buffer = rest
                if line:  # the empty one ends the chunk before
                    self._chunk_bytes_left = int(line.split(b";")[0], 16)
                    self.is_ended = self._chunk_bytes_left == 0
                continue
            data = self._buffer[: self._chunk_bytes_left]
            self._buffer = self._buffer[len(data) :]
            self._chunk_bytes_left -= len(data)
            found += data
        return found
