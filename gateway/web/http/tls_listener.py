"""The listening socket of a port with TLS, which bounds handshakes in number, per address and time.

An accepted connection is counted before anything is made of it: only one that is admitted gets a
transport and TLS state, of which a handshake that is never finished would hold 57 to 95 KB. One too
many is closed at once, unread: before the handshake there is no way to say why, and its client
comes back by itself. A connection counts until the head of its first request is complete, and is
one of `listen.limits` from there on: whoever finishes the handshake and asks for nothing holds the
same memory.

Why the sockets are accepted here: `create_server(ssl=...)` creates the TLS state before any code of
ours runs, and `start_tls` in `connection_made` comes too late for uvloop, which starts to read
right after that, however its transport was paused.
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

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.routing.connection_counts import LimitKind
from gateway.web.routing.limits import ConnectionSlot, LimitReached, Limits, normalize_address

from .transport import GatewayProtocol

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
"""For a handshake, as for the head of a request."""

MAX_ACCEPTS_PER_TURN = 100  # connections in one turn of the loop
ACCEPT_PAUSE_S = 1.0  # without a file descriptor or memory for one more connection
EXHAUSTED_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

REASON_TIMEOUT = "timeout"
REASON_FAILED = "failed"
_LIMIT_REASONS = {
    LimitKind.HANDSHAKES: LimitKind.ALL,
    LimitKind.HANDSHAKES_OF_ADDRESS: LimitKind.ADDRESS,
}


class TlsListener:
    """A listening socket and the connections from it that have yet to ask for something.

    Created by whoever serves the port, and started and closed by the server (`EdgeServer`), to
    which it is as an `asyncio.Server`. What it counts is in the ledger of `Limits`, so that several
    workers share the bounds.

    Attributes:
        under_way: Connections whose handshake, or first request head, is not complete.
        refused: Connections that were closed in the handshake, by reason: `connections` and
            `perAddress` for one too many, `timeout`, `failed` (what came is no TLS, or the client
            left, or its certificate is not trusted).
    """

    def __init__(
        self,
        listening_socket: socket.socket,
        context: ssl.SSLContext,
        limits: Limits,
        *,
        port: str = "",
        is_proxy: Callable[[str], bool] = lambda peer: False,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """Accept nothing yet.

        Args:
            listening: Stays its owner's, who closes it.
            context: Of the server.
            limits: Count the connections.
            port: Names the port where a process has several; each has the bounds to itself.
            is_proxy: Whether an address is that of a proxy, behind which there are many clients:
                it has no bound of its own.
            timeout: For one handshake, in seconds.
        """
        self._listening_socket = listening_socket
        self._context = context
        self._limits = limits
        self._port = port
        self._is_proxy = is_proxy
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry_timer: asyncio.TimerHandle | None = None
        self.pending_handshakes = 0
        self.refused_counts: Counter[str] = Counter()

    def start(self, create_protocol: Callable[[], GatewayProtocol]) -> None:
        """Accept connections, and create a protocol for each that is admitted."""
        self._loop = asyncio.get_running_loop()
        self._create_protocol = create_protocol
        self._retry_timer = None
        self._listening_socket.setblocking(False)
        self._loop.add_reader(self._listening_socket.fileno(), self._accept_connections)

    def close(self) -> None:
        """Accept no more, and close the connections whose handshake is under way."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._loop.remove_reader(self._listening_socket.fileno())
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def collect_metrics(self, figures: MetricSamples) -> None:
        """Add the figures of this port."""
        figures.add(catalog.TLS_HANDSHAKES, self.pending_handshakes)
        figures.add_counts(catalog.TLS_HANDSHAKES_REFUSED, self.refused_counts)

    def _accept_connections(self) -> None:
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                connection, peer = self._listening_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in EXHAUSTED_ERRNOS:
                    raise
                log.error("no connection can be accepted for now: %s", exc)
                self._loop.remove_reader(self._listening_socket.fileno())
                self._retry_timer = self._loop.call_later(
                    ACCEPT_PAUSE_S, self.start, self._create_protocol
                )
                return
            connection.setblocking(False)
            address = peer[0] if isinstance(peer, tuple) else ""
            task = self._loop.create_task(self._run_handshake(connection, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_handshake(self, connection: socket.socket, address: str) -> None:
        """Make a connection of requests of an accepted socket, or close it."""
        try:
            place = await self._limits.reserve_slot(self._build_limit_keys(address))
        except BaseException as exc:
            connection.close()
            if not isinstance(exc, LimitReached):
                raise
            self.refused_counts[_LIMIT_REASONS[exc.limit]] += 1
            return
        self.pending_handshakes += 1
        protocol = self._create_protocol()
        protocol.on_handshake_done = partial(self._end_handshake, place)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError as exc:  # also what the ssl module raises
            # Of this kind is only what asyncio raises when the time is over.
            is_late = isinstance(exc, ConnectionAbortedError)
            self.refused_counts[REASON_TIMEOUT if is_late else REASON_FAILED] += 1
            protocol.finish_handshake()
        except BaseException:
            protocol.finish_handshake()
            raise

    def _build_limit_keys(self, address: str) -> list[str]:
        keys = [LimitKind.HANDSHAKES.build_key(self._port)]
        if address and not self._is_proxy(address):
            keys.append(
                LimitKind.HANDSHAKES_OF_ADDRESS.build_key(
                    f"{self._port} {normalize_address(address)}"
                )
            )
        return keys

    def _end_handshake(self, slot: ConnectionSlot) -> None:
        self.pending_handshakes -= 1
        slot()
