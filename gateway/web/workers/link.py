"""Messages between the processes of one gateway: JSON arrays, one a line, over a Unix socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import orjson

log = logging.getLogger(__name__)

Heard = Callable[[list[Any]], None]


class Link(asyncio.Protocol):
    """One end of a connection. Whoever leaves too much unread is cut off: it connects again, and
    says anew what the others must know; nobody waits for it.

    hear: called with every message. lost: called once, when the connection is over.
    """

    UNREAD = 32 * 1024 * 1024  # bytes; lists of 10,000 clients are a few MB

    def __init__(self, hear: Heard, lost: Callable[[], None]) -> None:
        self.hear = hear
        self.lost = lost
        self._transport: asyncio.Transport | None = None
        self._begun = bytearray()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        """Never waits; on a connection that is over it is forgotten. Raises TypeError for what
        is no JSON."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(orjson.dumps(message, _plain, orjson.OPT_NON_STR_KEYS) + b"\n")
        if transport.get_write_buffer_size() > self.UNREAD:
            log.warning("a process of this gateway does not read what the others say; cut off")
            transport.abort()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        ended, newline, begun = data.rpartition(b"\n")
        if newline:
            lines = bytes(self._begun + ended).split(b"\n")
            self._begun.clear()
            for line in lines:
                self._take(line)
        self._begun += begun
        if len(self._begun) > self.UNREAD:
            self.cut()

    def _take(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except ValueError:
            log.error("a process of this gateway speaks no JSON: %.100r", line)
            self.cut()
            return
        if self.open:
            self.hear(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost()


def _plain(value: object) -> list[Any]:
    """orjson takes no tuples with names."""
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError
