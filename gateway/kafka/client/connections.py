"""Share connections to brokers: one for each broker and role.

Kafka answers the requests of one connection in order, so a fetch that waits for records would hold
up everything behind it. Therefore the live tail, control requests, lookups by time, catch-up reads
and writes have a connection each. aiokafka's connection brings TCP, TLS, SASL and the correlation
of answers. Its client is not used: it connects to all brokers under one lock, so that a frozen
broker would hold up the others.

A failure starts a backoff (see `broker_node`), and requests fail at once while it lasts. A
connection whose broker does not answer in time is closed, since later answers would come behind the
missing one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import inf
from ssl import SSLError
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.background_tasks import start_shared_task, wait_for_shared
from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import BrokerTooOld, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.telemetry.counts import TOO_OLD_CAUSE, BrokerRequestCounts

from .aiokafka_internals import KafkaConnection
from .broker_node import BrokerConnection as BrokerConnection
from .broker_node import BrokerNode, combine_failures, describe_node, public_node_id
from .broker_node import ConnectionRole as ConnectionRole
from .outages import CONNECTION_ERRORS, cause_from_exception, is_unexpected
from .security import Credentials

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

log = logging.getLogger(__name__)

R = TypeVar("R")

CLOSED = "the connections to Kafka are closed"
SPARE_IDLE_TIMEOUT_S = 30.0  # after this an unused spare connection is closed
IDLE_CHECK_INTERVAL_S = 0.1  # between two checks whether a replaced connection is idle
CONNECT_HEDGE_DELAY_S = 0.5  # without an answer to a SYN, until a second attempt is made beside it
_NO_TIMEOUT_MS = 86_400_000  # aiokafka's own timeout leaves the connection open; ours closes it


@dataclass(eq=False)
class Connections:
    """The connections to the brokers of one cluster, by node id and role.

    Created and owned by `Cluster`. Ids below 0 are bootstrap servers. A broker has to be announced
    by `update_addresses` before it can be used, and its connections are closed when it moves. Times
    are in seconds.
    """

    client_id: str = "gateway"
    credentials: Credentials = field(default_factory=Credentials)
    request_timeout: float = 5.0
    idle_timeout: float = 300.0
    create_backoff: Callable[[], Backoff] = lambda: Backoff(1.0, random.random)
    request_counts: Counter[str] = field(default_factory=Counter)
    request_stats: BrokerRequestCounts = field(default_factory=BrokerRequestCounts)
    tracing: Tracing | None = None
    _nodes: dict[int, BrokerNode] = field(default_factory=dict)
    _silent_addresses: set[tuple[tuple[str, int], str]] = field(default_factory=set)  # were logged
    _listeners: list[Callable[[int], None]] = field(default_factory=list)
    _closed: bool = False

    def update_addresses(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        for node, address in addresses.items():
            known = self._nodes.get(node)
            if known is None or known.address != address:
                if known is not None:
                    known.close()
                self._nodes[node] = BrokerNode(node, address, self.create_backoff)

    def add_listener(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call a listener, in the event loop, with the id of a broker where a failure has ended."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def get_retry_time(self, node: int, role: ConnectionRole) -> float | None:
        known = self._nodes.get(node)
        return known.get_retry_time(role) if known is not None else None

    def get_failure(self, node: int) -> KafkaError | None:
        known = self._nodes.get(node)
        return known.failure.error if known is not None and known.failure is not None else None

    def describe_broker(self, node: int) -> str:
        known = self._nodes.get(node)
        return known.name if known is not None else describe_node(node)

    def combine_failures(self, nodes: Iterable[int]) -> KafkaError | None:
        """Return one error for the failures of several brokers; None if none of them fails.

        A bootstrap server is left out if a broker of the same address fails, since it is the same.
        Brokers that fail for the same reason share a sentence; a refused login comes first, because
        it does not go away by itself.
        """
        return combine_failures(self._nodes[node] for node in nodes if node in self._nodes)

    async def probe(self, node: int, request: KafkaRequest[Any]) -> None:
        """Find out whether a broker that failed is back, unless others use it and will notice.

        The request, which any broker must be able to answer, goes over a new connection, since an
        old one says nothing about logins. The answer also ends the failures of roles that nobody
        uses any more.
        """
        if not self._get_node(node).needs_probe():
            return
        connection = await self.connect(node, ConnectionRole.PROBE)
        try:
            await self.send_on(connection, request)
        finally:
            connection.conn.close()

    async def send(
        self,
        node: int,
        role: ConnectionRole,
        request: KafkaRequest[R],
        *,
        timeout: float | None = None,
    ) -> R:
        """Send a request to a broker, connecting first if necessary, and return the answer.

        Raises:
            BrokerUnavailable: The broker cannot be reached, or did not answer in time.
            AuthenticationFailed: The broker and the gateway refused each other's credentials.
            KafkaError: The broker is too old for the request.
        """
        connection = await self.connect(node, role)
        return await self.send_on(connection, request, timeout=timeout)

    async def send_on(
        self,
        connection: BrokerConnection,
        request: KafkaRequest[R],
        *,
        timeout: float | None = None,
    ) -> R:
        """Send a request on a connection from `connect` or `borrow_spare`; see `send`."""
        api = request.API.name
        self.request_counts[api] += 1
        # Loop time decides about backoffs; the clock of metrics and traces is perf_counter.
        sent_at, began = asyncio.get_running_loop().time(), perf_counter()
        seconds = timeout or self.request_timeout
        try:
            # Other requests may replace `connection.conn` while this one waits.
            conn, is_used = connection.conn, connection.is_used
            try:
                response = await connection.send(request, sent_at, seconds)
            except CONNECTION_ERRORS as exc:
                # One that never carried an answer was not closed as idle: the broker is ill.
                is_lost = cause_from_exception(exc) is Cause.CONNECTION and not conn.connected()
                if not is_used or not is_lost:
                    raise
                # A broker closes a connection that is idle or whose session is over. What is sent
                # at that moment was not read, so it is sent again on another one.
                deadline = connection.get_deadline(sent_at, seconds)
                connection = await self._reopen(connection, conn)
                # Others use the new connection, and a timeout would close it.
                if asyncio.get_running_loop().time() >= deadline:
                    self.request_stats.failures[api, Cause.TIMEOUT] += 1
                    raise BrokerUnavailable(
                        f"{connection.broker.name} closed its connection, and the time of the "
                        "request was over before there was another one",
                        node=public_node_id(connection.broker.node), timeout=True,
                    ) from exc  # fmt: skip
                response = await connection.send(request, deadline - seconds, seconds)
        except BrokerTooOld:
            self.request_stats.failures[api, TOO_OLD_CAUSE] += 1
            raise
        except CONNECTION_ERRORS as exc:
            # Answers come in order, so nothing behind a missing one would be answered either.
            connection.conn.close()
            self._observe(connection, api, perf_counter() - began, exc)
            raise connection.broker.record_failure(
                connection.role, exc, sent_at, self.credentials.options, is_connected=True
            ) from exc
        self._observe(connection, api, perf_counter() - began)
        connection.is_used = True
        if connection.broker.record_answer(connection.role):
            self._notify_listeners(connection.broker)
        throttle_s = getattr(response, "throttle_ms", 0) / 1000
        if throttle_s > 0:
            self.request_stats.throttled_seconds += throttle_s
            connection.throttle(throttle_s)
        return response

    async def _reopen(
        self, connection: BrokerConnection, closed: KafkaConnection
    ) -> BrokerConnection:
        """Return an open connection in place of one that the broker has closed.

        A spare is still its borrower's, so it is opened again, once for all its requests.
        """
        if connection.role is not ConnectionRole.SPARE:
            return await self.connect(connection.broker.node, connection.role)
        async with connection.lock:
            if connection.conn is not closed:
                return connection  # another request has replaced it
            broker = self._get_node(connection.broker.node)
            conn = await self._connect_once(connection.role, broker)
            connection.broker.lent_spares.discard(connection)
            connection.broker = broker
            broker.lent_spares.add(connection)
            connection.conn, connection.is_used = conn, False
            connection.renew_at = self._compute_renewal(conn)
        return connection

    def _compute_renewal(self, conn: KafkaConnection) -> float:
        """Return a random loop time within 70 to 90 percent of the session (KIP-368)."""
        session = conn.session_seconds
        if session <= 0:
            return inf
        return asyncio.get_running_loop().time() + session * (0.7 + 0.2 * random.random())

    def _close_when_idle(self, connection: BrokerConnection) -> None:
        draining = connection.broker.draining
        if connection.conn.is_idle or not connection.is_open:
            draining.pop(connection, None)
            connection.conn.close()
        else:
            draining[connection] = asyncio.get_running_loop().call_later(
                IDLE_CHECK_INTERVAL_S, self._close_when_idle, connection
            )

    def _observe(
        self,
        connection: BrokerConnection,
        api: str,
        seconds: float,
        failure: BaseException | None = None,
    ) -> None:
        if failure is None:
            self.request_stats.observe_response(api, seconds)
        else:
            self.request_stats.failures[api, cause_from_exception(failure)] += 1
        if self.tracing is not None:
            node, role = connection.broker.node, connection.role
            self.tracing.record_kafka_request(api, node, role, seconds, failure)

    async def connect(self, node: int, role: ConnectionRole) -> BrokerConnection:
        """Return the connection of a broker and role, opening it if there is none.

        Concurrent calls share one attempt. While the backoff lasts, BrokerUnavailable is raised at
        once, with `retry_after`.
        """
        broker = self._get_node(node)
        connection = broker.connections.get(role)
        if connection is not None and connection.is_open:
            if asyncio.get_running_loop().time() < connection.renew_at:
                return connection
            # Its requests under way are still answered; new ones go to the next connection.
            self._close_when_idle(broker.connections.pop(role))
        attempt = broker.connecting.get(role)
        if attempt is None:
            broker.raise_if_backing_off(role)
            attempt = start_shared_task(self._open_connection(role, broker))
            broker.connecting[role] = attempt
            attempt.add_done_callback(lambda _: broker.connecting.pop(role, None))
        # `BrokerNode.close` cancels the attempt.
        closed = f"{broker.name} moved or the gateway is closing"
        return await wait_for_shared(attempt, BrokerUnavailable(closed, node=public_node_id(node)))

    @asynccontextmanager
    async def borrow_spare(self, node: int) -> AsyncIterator[BrokerConnection]:
        """Lend a connection that nobody else uses within the `with` block.

        It is for requests that the broker holds back, such as JoinGroup. When the block raises it
        is closed, since an answer may still come.
        """
        spare = await self._take_spare(self._get_node(node))
        try:
            yield spare
        except BaseException:
            spare.broker.lent_spares.discard(spare)
            spare.conn.close()
            raise
        spare.broker.lent_spares.discard(spare)
        if spare.is_open and not spare.broker.is_closed:
            spare.broker.spares.append(spare)
        else:
            spare.conn.close()

    async def _take_spare(self, broker: BrokerNode) -> BrokerConnection:
        while broker.spares:
            # The one used last: the others become idle and are closed by aiokafka.
            spare = broker.spares.pop()
            if spare.is_open and asyncio.get_running_loop().time() < spare.renew_at:
                break
            spare.conn.close()
        else:
            broker.raise_if_backing_off(ConnectionRole.SPARE)
            spare = await self._open_connection(ConnectionRole.SPARE, broker)
        broker.lent_spares.add(spare)
        return spare

    async def close(self) -> None:
        """Close all connections, waiting at most 1 s. Later calls raise BrokerUnavailable."""
        self._closed = True
        closing: list[Awaitable[object]] = []
        for broker in self._nodes.values():
            closing += broker.close()
        self._nodes.clear()
        self.credentials.close()
        if closing:
            tasks = [asyncio.ensure_future(awaitable) for awaitable in closing]
            await asyncio.wait(tasks, timeout=1.0)

    def _get_node(self, node: int) -> BrokerNode:
        if self._closed:
            raise BrokerUnavailable(CLOSED, node=public_node_id(node))
        broker = self._nodes.get(node)
        if broker is None:
            raise BrokerUnavailable(
                f"broker {node} is not in the cluster's metadata; refresh it",
                node=public_node_id(node),
            )
        return broker

    async def _open_connection(self, role: ConnectionRole, broker: BrokerNode) -> BrokerConnection:
        conn = await self._connect_once(role, broker)
        connection = BrokerConnection(role, broker, conn, renew_at=self._compute_renewal(conn))
        if role is not ConnectionRole.SPARE:
            broker.connections[role] = connection
        self.request_stats.connects[role] += 1
        return connection

    async def _connect_once(self, role: ConnectionRole, broker: BrokerNode) -> KafkaConnection:
        """Connect to a broker, and record the failure or success.

        An unexpected error needs a backoff, too, and callers only expect a KafkaError.
        """
        started_at = asyncio.get_running_loop().time()
        idle = self.idle_timeout
        if role is ConnectionRole.SPARE:
            idle = min(idle, SPARE_IDLE_TIMEOUT_S)
        try:
            await self.credentials.load_token()
            async with asyncio.timeout(self.request_timeout):
                conn = await self._connect_hedged(broker.address, idle)
        except Exception as exc:
            last = broker.connects.error.__cause__ if broker.connects.error is not None else None
            if is_unexpected(exc) and type(exc) is not type(last):  # not at each attempt
                log.exception("connecting to %s failed unexpectedly", broker.name)
            self.request_stats.connect_failures[cause_from_exception(exc)] += 1
            raise broker.record_failure(
                role, exc, started_at, self.credentials.options, is_connected=False
            ) from exc
        # While this waited, everything may have been closed, or the broker may have moved.
        if broker.is_closed:
            conn.close()
            raise BrokerUnavailable(f"broker {broker.node} moved", node=public_node_id(broker.node))
        if broker.record_connect():
            self._notify_listeners(broker)
        return conn

    async def _connect_hedged(self, address: tuple[str, int], idle: float) -> KafkaConnection:
        """Connect by several attempts side by side, of which the first one that succeeds decides.

        TCP repeats a lost SYN after 1, 3 and 7 s (RFC 6298 2.1, 5.5), so by a single attempt a
        broker that is back after 4 s would be found after 7 s. Of a name with several addresses
        (KIP-302, or IPv6 without a route) each attempt is made to the next one, as in RFC 8305.
        """
        found = await _resolve(*address)
        addresses = deque(sorted(found, key=lambda each: (address, each) in self._silent_addresses))
        attempts: dict[asyncio.Task[object], KafkaConnection] = {}
        try:
            while True:
                # An attempt that is connected is busy with its login or with API versions: another
                # one would not be faster.
                if not any(conn.connected() for conn in attempts.values()):
                    conn = KafkaConnection(
                        *address,
                        client_id=self.client_id,
                        request_timeout_ms=_NO_TIMEOUT_MS,
                        max_idle_ms=int(idle * 1000),
                        **self.credentials(),
                    )
                    conn.pin_address(addresses[0])
                    addresses.rotate(-1)
                    attempts[start_shared_task(conn.connect())] = conn
                done, _ = await asyncio.wait(
                    attempts, timeout=CONNECT_HEDGE_DELAY_S, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    conn = attempts.pop(attempt)
                    error = attempt.exception()
                    if error is None:
                        self._silent_addresses.discard((address, conn.address))
                        return conn
                    # A broker that refuses one attempt to an address refuses the others.
                    if conn.address in addresses:
                        addresses.remove(conn.address)
                    is_refused = isinstance(error, OSError) and not isinstance(error, SSLError)
                    if not addresses or not is_refused:
                        raise error
        finally:
            if len(addresses) > 1:
                self._report_silent(address, attempts.values())
            # All that were not returned, also when the caller's timeout cancels this. Nobody waits
            # for their end: if this were cancelled meanwhile, nobody would close the one returned.
            for attempt, conn in attempts.items():
                attempt.cancel()
                conn.close()

    def _report_silent(self, address: tuple[str, int], conns: Iterable[KafkaConnection]) -> None:
        for conn in conns:
            key = address, conn.address
            if not conn.connected() and key not in self._silent_addresses:
                self._silent_addresses.add(key)
                host, port = address
                log.warning("%s, an address of %s:%d, gives no answer", conn.address, host, port)

    def _notify_listeners(self, broker: BrokerNode) -> None:
        for listener in tuple(self._listeners):
            listener(broker.node)


async def _resolve(host: str, port: int) -> list[str]:
    with suppress(ValueError):  # as most are: without the thread that looks names up
        return [str(ip_address(host))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    return addresses if len(addresses) > 1 else [host]
