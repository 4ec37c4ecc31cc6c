"""Connections of attackers: blocking, from an address of their own."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from support import raw_websocket
from support.raw_http import Reset, get
from support.raw_websocket import DEFLATE, TEXT, frame, handshake

ADDRESS = "127.0.0.2"  # so that limits for one address are not the honest clients'
ENDED = (AssertionError, OSError, Reset)
"""What a connection raises that the gateway has ended, or does not answer."""
SMALL_BUFFER = 4096  # bytes; so that the kernel takes little for who reads nothing
SQUEEZED = 4  # the bit RSV1 of a compressed message (RFC 7692 6)


class Line(raw_websocket.Socket):
    """A connection, over which WebSocket may be spoken once it was `open`ed so."""

    def __init__(self, port: int, *, deadline: float = 60.0, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(deadline)
        with suppress(OSError):  # where all of 127.0.0.0/8 is not the loopback's
            self.socket.bind((ADDRESS, 0))
        self.socket.connect(("127.0.0.1", port))
        self._pending = b""
        self._ended = False

    @classmethod
    def upgrade(cls, port: int, *headers: bytes, receive_buffer: int = 0) -> Line:
        """Return a WebSocket of `/ws`. Raises AssertionError where it is refused."""
        line = cls(port, receive_buffer=receive_buffer)
        line.send(handshake("/ws", *headers))
        line.answered = line.answer_head()
        assert line.answered.status == 101, line.answered
        return line

    def say(self, *messages: Any) -> bool:
        """Send these objects, each as a message; False if the gateway has closed."""
        return self.send(b"".join(message(each) for each in messages))

    def hear(self) -> dict[str, Any]:
        """Return the next message."""
        heard: dict[str, Any] = json.loads(self.text())
        return heard


def message(said: Any) -> bytes:
    """Return a frame with this object as JSON."""
    return frame(TEXT, json.dumps(said).encode())


def ask(port: int, request: bytes) -> int:
    """Send a request over a connection of its own; the status of the answer."""
    with Line(port) as line:
        line.send(request)
        return line.answer_head().status


def follow(line: Line, path: str, *headers: bytes) -> int:
    """Ask for a stream of server-sent events; the status of the answer."""
    line.send(get(path, b"Accept: text/event-stream", *headers))
    return line.answer_head().status


@contextmanager
def opened(port: int, count: int, *headers: bytes, small: bool = False) -> Iterator[list[Line]]:
    """Open so many WebSockets of `/ws`, closed with the block. small: they take little."""
    with ExitStack() as stack:
        lines = []
        for _ in range(count):
            line = Line.upgrade(port, *headers, receive_buffer=SMALL_BUFFER if small else 0)
            lines.append(line)
            stack.callback(line.socket.close)
        yield lines


def drain(lines: Iterable[Line], seconds: float) -> Counter[str]:
    """Read all that comes over these connections for so long; how many bytes, how many ended."""
    counts: Counter[str] = Counter(bytes=0, ended=0)
    ends = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line.socket, selectors.EVENT_READ)
        while (left := ends - time.monotonic()) > 0 and selector.get_map():
            for key, _ in selector.select(left):
                piece = _receive(key.fileobj)
                counts["bytes"] += len(piece)
                if not piece:
                    counts["ended"] += 1
                    selector.unregister(key.fileobj)
    return counts


def _receive(connection: Any) -> bytes:
    try:
        received: bytes = connection.recv(1 << 20)
    except OSError:
        return b""
    return received


__all__ = [
    "DEFLATE", "ENDED", "SMALL_BUFFER", "SQUEEZED", "Line", "ask", "drain", "follow", "message",
    "opened",
]  # fmt: skip
