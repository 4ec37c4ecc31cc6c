"""HTTP by hand: a socket, the bytes one wants on it, and what came back."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from support.waiting import WAIT_TIMEOUT_S

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass
class RawResponse:
    """A response as it came. `closed`: then the server closed, cleanly or by a reset."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_closed: bool = False

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json", self
        told: dict[str, Any] = json.loads(self.body)
        assert told["status"] == self.status, self
        assert told["title"] and told["detail"], self
        return told


class ConnectionReset(Exception):
    """The server answered with a TCP reset."""


class RawConnection:
    """One connection. Every wait ends with an AssertionError after `deadline` seconds."""

    def __init__(
        self, port: int, *, timeout_s: float = WAIT_TIMEOUT_S, receive_buffer: int = 0
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self._buffer = b""
        self._is_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> bool:
        """False if the server closed or reset before it had all."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read_until(self, delimiter: bytes) -> bytes:
        """What comes, up to and with `end`."""
        while delimiter not in self._buffer:
            if not self._receive_more():
                raise AssertionError(f"closed before {delimiter!r}: {self._buffer[-300:]!r}")
        found, _, self._buffer = self._buffer.partition(delimiter)
        return found + delimiter

    @property
    def local_port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def read_head(self) -> RawResponse:
        """The next response's head; a stream's chunks, or what was asked by HEAD, follow."""
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in lines[1:-2]]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        assert lines[0].startswith("HTTP/1.1 "), lines
        return RawResponse(int(lines[0].split()[1]), headers)

    def read_response(self) -> RawResponse:
        """The next response with its body. Interim ones before it (RFC 9110 15.2) are passed over:
        whoever ended its side is sent them while its answer takes long."""
        answer = self.read_head()
        while answer.status < 200:
            answer = self.read_head()
        if answer.status not in (204, 304):
            answer.body = self.read_body(answer.headers)
        return answer

    def read_last_response(self) -> RawResponse:
        """A response, and the clean end of the connection behind it."""
        answer = self.read_response()
        assert answer.headers.get("connection") == "close", answer
        self.read_close()
        answer.is_closed = True
        return answer

    def read_close(self) -> None:
        """The server ends the connection, by FIN and not by a reset, with nothing more said."""
        while self._receive_more():
            pass
        assert not self._buffer, self._buffer[:300]

    def read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self.read_exactly(int(headers["content-length"]))
        body = b""
        while chunk := self.read_chunk():
            body += chunk
        return body

    def read_chunk(self) -> bytes:
        data = self.read_exactly(int(self.read_until(b"\r\n"), 16))
        assert self.read_exactly(2) == b"\r\n"
        return data

    def read_exactly(self, count: int) -> bytes:
        """The next so many bytes."""
        while len(self._buffer) < count:
            assert self._receive_more(), f"closed after {len(self._buffer)} of {count} bytes"
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _receive_more(self) -> bool:
        if self._is_ended:
            return False
        try:
            piece = self.socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"nothing more came; so far {self._buffer[-300:]!r}") from None
        except ConnectionResetError:
            raise ConnectionReset from None
        self._buffer += piece
        self._is_ended = not piece
        return bool(piece)


def send_request(port: int, request: bytes, *, timeout_s: float = WAIT_TIMEOUT_S) -> RawResponse:
    """Send a request that ends the connection; its answer."""
    with RawConnection(port, timeout_s=timeout_s) as wire:
        wire.send_bytes(request)
        return wire.read_last_response()


def build_request(path: str | bytes = "/", *headers: bytes, method: str = "GET") -> bytes:
    """A correct request with these header lines besides Host."""
    if isinstance(path, str):
        path = path.encode()
    lines = [method.encode() + b" " + path + b" HTTP/1.1", b"Host: localhost", *headers, b"", b""]
    return b"\r\n".join(lines)


@dataclass
class RunningServer:
    """A running server. `connections` and `errors` are uvicorn's and the loop's own."""

    port: int
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def connections(self) -> set[Any]:
        return set(self.server.server_state.connections)


@contextmanager
def running_server(
    app: Any,
    http: type[HttpToolsProtocol],
    loop: Callable[[], asyncio.AbstractEventLoop],
    certificate: Path | None = None,
    **options: Any,
) -> Iterator[RunningServer]:
    """The app under uvicorn in a thread of its own, on a port of the OS; TLS with a certificate."""
    # Clients are processes of their own, too, and need neither: the imports take 0.5 s of CPU.
    import uvicorn

    from gateway.client_memory import ClientMemory
    from gateway.web.http.edge import configure_socket
    from gateway.web.http.tls import READ_BYTES, TlsTransport
    from gateway.web.http.transport import GatewayProtocol

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate)
    buffer, memory = memoryview(bytearray(READ_BYTES)), ClientMemory()

    def create_protocol(**arguments: Any) -> asyncio.BaseProtocol:
        protocol: Any = http(**arguments)
        if certificate is None:
            return protocol
        return TlsTransport(protocol, context, buffer, memory)

    settings = {"lifespan": "off", "log_level": "critical", "timeout_graceful_shutdown": 0}
    config = uvicorn.Config(app, http=cast("Any", create_protocol), **(settings | options))
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    if issubclass(http, GatewayProtocol):
        configure_socket(listener, getattr(http, "USER_TIMEOUT_S", None))
    started = threading.Event()
    served = RunningServer(listener.getsockname()[1], server, asyncio.new_event_loop())
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
        assert started.wait(WAIT_TIMEOUT_S)
        yield served
    finally:
        server.should_exit = server.force_exit = True
        thread.join(WAIT_TIMEOUT_S)
        listener.close()
    assert not thread.is_alive(), "the server does not end"
    assert not served.errors, served.errors
