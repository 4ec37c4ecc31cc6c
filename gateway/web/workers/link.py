"""Exchange messages between the processes of one gateway, over a Unix socket.

A message is a JSON array on a line of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import orjson

log = logging.getLogger(__name__)

MessageHandler = Callable[[list[Any]], None]

MAX_UNREAD_BYTES = 32 * 1024 * 1024  # lists of 10,000 clients have a few MB


class Link(asyncio.Protocol):
    """One end of a connection. `Bus` and `Relay` own the links.

    A peer that leaves too much unread is disconnected, so that nobody waits for it: it connects
    again, and both sides send again what the other must know.
    """

    def __init__(
        self,
        on_message: MessageHandler,
        on_lost: Callable[[], None],
        *,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
    ) -> None:
        self._max_unread_bytes = max_unread_bytes
        self.on_message = on_message
        self.on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._partial_line = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        """Send a message without waiting; it is dropped if the connection is over."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(orjson.dumps(message, _encode_default, orjson.OPT_NON_STR_KEYS) + b"\n")
        if transport.get_write_buffer_size() > self._max_unread_bytes:
            log.warning("a process of this gateway does not read its messages; it is disconnected")
            transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        complete, newline, rest = data.rpartition(b"\n")
        if newline:
            lines = bytes(self._partial_line + complete).split(b"\n")
            self._partial_line.clear()
            for line in lines:
                self._handle_line(line)
        self._partial_line += rest
        if len(self._partial_line) > self._max_unread_bytes:
            self.abort()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except ValueError:
            log.error("a process of this gateway sent invalid JSON: %.100r", line)
            self.abort()
            return
        if self.is_open:  # the handler of an earlier line may have closed the connection
            self.on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.on_lost()


def _encode_default(value: object) -> list[Any]:
    """Encode named tuples and sets as arrays, which orjson does not."""
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError
