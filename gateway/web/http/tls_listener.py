"""Accept TLS connections with limits on handshakes: in number, per address and in time.

An accepted socket is counted before anything is created for it. Only an admitted connection gets a
transport and TLS state, of which a handshake that never completes holds 47 KB. A connection
above the limit is closed at once and unread: before the handshake there is no way to say why, and
clients reconnect on their own. A connection counts as a handshake until the head of its first
request is complete, beside `listen.limits`, because a client that completes the handshake and sends
no request holds the same memory.

Sockets are accepted here because `create_server` creates a transport before any code of ours runs,
and counting may have to wait for the supervisor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from gateway.background_tasks import BackgroundTasks
from gateway.client_memory import ClientMemory
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.routing.limits import ConnectionSlot, LimitReached, PortLimits
from gateway.web.routing.shared_counts import LimitKind

from .tls_transport import READ_BYTES, TlsTransport

if TYPE_CHECKING:
    from .transport import GatewayProtocol

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

    def __init__(
        self,
        listening_socket: socket.socket,
        context: ssl.SSLContext,
        limits: PortLimits,
        client_memory: ClientMemory | None = None,
        *,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """Prepare a listener, which accepts nothing until it is started."""
        self._listening_socket = listening_socket
        self._context = context
        self._limits = limits
        self._client_memory = client_memory or ClientMemory()
        self._timeout_s = timeout_s
        self._read_buffer = memoryview(bytearray(READ_BYTES))
        self._handshakes = BackgroundTasks(log)
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_exhausted = False  # the last accept failed for want of descriptors or memory
        self.pending_handshakes = 0
        self.refused_counts: Counter[str] = Counter()

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
            own_protocol = cast("GatewayProtocol", protocol)
            # It calls this once: when its first head is complete, or its connection is lost.
            own_protocol.on_handshake_done = end_handshake
            end_handshake = own_protocol.finish_handshake
        handshake = self._loop.create_future()
        transport = TlsTransport(
            protocol, self._context, self._read_buffer, self._client_memory, handshake
        )
        try:
            async with asyncio.timeout(self._timeout_s):
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
