"""Write to a TLS connection in pieces, so that what waits is not encrypted ahead of time.

The transports of uvloop and asyncio encrypt all that they are written, for each client, and pass it
on to the TCP transport below. That one buffers it without a limit of its own and does not count it:
150 clients that read nothing held 3 MiB each of a record that they shared. Here a piece is
encrypted only while the TCP transport has few bytes. The rest waits as it was written, as it does
on a connection without TLS, and counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

SLICE_BYTES = 16 * 1024  # a record of TLS holds no more
MAX_COPIED_BYTES = 64 * 1024 + 2 * SLICE_BYTES
"""Bytes that are encrypted at most and wait: the TCP transport's limit, a piece that exceeds it,
and one that TLS keeps back from it."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a TLS connection, between the loop's transport and a protocol.

    `TlsListener` creates it for each connection, as the protocol of the loop's transport. To its
    own protocol it is the transport; it is full when more waits than the protocol's limit.

    Attributes:
        copied_bytes: The upper bound of how many of the waiting bytes are copies.
    """

    __slots__ = (
        "_high", "_is_blocked", "_is_closing", "_is_full", "_is_limited", "_low", "_protocol",
        "_transport", "_waiting", "_waiting_bytes",
    )  # fmt: skip

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._transport: asyncio.Transport
        self._is_blocked = False  # the transport below accepts nothing for now
        self._is_full = False  # the protocol was told so
        self._is_limited = False  # the transport below calls when it accepts nothing
        self._is_closing = False  # to be closed once all is written
        self._waiting: deque[bytes | memoryview] | None = None  # None for most, which saves memory
        self._waiting_bytes = 0
        self._high = self._low = 0

    # The protocol of the loop's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.set_write_buffer_limits()
        self._protocol.connection_made(self)

    def _limit_transport(self) -> None:
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=1)  # it calls at its limit, not above it

    def data_received(self, data: bytes) -> None:
        if not self._is_limited:
            self._is_limited = True
            # Not before the last messages of the handshake are sent, for which it would pause.
            asyncio.get_running_loop().call_soon(self._limit_transport)
        if not self._is_closing:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_waiting()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._update_full()

    def resume_writing(self) -> None:
        self._is_blocked = False
        # asyncio would call `connection_lost` twice if a write failed within this call.
        asyncio.get_running_loop().call_soon(self._write_waiting)

    # The transport of the protocol.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes, or keep them for later. Those of a closing connection are dropped."""
        if self._is_closing:
            return
        if self._is_blocked or self._waiting is not None:
            self._add_waiting(bytes(data) if isinstance(data, bytearray) else data)
        elif len(data) <= SLICE_BYTES:
            self._transport.write(data)
        else:
            self._write_slices(memoryview(data))

    def _write_slices(self, data: memoryview) -> None:
        start = 0
        self._waiting_bytes += len(data)  # what is left counts when a slice makes it full
        while start < len(data) and not self._is_blocked and not self._transport.is_closing():
            piece = data[start : start + SLICE_BYTES]
            start += len(piece)
            self._waiting_bytes -= len(piece)
            self._transport.write(piece)
        if start < len(data) and not self._transport.is_closing():
            self._waiting = self._waiting or deque()
            self._waiting.appendleft(data[start:])
            self._update_full()

    def _add_waiting(self, data: bytes | memoryview) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._update_full()

    def _write_waiting(self) -> None:
        """Write the waiting bytes, as the transport below accepts more."""
        while self._waiting and not self._is_blocked:
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._write_slices(memoryview(data))
        if self._waiting:
            return
        self._waiting = None
        if self._is_closing:
            self._transport.close()
        else:
            self._update_full()

    def _drop_waiting(self) -> None:
        self._waiting, self._waiting_bytes, self._is_full = None, 0, False

    def _update_full(self) -> None:
        size = self.get_write_buffer_size()
        if not self._is_full and size > self._high:
            self._is_full = True
            self._protocol.pause_writing()
        elif self._is_full and size <= self._low:
            self._is_full = False
            self._protocol.resume_writing()

    @property
    def copied_bytes(self) -> int:
        return MAX_COPIED_BYTES if self._is_blocked else self._transport.get_write_buffer_size()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self.copied_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        # It may be full for a protocol before this one, which only a later call may undo.
        if not self._is_full:
            self._update_full()

    def close(self) -> None:
        """Close the connection once all is written."""
        if self._waiting is None:
            self._transport.close()
        else:
            self._is_closing = True  # reading goes on, as asyncio's TLS notices no EOF otherwise

    def abort(self) -> None:
        self._drop_waiting()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def can_write_eof(self) -> bool:
        return False  # TLS has no half-close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
