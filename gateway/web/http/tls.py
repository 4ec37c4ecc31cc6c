"""Speak TLS on a TCP connection, and hold little for a client that sends or reads nothing more.

The TLS of asyncio and uvloop is not used, since it holds memory without a limit and counts none of
it. It reads into a buffer of 256 KiB per connection and keeps as much again for decryption: 1,000
streams whose clients sent a lot held 600 MiB. It encrypts all that is written, for each client: 150
clients that read nothing held 3 MiB each of a record that they shared. And what it has not
encrypted is lost when the client closes its side, even if the connection is to be closed after it.

In `TlsTransport` all connections read into one buffer, in pieces after each of which what is
complete is decrypted. A piece of what is written is encrypted only while nothing waits in the TCP
transport. The rest waits as it was written, as it does on a connection without TLS, and counts.

Measured with 200 connections, in KB for each (asyncio's TLS, uvloop's, this one on both loops):

    idle stream                            279   45   20
    the same after 1 MiB from its client   606  597   33
    and with an incomplete record          606  597   42, of which 16 count

Handshakes are limited in number, per address and in time. `TlsListener` counts an accepted socket
before anything is created for it. Only an admitted connection gets a transport and TLS state, of
which a handshake that never completes holds 47 KB. A connection above the limit is closed at once
and unread: before the handshake there is no way to say why, and clients reconnect on their own. A
connection counts as a handshake until the head of its first request is complete, beside
`listen.limits`, because a client that completes the handshake and sends no request holds the same
memory. Sockets are accepted here because `create_server` creates a transport before any code of
ours runs, and counting may have to wait for the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from gateway.background_tasks import BackgroundTasks
from gateway.client_memory import ClientMemory, HeldPart
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .limits import ConnectionSlot, LimitReached, PortLimits
from .shared_counts import LimitKind

RECORD_BYTES = 16 * 1024  # a record of TLS holds no more
READ_BYTES = 4 * 1024
"""Bytes that are read at once. OpenSSL keeps a third more for each connection, for good."""
SLICE_BYTES = 8 * 1024
"""Bytes that are encrypted at once, of which as much is kept. Twice as many save a quarter of the
CPU of a large response."""
MAX_UNREAD_BYTES = 4 * SLICE_BYTES  # in the TCP transport: about two slices, and answers of TLS
SHUTDOWN_TIMEOUT_S = 30.0  # from our last byte to the client's, as asyncio has it


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of a TLS connection, between the TCP transport and a protocol.

    It is the protocol of the TCP transport. Its own protocol is connected when the handshake is
    complete; to that it is the transport, which is full when more waits than the protocol's limit.
    """

    __slots__ = (
        "_buffer", "_handshake", "_has_peer_ended", "_high", "_incoming", "_is_blocked",
        "_is_closing", "_is_connected", "_is_full", "_is_partial", "_is_paused", "_low", "_memory",
        "_outgoing", "_protocol", "_timer", "_tls", "_transport", "_waiting", "_waiting_bytes",
    )  # fmt: skip

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        buffer: memoryview,
        memory: ClientMemory,
        handshake: asyncio.Future[None] | None = None,
    ) -> None:
        """Create the transport of a connection that was accepted.

        Args:
            buffer: `READ_BYTES`, which all connections of an event loop may share.
            handshake: Gets a result when the handshake is complete, or an `OSError`.
        """
        self._protocol = protocol
        self._buffer = buffer
        self._memory = memory
        self._handshake = handshake
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport
        self._is_connected = False  # the handshake is complete
        self._is_partial = False  # a part of a record was received
        self._is_paused = False  # the protocol wants no more
        self._is_blocked = False  # bytes wait in the TCP transport
        self._is_full = False  # the protocol was told so
        self._is_closing = False  # to be closed once all is written
        self._has_peer_ended = False  # the client has closed its side
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[bytes | memoryview] | None = None  # None for most, which saves memory
        self._waiting_bytes = 0
        self._high = self._low = 0

    # The protocol of the TCP transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.set_write_buffer_limits()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._has_peer_ended:
            return
        self._incoming.write(self._buffer[:nbytes])
        if self._is_connected:
            self._read()
        else:
            self._continue_handshake()

    def _continue_handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as exc:
            self._flush()  # the alert that says why
            self._end_handshake(exc)
            self._transport.close()
        else:
            self._flush()
            self._is_connected = True
            self._protocol.connection_made(self)
            self._end_handshake(None)
            self._read()

    def _end_handshake(self, exc: OSError | None) -> None:
        handshake, self._handshake = self._handshake, None
        if handshake is None or handshake.done():
            return
        if exc is None:
            handshake.set_result(None)
        else:
            handshake.set_exception(exc)

    def _read(self) -> None:
        """Decrypt what is complete. That of a connection which is closing is dropped."""
        is_partial = False
        while (self._incoming.pending or self._tls.pending()) and not self._is_paused:
            try:
                data = self._tls.read(RECORD_BYTES)
            except ssl.SSLWantReadError:
                is_partial = True
                break
            except ssl.SSLZeroReturnError:  # instead of no data, once our side is closed
                data = b""
            except ssl.SSLError:
                self._flush()
                self.abort()
                return
            if not data:
                self._end_reading()
                break
            if not self.is_closing():
                self._protocol.data_received(data)
        self._flush()
        if is_partial is not self._is_partial:
            self._count_partial(is_partial)

    def _count_partial(self, is_partial: bool) -> None:
        """Count the buffer of a record, which OpenSSL frees when the record is complete."""
        self._is_partial = is_partial
        if is_partial and not self._transport.is_closing():
            self._memory.hold(HeldPart.RECEIVED, self, RECORD_BYTES)
        else:
            self._memory.release(HeldPart.RECEIVED, self)

    def release_memory(self) -> None:
        """Disconnect the client. See `Holder`."""
        self.abort()

    def _flush(self) -> None:
        """Send what TLS says by itself, to a client that reads some of it."""
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
            # A client may ask for new keys without end, and never read the answers.
            if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                self.abort()

    def eof_received(self) -> bool:
        """Return whether the TCP connection stays open, to write what waits."""
        if not self._is_connected:
            self._end_handshake(ConnectionResetError("the client has left"))
            return False
        self._end_reading()
        return self._waiting is not None

    def _end_reading(self) -> None:
        """Close the connection, whose client has closed its side: TLS has no halves."""
        if self._has_peer_ended:
            return
        self._has_peer_ended = True
        if not self._is_closing:
            self._protocol.eof_received()
            self.close()
        elif self._waiting is None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_waiting()
        self._memory.release(HeldPart.RECEIVED, self)
        if self._timer is not None:
            self._timer.cancel()
        self._end_handshake(ConnectionResetError("the connection is lost"))
        protocol, self._protocol = self._protocol, asyncio.Protocol()  # which breaks a cycle
        if self._is_connected:
            protocol.connection_lost(exc)

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
        if not data or self.is_closing():
            return
        if self._is_blocked or self._waiting is not None:
            self._add_waiting(bytes(data) if isinstance(data, bytearray) else data)
        elif len(data) <= SLICE_BYTES:
            self._write_slice(data)
        else:
            self._write_slices(memoryview(data))

    def _write_slice(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError:
            self.abort()
        else:
            self._transport.write(self._outgoing.read())

    def _write_slices(self, data: memoryview) -> None:
        start = 0
        self._waiting_bytes += len(data)  # what is left counts when a slice makes it full
        while start < len(data) and not self._is_blocked and not self._transport.is_closing():
            piece = data[start : start + SLICE_BYTES]
            start += len(piece)
            self._waiting_bytes -= len(piece)
            self._write_slice(piece)
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
        was_waiting, self._waiting = self._waiting is not None, None
        if not self._is_closing:
            self._update_full()
        elif was_waiting:
            self._end_writing()

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
        """How many of the waiting bytes are copies: at most about two slices."""
        return self._transport.get_write_buffer_size()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self.copied_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        # uvloop sends small writes of a turn together, if its limit lets it.
        self._transport.set_write_buffer_limits(high=min(self._high, SLICE_BYTES))
        # It may be full for a protocol before this one, which only a later call may undo.
        if not self._is_full:
            self._update_full()

    def close(self) -> None:
        """Close the connection once all is written."""
        if not self._is_closing:
            self._is_closing = True
            if self._waiting is None:
                self._end_writing()

    def _end_writing(self) -> None:
        """Close our side, and the connection when the client has closed its own.

        Until then what it sends is read: if the connection were closed at once, the kernel would
        answer that with a reset, and the client would lose what it has not read.
        """
        if self._transport.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # the client has not closed its side
            self._tls.unwrap()
        self._flush()
        if self._has_peer_ended:
            self._transport.close()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SHUTDOWN_TIMEOUT_S, self._transport.abort)
        self.resume_reading()

    def abort(self) -> None:
        self._is_closing = True
        self._drop_waiting()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def is_reading(self) -> bool:
        return not self._is_paused and self._transport.is_reading()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._read)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def can_write_eof(self) -> bool:
        return False  # TLS has no half-close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._transport.get_extra_info(name, default)


log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0  # as for the head of a request

MAX_ACCEPTS_PER_TURN = 100  # connections accepted in one turn of the loop
ACCEPT_PAUSE_S = 1.0  # after the process ran out of file descriptors or memory
EXHAUSTED_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

REASON_TIMEOUT = "timeout"
REASON_FAILED = "failed"
# Metrics name the limit as the YAML does, whether it counts handshakes or connections.
_LIMIT_REASONS = {
    LimitKind.HANDSHAKES: LimitKind.ALL,
    LimitKind.HANDSHAKES_OF_ADDRESS: LimitKind.ADDRESS,
}
REASONS = (*_LIMIT_REASONS.values(), REASON_TIMEOUT, REASON_FAILED)


@dataclass(eq=False)
class TlsListener:
    """A listening socket, and its connections that have not sent a request yet.

    It stands in for an `asyncio.Server` in `EdgeServer`. It counts handshakes by `PortLimits`, so
    that several workers share the limits.

    Attributes:
        pending_handshakes: How many admitted connections have not completed the handshake and the
            head of their first request.
        refused_counts: How many connections were closed in the handshake, by reason: `connections`
            and `perAddress` for one above the limit, `timeout`, and `failed` (the peer did not
            speak TLS, disconnected, or its certificate is not trusted).
    """

    _listening_socket: socket.socket
    _context: ssl.SSLContext
    _limits: PortLimits
    _client_memory: ClientMemory = field(default_factory=ClientMemory)
    timeout_s: float = HANDSHAKE_TIMEOUT_S
    pending_handshakes: int = 0
    refused_counts: Counter[str] = field(default_factory=Counter)
    _read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_BYTES)))
    _handshakes: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(log))
    _retry_timer: asyncio.TimerHandle | None = None
    _is_exhausted: bool = False  # the last accept failed for want of descriptors or memory

    def start(self, create_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._create_protocol = create_protocol
        self._retry_timer = None
        self._listening_socket.setblocking(False)
        self._loop.add_reader(self._listening_socket.fileno(), self._accept_connections)

    def close(self) -> None:
        """Stop accepting, and close the connections whose TLS handshake is not complete."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._loop.remove_reader(self._listening_socket.fileno())
        self._handshakes.cancel()

    async def wait_closed(self) -> None:
        await self._handshakes.wait()

    def collect_metrics(self, figures: MetricSamples) -> None:
        figures.add(catalog.TLS_HANDSHAKES, self.pending_handshakes)
        figures.add_counts(catalog.TLS_HANDSHAKES_REFUSED, self.refused_counts)
        figures.add_zeros(catalog.TLS_HANDSHAKES_REFUSED, REASONS)

    def _accept_connections(self) -> None:
        """Accept the connections of the backlog. Called by the loop when the socket is readable."""
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                connection, peer = self._listening_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in EXHAUSTED_ERRNOS:
                    raise
                if not self._is_exhausted:
                    log.error("no connection can be accepted for now: %s", exc)
                self._is_exhausted = True
                # The socket stays readable, so the loop would call this again at once, and spin.
                self._loop.remove_reader(self._listening_socket.fileno())
                self._retry_timer = self._loop.call_later(
                    ACCEPT_PAUSE_S, self.start, self._create_protocol
                )
                return
            self._is_exhausted = False
            if not self._limits.leaves_descriptors(connection.fileno()):
                connection.close()
                continue
            connection.setblocking(False)
            address = peer[0] if isinstance(peer, tuple) else ""  # none on a Unix socket
            self._handshakes.start(self._run_handshake(connection, address), "a TLS handshake")

    async def _run_handshake(self, connection: socket.socket, address: str) -> None:
        """Complete the handshake of an accepted socket, or close it."""
        try:
            slot = await self._limits.reserve_handshake(address)
        except BaseException as exc:
            connection.close()
            if not isinstance(exc, LimitReached):
                raise
            self.refused_counts[_LIMIT_REASONS[exc.limit]] += 1
            return
        self.pending_handshakes += 1
        protocol = self._create_protocol()
        end_handshake: Callable[[], None] = partial(self._end_handshake, slot)
        reports_head = hasattr(protocol, "on_handshake_done")
        if reports_head:
            own_protocol: Any = protocol  # a `GatewayProtocol`
            # It calls this once: when its first head is complete, or its connection is lost.
            own_protocol.on_handshake_done = end_handshake
            end_handshake = own_protocol.finish_handshake
        handshake = self._loop.create_future()
        transport = TlsTransport(
            protocol, self._context, self._read_buffer, self._client_memory, handshake
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                tcp, _ = await self._loop.connect_accepted_socket(lambda: transport, connection)
                try:
                    await handshake
                except asyncio.CancelledError:  # also after the timeout
                    tcp.abort()
                    raise
        except OSError as exc:  # ssl.SSLError and TimeoutError are, too
            is_timeout = isinstance(exc, TimeoutError)
            self.refused_counts[REASON_TIMEOUT if is_timeout else REASON_FAILED] += 1
            # The protocol was not connected, so `connection_lost` does not give the slot back.
            end_handshake()
        except BaseException:
            end_handshake()
            raise
        else:
            if not reports_head:  # it is uvicorn's own (`edge`)
                end_handshake()

    def _end_handshake(self, slot: ConnectionSlot) -> None:
        self.pending_handshakes -= 1
        slot()
