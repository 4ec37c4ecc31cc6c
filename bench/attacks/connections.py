"""Open the connections of attackers, which are blocking and come from their own IP address."""

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
from support.raw_http import ConnectionReset, build_request
from support.raw_websocket import OPCODE_TEXT, build_frame, build_handshake

from .attack import Target

ATTACKER_ADDRESS = "127.0.0.2"  # so that limits for one address are not the honest clients'
CLOSED_ERRORS = (AssertionError, OSError, ConnectionReset)
"""What a connection raises that the gateway has ended, or does not answer."""
SMALL_BUFFER_BYTES = 4096  # bytes; so that the kernel takes little for who reads nothing
EVENTS_HEADER = b"Accept: text/event-stream"
COMPRESSED_RSV = 4  # the bit RSV1 of a compressed message (RFC 7692 6)


class AttackConnection(raw_websocket.RawWebSocket):
    """A connection, over which WebSocket may be spoken once it was `open`ed so."""

    def __init__(self, port: int, *, timeout_s: float = 60.0, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        with suppress(OSError):  # where all of 127.0.0.0/8 is not the loopback's
            self.socket.bind((ATTACKER_ADDRESS, 0))
        self.socket.connect(("127.0.0.1", port))
        self._buffer = b""
        self._is_ended = False

    def send_messages(self, *messages: Any) -> bool:
        """Send these objects, each as a message; False if the gateway has closed."""
        return self.send_bytes(b"".join(build_message(each) for each in messages))

    def receive_message(self) -> dict[str, Any]:
        """Return the next message."""
        heard: dict[str, Any] = json.loads(self.read_text())
        return heard


def build_message(content: Any) -> bytes:
    """Return a frame with this object as JSON."""
    return build_frame(OPCODE_TEXT, json.dumps(content).encode())


def follow_stream(connection: AttackConnection, path: str, *headers: bytes) -> int:
    """Ask for a stream of server-sent events; the status of the answer."""
    connection.send_bytes(build_request(path, EVENTS_HEADER, *headers))
    return connection.read_head().status


@contextmanager
def open_connections(
    port: int, count: int, *, has_small_buffer: bool = False
) -> Iterator[list[AttackConnection]]:
    """Open so many connections, closed with the block."""
    size = SMALL_BUFFER_BYTES if has_small_buffer else 0
    with ExitStack() as stack:
        yield [
            stack.enter_context(AttackConnection(port, receive_buffer=size)) for _ in range(count)
        ]


@contextmanager
def open_websockets(
    port: int, count: int, *headers: bytes, has_small_buffer: bool = False
) -> Iterator[list[AttackConnection]]:
    """Open so many WebSockets of `/ws`, closed with the block."""
    with open_connections(port, count, has_small_buffer=has_small_buffer) as lines:
        for line in lines:
            line.send_bytes(build_handshake("/ws", *headers))
            line.response = line.read_head()
            assert line.response.status == 101, line.response
        yield lines


def count_status(counts: Counter[str], port: int, request: bytes, prefix: str = "") -> None:
    """Send a request over a connection of its own, and count how it is answered."""
    with AttackConnection(port) as line:
        line.send_bytes(request)
        try:
            counts[f"{prefix}status {line.read_head().status}"] += 1
        except CLOSED_ERRORS:
            counts[f"{prefix}closed"] += 1


def repeat_request(target: Target, request: bytes) -> Counter[str]:
    """Send a request again and again, each over a connection of its own."""
    counts: Counter[str] = Counter()
    target.announce_begin()
    for _ in target.iter_turns():
        count_status(counts, target.port, request)
    return counts


def drain_connections(connections: Iterable[AttackConnection], seconds: float) -> Counter[str]:
    """Read all that comes over these connections for so long; how many bytes, how many ended."""
    counts: Counter[str] = Counter(bytes=0, ended=0)
    ends = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for line in connections:
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
