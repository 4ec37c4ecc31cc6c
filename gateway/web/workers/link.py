"""Messages between the processes of one gateway: JSON arrays, one a line, over a Unix socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import orjson

log = logging.getLogger(__name__)

MessageHandler = Callable[[list[Any]], None]


class Link(asyncio.Protocol):
    """One end of a connection. Whoever leaves too much unread is cut off: it connects again, and
    says anew what the others must know; nobody waits for it.

    hear: called with every message. lost: called once, when the connection is over.
    """

    MAX_UNREAD_BYTES = 32 * 1024 * 1024  # bytes; lists of 10,000 clients are a few MB

    def __init__(self, on_message: MessageHandler, on_lost: Callable[[], None]) -> None:
        self.on_message = on_message
        self.on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._partial_line = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        """Never waits; on a connection that is over it is forgotten. Raises TypeError for what
        is no JSON."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(orjson.dumps(message, _encode_default, orjson.OPT_NON_STR_KEYS) + b"\n")
        if transport.get_write_buffer_size() > self.MAX_UNREAD_BYTES:
            log.warning("a process of this gateway does not read what the others say; cut off")
            transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        ended, newline, begun = data.rpartition(b"\n")
        if newline:
            lines = bytes(self._partial_line + ended).split(b"\n")
            self._partial_line.clear()
            for line in lines:
                self._handle_line(line)
        self._partial_line += begun
        if len(self._partial_line) > self.MAX_UNREAD_BYTES:
            self.abort()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except ValueError:
            log.error("a process of this gateway speaks no JSON: %.100r", line)
            self.abort()
            return
        if self.is_open:
            self.on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.on_lost()


def _encode_default(value: object) -> list[Any]:
    """orjson takes no tuples with names."""
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError
