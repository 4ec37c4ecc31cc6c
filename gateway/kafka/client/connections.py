"""Connections to brokers: shared, one for each broker and role.

Kafka answers the requests of one connection one after the other, so a fetch that waits for
records would hold up everything behind it: the live tail, control requests, catch-up reading
and writing have a connection each. aiokafka brings TCP, TLS, SASL and correlation; what its
client does above that (one lock for connecting to all brokers) is left out: a frozen
broker holds up nobody else, here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.telemetry.counts import BrokerRequestCounts
from gateway.telemetry.log_context import create_detached_task

from .failures import (
    CONNECTION_ERRORS,
    cause_from_exception,
    format_error,
    is_caller_cancelled,
    suggest_listener_setting,
)
from .security import Credentials, KafkaConnection

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

R = TypeVar("R")

SPARE_IDLE_TIMEOUT_S = 30.0  # seconds after which a spare connection is closed
IDLE_CHECK_INTERVAL_S = 0.1  # between two looks whether a connection may be closed
CONNECT_HEDGE_DELAY_S = (
    0.5  # seconds without TCP's answer after which it is tried once more beside that
)
_NO_TIMEOUT_MS = 86_400_000  # aiokafka's own timeout leaves the connection open; ours closes it


class ConnectionRole(StrEnum):
    TAIL = "tail"
    FRESH = "fresh"  # partitions that came while the tail's fetch was waiting for records
    CONTROL = "control"
    CATCHUP = "catchup"
    PRODUCE = "produce"
    GROUP = "group"  # heartbeats and commits of all members whose coordinator it is
    SPARE = "spare"  # one of several, lent for a request that the broker may hold back


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """One open connection.

    throttled_until: the broker answers late until then, without being ill; loop time.
    renew_at: when it is to be replaced, since its session ends soon; loop time.
    is_used:  a request was answered on it.
    lock:     for who puts another connection in the place of a closed one.
    """

    node: int
    role: ConnectionRole
    conn: KafkaConnection
    throttled_until: float = 0.0
    renew_at: float = inf
    is_used: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Of each api key, the lowest and highest version that the broker speaks."""
        versions: Mapping[int, tuple[int, int]] = self.conn._versions
        return versions

    @property
    def is_open(self) -> bool:
        return bool(self.conn.connected())

    def should_replace(self, now: float) -> bool:
        """Return whether its session ends so soon that no request should be begun on it."""
        return now >= self.renew_at


@dataclass(slots=True)
class _BrokerNode:
    address: tuple[str, int]
    backoff: Backoff
    failed_at: float = -1.0
    retry_at: float | None = None
    failure: KafkaError | None = None
    has_answered: bool = False
    connections: dict[ConnectionRole, BrokerConnection] = field(default_factory=dict)
    connecting: dict[ConnectionRole, asyncio.Task[BrokerConnection]] = field(default_factory=dict)
    spares: list[BrokerConnection] = field(default_factory=list)
    lent_spares: set[BrokerConnection] = field(default_factory=set)


def _create_backoff() -> Backoff:
    return Backoff(max_delay=1.0, random=random.random)


class Connections:
    """Links to brokers by node id; ids below 0 are bootstrap servers.

    credentials:     keyword arguments of a connection, asked at every connect; see `security`.
    request_timeout: seconds until a request without an answer closes its connection.
    idle:            seconds after which an unused connection is closed.
    backoff:         makes the delays of one broker's reconnects.
    """

    def __init__(
        self,
        *,
        client_id: str = "gateway",
        credentials: Credentials = dict,
        request_timeout: float = 5.0,
        idle_timeout: float = 300.0,
        create_backoff: Callable[[], Backoff] = _create_backoff,
    ) -> None:
        self.request_timeout = request_timeout
        self.request_counts: Counter[str] = Counter()
        self.request_stats = BrokerRequestCounts()
        self.tracing: Tracing | None = None
        self._client_id = client_id
        self._credentials = credentials
        self._protocol = "PLAINTEXT"
        self._idle_timeout = idle_timeout
        self._create_backoff = create_backoff
        self._nodes: dict[int, _BrokerNode] = {}
        self._listeners: list[Callable[[int], None]] = []
        self._closed = False

    def update_addresses(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Where brokers are. One that moved is connected to afresh; others stay known."""
        for node, address in addresses.items():
            known = self._nodes.get(node)
            if known is None or known.address != address:
                if known is not None:
                    self._close_node(known)
                self._nodes[node] = _BrokerNode(address, self._create_backoff())

    def add_listener(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Have it called with each broker that answers again after a failure; the result ends
        that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def get_retry_time(self, node: int) -> float | None:
        """Loop time before which no connection to the broker is tried, None if it may be."""
        known = self._nodes.get(node)
        return known.retry_at if known is not None else None

    def get_failure(self, node: int) -> KafkaError | None:
        """Return why a broker cannot be reached now, None where it can."""
        known = self._nodes.get(node)
        return known.failure if known is not None and known.retry_at is not None else None

    async def send(
        self,
        node: int,
        role: ConnectionRole,
        request: KafkaRequest[R],
        *,
        timeout: float | None = None,
    ) -> R:
        """The broker's answer. `within` in seconds, in place of `request_timeout`.

        Raises BrokerUnavailable, AuthenticationFailed, or KafkaError where the broker is too
        old for the request.
        """
        link = await self.connect(node, role)
        return await self.send_on(link, request, timeout=timeout)

    async def send_on(
        self,
        connection: BrokerConnection,
        request: KafkaRequest[R],
        *,
        timeout: float | None = None,
    ) -> R:
        """As `send`, on a link already there."""
        self.request_counts[request.NAME] += 1
        started, began = asyncio.get_running_loop().time(), perf_counter()
        # A throttled broker answers late without being ill (KIP-219).
        wait = (timeout or self.request_timeout) + max(0.0, connection.throttled_until - started)
        try:
            answer = await self._send_or_reopen(connection, request, wait)
        except CONNECTION_ERRORS as exc:
            connection.conn.close()
            self.request_stats.failures[request.NAME, cause_from_exception(exc)] += 1
            self._trace(connection, request.NAME, began, exc)
            raise self._on_failure(connection.node, exc, started) from exc
        self.request_stats.observe_response(request.NAME, perf_counter() - began)
        self._trace(connection, request.NAME, began)
        self._on_success(connection, getattr(answer, "throttle_ms", 0))
        return answer

    async def _send_or_reopen(
        self, connection: BrokerConnection, request: KafkaRequest[R], timeout: float
    ) -> R:
        """Return the answer. A request that comes when the broker has just closed the connection,
        as idle or as its session is over, is sent once more on another one: it was not read."""
        conn, is_used = connection.conn, connection.is_used
        ends = asyncio.get_running_loop().time() + timeout
        try:
            return await _run_within(timeout, lambda: conn.send(request))
        except CONNECTION_ERRORS as exc:
            if not is_used or conn.connected() or cause_from_exception(exc) is not Cause.CONNECTION:
                raise
        await self._reopen(connection, conn)
        left = max(0.0, ends - asyncio.get_running_loop().time())
        return await _run_within(left, lambda: connection.conn.send(request))

    async def _reopen(self, connection: BrokerConnection, closed: KafkaConnection) -> None:
        """Put another connection in the place of a closed one; once for all whose requests were
        on it. Raises what `_connected` raises, and KafkaError."""
        async with connection.lock:
            if connection.conn is not closed:
                return
            known, idle = self._get_node(connection.node), self._get_idle_timeout(connection.role)
            conn = await _run_within(
                self.request_timeout, lambda: self._connect_hedged(known.address, idle)
            )
            if self._closed or self._nodes.get(connection.node) is not known:
                conn.close()
                raise BrokerUnavailable(
                    f"broker {connection.node} moved", node=_public_node_id(connection.node)
                )
            connection.conn, connection.is_used, connection.renew_at = (
                conn,
                False,
                self._compute_renewal(conn),
            )

    def _compute_renewal(self, conn: KafkaConnection) -> float:
        """Return when a connection is to be replaced: after 0.7 to 0.9 of its session, so that not
        all are at once."""
        session = conn.session_seconds
        if session <= 0:
            return inf
        return asyncio.get_running_loop().time() + session * (0.7 + 0.2 * random.random())

    def _close_when_idle(self, connection: BrokerConnection) -> None:
        """Close a connection once what is under way on it is answered."""
        if connection.conn.is_idle or not connection.is_open:
            connection.conn.close()
        else:
            asyncio.get_running_loop().call_later(
                IDLE_CHECK_INTERVAL_S, self._close_when_idle, connection
            )

    def _trace(
        self,
        connection: BrokerConnection,
        api: str,
        began: float,
        failure: BaseException | None = None,
    ) -> None:
        if self.tracing is not None:
            took = perf_counter() - began
            self.tracing.record_kafka_request(api, connection.node, connection.role, took, failure)

    async def connect(self, node: int, role: ConnectionRole) -> BrokerConnection:
        """The link of a broker and role; concurrent calls share one attempt.

        Raises BrokerUnavailable at once, with `retry_after`, while the broker's delay runs.
        """
        known = self._get_node(node)
        link = known.connections.get(role)
        if link is not None and link.is_open:
            if not link.should_replace(asyncio.get_running_loop().time()):
                return link
            self._close_when_idle(known.connections.pop(role))
        attempt = known.connecting.get(role)
        if attempt is None:
            self._raise_if_backing_off(node, known)
            attempt = create_detached_task(self._open_connection(node, role, known))
            known.connecting[role] = attempt
            attempt.add_done_callback(lambda done: _on_connected(known, role, done))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if is_caller_cancelled(attempt):
                raise  # the attempt goes on for others
            raise BrokerUnavailable(
                f"{self._describe_node(node)} moved or the gateway is closing",
                node=_public_node_id(node),
            ) from None

    @asynccontextmanager
    async def borrow_spare(self, node: int) -> AsyncIterator[BrokerConnection]:
        """A link that is nobody else's in the block: for requests that the broker holds back.

        Kept for the next one after it, closed where the block failed: an answer is still to come.
        Raises as `connect` does.
        """
        known = self._get_node(node)
        link = await self._take_spare(node, known)
        try:
            yield link
        except BaseException:
            known.lent_spares.discard(link)
            link.conn.close()
            raise
        known.lent_spares.discard(link)
        if self._nodes.get(node) is known and not self._closed and link.is_open:
            known.spares.append(link)
        else:
            link.conn.close()

    async def _take_spare(self, node: int, known: _BrokerNode) -> BrokerConnection:
        while known.spares:
            link = known.spares.pop()  # the last one: the others become idle, and are closed
            if link.is_open and not link.should_replace(asyncio.get_running_loop().time()):
                break
            link.conn.close()
        else:
            self._raise_if_backing_off(node, known)
            link = await self._open_connection(node, ConnectionRole.SPARE, known)
        known.lent_spares.add(link)
        return link

    async def close(self) -> None:
        """Close everything; later calls raise BrokerUnavailable."""
        self._closed = True
        ending: list[Awaitable[object]] = []
        for known in self._nodes.values():
            ending += self._close_node(known)
        self._nodes.clear()
        if ending:
            tasks = [asyncio.ensure_future(one) for one in ending]
            await asyncio.wait(tasks, timeout=1.0)

    def _get_node(self, node: int) -> _BrokerNode:
        if self._closed:
            raise BrokerUnavailable(
                "the connections to Kafka are closed", node=_public_node_id(node)
            )
        known = self._nodes.get(node)
        if known is None:
            raise BrokerUnavailable(
                f"broker {node} is not in the cluster's metadata; refresh it",
                node=_public_node_id(node),
            )
        return known

    def _raise_if_backing_off(self, node: int, known: _BrokerNode) -> None:
        left = (known.retry_at or 0.0) - asyncio.get_running_loop().time()
        if left <= 0:
            return
        message = f"{known.failure or self._describe_node(node)}; it is tried again in {left:.2f}s"
        if isinstance(known.failure, AuthenticationFailed):
            raise AuthenticationFailed(message, retry_after=left) from known.failure
        # Not `timeout`, whatever failed before: this request was never sent.
        raise BrokerUnavailable(
            message, node=_public_node_id(node), retry_after=left
        ) from known.failure

    async def _open_connection(
        self, node: int, role: ConnectionRole, known: _BrokerNode
    ) -> BrokerConnection:
        started = asyncio.get_running_loop().time()
        try:
            conn = await _run_within(
                self.request_timeout,
                lambda: self._connect_hedged(known.address, self._get_idle_timeout(role)),
            )
        except (*CONNECTION_ERRORS, KafkaError) as exc:
            self.request_stats.connect_failures[cause_from_exception(exc)] += 1
            raise self._on_failure(node, exc, started) from exc
        link = BrokerConnection(node, role, conn, renew_at=self._compute_renewal(conn))
        if self._closed or self._nodes.get(node) is not known:
            conn.close()
            raise BrokerUnavailable(f"broker {node} moved", node=_public_node_id(node))
        if role is not ConnectionRole.SPARE:
            known.connections[role] = link
        self.request_stats.connects[role] += 1
        return link

    def _get_idle_timeout(self, role: ConnectionRole) -> float:
        return (
            min(self._idle_timeout, SPARE_IDLE_TIMEOUT_S)
            if role is ConnectionRole.SPARE
            else self._idle_timeout
        )

    async def _connect_hedged(self, address: tuple[str, int], idle: float) -> KafkaConnection:
        """Whichever attempt is through first. TCP repeats a lost SYN after 1, 3 and 7 s (RFC 6298
        2.1, 5.5): a broker that is back after 4 s would be found after 7."""
        attempts: dict[asyncio.Task[object], KafkaConnection] = {}
        try:
            while True:
                if not any(conn.connected() for conn in attempts.values()):
                    conn = self._create_connection(*address, idle)
                    attempts[asyncio.create_task(conn.connect())] = conn
                done, _ = await asyncio.wait(
                    attempts, timeout=CONNECT_HEDGE_DELAY_S, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    attempt.result()
                    return attempts.pop(attempt)
        finally:
            for attempt, conn in attempts.items():
                attempt.cancel()
                conn.close()
            await asyncio.gather(*attempts, return_exceptions=True)

    def _create_connection(self, host: str, port: int, idle: float) -> KafkaConnection:
        credentials = self._credentials()
        self._protocol = credentials.get("security_protocol", self._protocol)
        return KafkaConnection(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=_NO_TIMEOUT_MS,
            max_idle_ms=int(idle * 1000),
            **credentials,
        )

    def _on_failure(self, node: int, exc: BaseException, started: float) -> KafkaError:
        """Count a failure and say it. Those begun before the last one count with it."""
        cause = cause_from_exception(exc)
        known = self._nodes.get(node)
        now = asyncio.get_running_loop().time()
        if known is not None and started > known.failed_at:
            known.failed_at, known.retry_at = now, now + known.backoff.next_delay(cause)
        delay = max(0.0, (known.retry_at or 0.0) - now) if known is not None else 0.0
        failure = self._build_error(node, exc, cause, delay)
        if known is not None:
            known.failure = failure
        return failure

    def _build_error(self, node: int, exc: BaseException, cause: Cause, delay: float) -> KafkaError:
        name, known = self._describe_node(node), self._nodes.get(node)
        if cause is Cause.AUTHENTICATION:
            return AuthenticationFailed(
                f"{name} refused the gateway or its certificate: {format_error(exc)}; check kafka.security",
                retry_after=delay,
            )
        timeout = cause is Cause.TIMEOUT
        how = "gave no answer in time" if timeout else f"cannot be reached: {format_error(exc)}"
        if known is None or not known.has_answered:
            how += suggest_listener_setting(exc, self._protocol)
        return BrokerUnavailable(
            f"{name} {how}", node=_public_node_id(node), timeout=timeout, retry_after=delay
        )

    def _on_success(self, connection: BrokerConnection, throttle_ms: int) -> None:
        connection.is_used = True
        known = self._nodes.get(connection.node)
        if known is not None:
            known.has_answered = True
            if known.retry_at is not None:
                known.retry_at = None
                known.backoff.reset()
                for listener in tuple(self._listeners):
                    listener(connection.node)
        if throttle_ms > 0:
            connection.throttled_until = asyncio.get_running_loop().time() + throttle_ms / 1000

    def _describe_node(self, node: int) -> str:
        known = self._nodes.get(node)
        at = f" at {known.address[0]}:{known.address[1]}" if known else ""
        return f"broker {node}{at}" if node >= 0 else f"the bootstrap server{at}"

    @staticmethod
    def _close_node(known: _BrokerNode) -> list[Awaitable[object]]:
        ending: list[Awaitable[object]] = []
        for attempt in known.connecting.values():
            attempt.cancel()
            ending.append(attempt)
        for link in (*known.connections.values(), *known.spares, *known.lent_spares):
            closed = link.conn.close()
            if closed is not None:
                ending.append(closed)
        known.connections.clear()
        known.spares.clear()
        return ending


async def _run_within(timeout: float, start: Callable[[], Awaitable[R]]) -> R:
    async with asyncio.timeout(timeout):
        return await start()


def _on_connected(
    known: _BrokerNode, role: ConnectionRole, done: asyncio.Task[BrokerConnection]
) -> None:
    known.connecting.pop(role, None)
    if not done.cancelled():
        done.exception()  # told to those who wait; where nobody does, no warning either


def _public_node_id(node: int) -> int | None:
    return node if node >= 0 else None
