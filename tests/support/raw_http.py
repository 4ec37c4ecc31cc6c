"""HTTP by hand: a socket, the bytes one wants on it, and what came back."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from support.until import PATIENCE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.web.http.transport import GatewayProtocol


@dataclass
class Answer:
    """A response as it came. `closed`: then the server closed, cleanly or by a reset."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    closed: bool = False

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json", self
        told: dict[str, Any] = json.loads(self.body)
        assert told["status"] == self.status, self
        assert told["title"] and told["detail"], self
        return told


class Reset(Exception):
    """The server answered with a TCP reset."""


class Wire:
    """One connection. Every wait ends with an AssertionError after `deadline` seconds."""

    def __init__(self, port: int, *, deadline: float = PATIENCE, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(deadline)
        self.socket.connect(("127.0.0.1", port))
        self._pending = b""
        self._ended = False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """False if the server closed or reset before it had all."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def until(self, end: bytes) -> bytes:
        """What comes, up to and with `end`."""
        while end not in self._pending:
            if not self._more():
                raise AssertionError(f"closed before {end!r}: {self._pending[-300:]!r}")
        found, _, self._pending = self._pending.partition(end)
        return found + end

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def answer_head(self) -> Answer:
        """The next response's head; a stream's chunks, or what was asked by HEAD, follow."""
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in lines[1:-2]]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        assert lines[0].startswith("HTTP/1.1 "), lines
        return Answer(int(lines[0].split()[1]), headers)

    def answer(self) -> Answer:
        """The next response with its body. Interim ones before it (RFC 9110 15.2) are passed over:
        whoever ended its side is sent them while its answer takes long."""
        answer = self.answer_head()
        while answer.status < 200:
            answer = self.answer_head()
        if answer.status not in (204, 304):
            answer.body = self._body(answer.headers)
        return answer

    def last_answer(self) -> Answer:
        """A response, and the clean end of the connection behind it."""
        answer = self.answer()
        assert answer.headers.get("connection") == "close", answer
        self.closes()
        answer.closed = True
        return answer

    def closes(self) -> None:
        """The server ends the connection, by FIN and not by a reset, with nothing more said."""
        while self._more():
            pass
        assert not self._pending, self._pending[:300]

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self.take(int(headers["content-length"]))
        body = b""
        while chunk := self.chunk():
            body += chunk
        return body

    def chunk(self) -> bytes:
        data = self.take(int(self.until(b"\r\n"), 16))
        assert self.take(2) == b"\r\n"
        return data

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        while len(self._pending) < count:
            assert self._more(), f"closed after {len(self._pending)} of {count} bytes"
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def _more(self) -> bool:
        if self._ended:
            return False
        try:
            piece = self.socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"nothing more came; so far {self._pending[-300:]!r}") from None
        except ConnectionResetError:
            raise Reset from None
        self._pending += piece
        self._ended = not piece
        return bool(piece)


def exchange(port: int, request: bytes, *, deadline: float = PATIENCE) -> Answer:
    """Send a request that ends the connection; its answer."""
    with Wire(port, deadline=deadline) as wire:
        wire.send(request)
        return wire.last_answer()


def get(target: str | bytes = "/", *headers: bytes, method: str = "GET") -> bytes:
    """A correct request with these header lines besides Host."""
    if isinstance(target, str):
        target = target.encode()
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"Host: localhost", *headers, b"", b""]
    return b"\r\n".join(lines)


@dataclass
class Served:
    """A running server. `connections` and `errors` are uvicorn's and the loop's own."""

    port: int
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def connections(self) -> set[Any]:
        return set(self.server.server_state.connections)


@contextmanager
def serving(
    app: Any,
    http: type[HttpToolsProtocol],
    loop: Callable[[], asyncio.AbstractEventLoop],
    **options: Any,
) -> Iterator[Served]:
    """The app under uvicorn in a thread of its own, on a port of the OS."""
    settings = {"lifespan": "off", "log_level": "critical", "timeout_graceful_shutdown": 0}
    config = uvicorn.Config(app, http=http, **(settings | options))
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    if issubclass(http, GatewayProtocol):
        http.prepare(listener)
    started = threading.Event()
    served = Served(listener.getsockname()[1], server, asyncio.new_event_loop())
    served.loop.close()

    async def serve() -> None:
        served.loop = asyncio.get_running_loop()
        served.loop.set_exception_handler(lambda _, context: served.errors.append(context))
        served.loop.call_soon(started.set)
        await server.serve([listener])

    def run() -> None:
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield served
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive(), "the server does not end"
    assert not served.errors, served.errors
