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
from gateway.kafka.protocol.requests import Request
from gateway.telemetry.about import apart
from gateway.telemetry.tallies import Requests

from .failures import BROKEN, cancels_caller, cause_of, guess_listener, said
from .security import Connection, Credentials

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

R = TypeVar("R")

SPARE_IDLE = 30.0  # seconds after which a spare connection is closed
RETIRE_SECONDS = 0.1  # between two looks whether a connection may be closed
AGAIN = 0.5  # seconds without TCP's answer after which it is tried once more beside that
_FOREVER_MS = 86_400_000  # aiokafka's own timeout leaves the connection open; ours closes it


class Role(StrEnum):
    TAIL = "tail"
    FRESH = "fresh"  # partitions that came while the tail's fetch was waiting for records
    CONTROL = "control"
    CATCHUP = "catchup"
    PRODUCE = "produce"
    GROUP = "group"  # heartbeats and commits of all members whose coordinator it is
    SPARE = "spare"  # one of several, lent for a request that the broker may hold back


@dataclass(slots=True, eq=False)
class Link:
    """One open connection.

    throttled_until: the broker answers late until then, without being ill; loop time.
    renew_at: when it is to be replaced, since its session ends soon; loop time.
    is_used:  a request was answered on it.
    lock:     for who puts another connection in the place of a closed one.
    """

    node: int
    role: Role
    conn: Connection
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
    def open(self) -> bool:
        return bool(self.conn.connected())

    def is_due(self, now: float) -> bool:
        """Return whether its session ends so soon that no request should be begun on it."""
        return now >= self.renew_at


@dataclass(slots=True)
class _Node:
    address: tuple[str, int]
    backoff: Backoff
    failed_at: float = -1.0
    retry_at: float | None = None
    failure: KafkaError | None = None
    has_answered: bool = False
    links: dict[Role, Link] = field(default_factory=dict)
    connecting: dict[Role, asyncio.Task[Link]] = field(default_factory=dict)
    spares: list[Link] = field(default_factory=list)
    lent: set[Link] = field(default_factory=set)


def _new_backoff() -> Backoff:
    return Backoff(ceiling=1.0, random=random.random)


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
        idle: float = 300.0,
        backoff: Callable[[], Backoff] = _new_backoff,
    ) -> None:
        self.request_timeout = request_timeout
        self.requests: Counter[str] = Counter()
        self.asked = Requests()
        self.tracing: Tracing | None = None
        self._client_id = client_id
        self._credentials = credentials
        self._protocol = "PLAINTEXT"
        self._idle = idle
        self._backoff = backoff
        self._nodes: dict[int, _Node] = {}
        self._listeners: list[Callable[[int], None]] = []
        self._closed = False

    def know(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Where brokers are. One that moved is connected to afresh; others stay known."""
        for node, address in addresses.items():
            known = self._nodes.get(node)
            if known is None or known.address != address:
                if known is not None:
                    self._drop(known)
                self._nodes[node] = _Node(address, self._backoff())

    def listen(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Have it called with each broker that answers again after a failure; the result ends
        that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def retry_at(self, node: int) -> float | None:
        """Loop time before which no connection to the broker is tried, None if it may be."""
        known = self._nodes.get(node)
        return known.retry_at if known is not None else None

    def failure(self, node: int) -> KafkaError | None:
        """Return why a broker cannot be reached now, None where it can."""
        known = self._nodes.get(node)
        return known.failure if known is not None and known.retry_at is not None else None

    async def send(
        self, node: int, role: Role, request: Request[R], *, within: float | None = None
    ) -> R:
        """The broker's answer. `within` in seconds, in place of `request_timeout`.

        Raises BrokerUnavailable, AuthenticationFailed, or KafkaError where the broker is too
        old for the request.
        """
        link = await self.connect(node, role)
        return await self.ask(link, request, within=within)

    async def ask(self, link: Link, request: Request[R], *, within: float | None = None) -> R:
        """As `send`, on a link already there."""
        self.requests[request.NAME] += 1
        started, began = asyncio.get_running_loop().time(), perf_counter()
        # A throttled broker answers late without being ill (KIP-219).
        wait = (within or self.request_timeout) + max(0.0, link.throttled_until - started)
        try:
            answer = await self._exchange(link, request, wait)
        except BROKEN as exc:
            link.conn.close()
            self.asked.failures[request.NAME, cause_of(exc)] += 1
            self._trace(link, request.NAME, began, exc)
            raise self._failed(link.node, exc, started) from exc
        self.asked.answered(request.NAME, perf_counter() - began)
        self._trace(link, request.NAME, began)
        self._succeeded(link, getattr(answer, "throttle_ms", 0))
        return answer

    async def _exchange(self, link: Link, request: Request[R], wait: float) -> R:
        """Return the answer. A request that comes when the broker has just closed the connection,
        as idle or as its session is over, is sent once more on another one: it was not read."""
        conn, is_used = link.conn, link.is_used
        ends = asyncio.get_running_loop().time() + wait
        try:
            return await _within(wait, lambda: conn.send(request))
        except BROKEN as exc:
            if not is_used or conn.connected() or cause_of(exc) is not Cause.CONNECTION:
                raise
        await self._reopen(link, conn)
        left = max(0.0, ends - asyncio.get_running_loop().time())
        return await _within(left, lambda: link.conn.send(request))

    async def _reopen(self, link: Link, closed: Connection) -> None:
        """Put another connection in the place of a closed one; once for all whose requests were
        on it. Raises what `_connected` raises, and KafkaError."""
        async with link.lock:
            if link.conn is not closed:
                return
            known, idle = self._known(link.node), self._idle_of(link.role)
            conn = await _within(self.request_timeout, lambda: self._connected(known.address, idle))
            if self._closed or self._nodes.get(link.node) is not known:
                conn.close()
                raise BrokerUnavailable(f"broker {link.node} moved", node=_public(link.node))
            link.conn, link.is_used, link.renew_at = conn, False, self._renewal(conn)

    def _renewal(self, conn: Connection) -> float:
        """Return when a connection is to be replaced: after 0.7 to 0.9 of its session, so that not
        all are at once."""
        session = conn.session_seconds
        if session <= 0:
            return inf
        return asyncio.get_running_loop().time() + session * (0.7 + 0.2 * random.random())

    def _retire(self, link: Link) -> None:
        """Close a connection once what is under way on it is answered."""
        if link.conn.is_idle or not link.open:
            link.conn.close()
        else:
            asyncio.get_running_loop().call_later(RETIRE_SECONDS, self._retire, link)

    def _trace(
        self, link: Link, api: str, began: float, failure: BaseException | None = None
    ) -> None:
        if self.tracing is not None:
            took = perf_counter() - began
            self.tracing.asked(api, link.node, link.role, took, failure)

    async def connect(self, node: int, role: Role) -> Link:
        """The link of a broker and role; concurrent calls share one attempt.

        Raises BrokerUnavailable at once, with `retry_after`, while the broker's delay runs.
        """
        known = self._known(node)
        link = known.links.get(role)
        if link is not None and link.open:
            if not link.is_due(asyncio.get_running_loop().time()):
                return link
            self._retire(known.links.pop(role))
        attempt = known.connecting.get(role)
        if attempt is None:
            self._gate(node, known)
            attempt = apart(self._open(node, role, known))
            known.connecting[role] = attempt
            attempt.add_done_callback(lambda done: _settled(known, role, done))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if cancels_caller(attempt):
                raise  # the attempt goes on for others
            raise BrokerUnavailable(
                f"{self._name(node)} moved or the gateway is closing", node=_public(node)
            ) from None

    @asynccontextmanager
    async def spare(self, node: int) -> AsyncIterator[Link]:
        """A link that is nobody else's in the block: for requests that the broker holds back.

        Kept for the next one after it, closed where the block failed: an answer is still to come.
        Raises as `connect` does.
        """
        known = self._known(node)
        link = await self._lend(node, known)
        try:
            yield link
        except BaseException:
            known.lent.discard(link)
            link.conn.close()
            raise
        known.lent.discard(link)
        if self._nodes.get(node) is known and not self._closed and link.open:
            known.spares.append(link)
        else:
            link.conn.close()

    async def _lend(self, node: int, known: _Node) -> Link:
        while known.spares:
            link = known.spares.pop()  # the last one: the others become idle, and are closed
            if link.open and not link.is_due(asyncio.get_running_loop().time()):
                break
            link.conn.close()
        else:
            self._gate(node, known)
            link = await self._open(node, Role.SPARE, known)
        known.lent.add(link)
        return link

    async def close(self) -> None:
        """Close everything; later calls raise BrokerUnavailable."""
        self._closed = True
        ending: list[Awaitable[object]] = []
        for known in self._nodes.values():
            ending += self._drop(known)
        self._nodes.clear()
        if ending:
            tasks = [asyncio.ensure_future(one) for one in ending]
            await asyncio.wait(tasks, timeout=1.0)

    def _known(self, node: int) -> _Node:
        if self._closed:
            raise BrokerUnavailable("the connections to Kafka are closed", node=_public(node))
        known = self._nodes.get(node)
        if known is None:
            raise BrokerUnavailable(
                f"broker {node} is not in the cluster's metadata; refresh it", node=_public(node)
            )
        return known

    def _gate(self, node: int, known: _Node) -> None:
        left = (known.retry_at or 0.0) - asyncio.get_running_loop().time()
        if left <= 0:
            return
        message = f"{known.failure or self._name(node)}; it is tried again in {left:.2f}s"
        if isinstance(known.failure, AuthenticationFailed):
            raise AuthenticationFailed(message, retry_after=left) from known.failure
        # Not `timeout`, whatever failed before: this request was never sent.
        raise BrokerUnavailable(message, node=_public(node), retry_after=left) from known.failure

    async def _open(self, node: int, role: Role, known: _Node) -> Link:
        started = asyncio.get_running_loop().time()
        try:
            conn = await _within(
                self.request_timeout, lambda: self._connected(known.address, self._idle_of(role))
            )
        except (*BROKEN, KafkaError) as exc:
            self.asked.refused[cause_of(exc)] += 1
            raise self._failed(node, exc, started) from exc
        link = Link(node, role, conn, renew_at=self._renewal(conn))
        if self._closed or self._nodes.get(node) is not known:
            conn.close()
            raise BrokerUnavailable(f"broker {node} moved", node=_public(node))
        if role is not Role.SPARE:
            known.links[role] = link
        self.asked.connects[role] += 1
        return link

    def _idle_of(self, role: Role) -> float:
        return min(self._idle, SPARE_IDLE) if role is Role.SPARE else self._idle

    async def _connected(self, address: tuple[str, int], idle: float) -> Connection:
        """Whichever attempt is through first. TCP repeats a lost SYN after 1, 3 and 7 s (RFC 6298
        2.1, 5.5): a broker that is back after 4 s would be found after 7."""
        attempts: dict[asyncio.Task[object], Connection] = {}
        try:
            while True:
                if not any(conn.connected() for conn in attempts.values()):
                    conn = self._connection(*address, idle)
                    attempts[asyncio.create_task(conn.connect())] = conn
                done, _ = await asyncio.wait(
                    attempts, timeout=AGAIN, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    attempt.result()
                    return attempts.pop(attempt)
        finally:
            for attempt, conn in attempts.items():
                attempt.cancel()
                conn.close()
            await asyncio.gather(*attempts, return_exceptions=True)

    def _connection(self, host: str, port: int, idle: float) -> Connection:
        credentials = self._credentials()
        self._protocol = credentials.get("security_protocol", self._protocol)
        return Connection(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=_FOREVER_MS,
            max_idle_ms=int(idle * 1000),
            **credentials,
        )

    def _failed(self, node: int, exc: BaseException, started: float) -> KafkaError:
        """Count a failure and say it. Those begun before the last one count with it."""
        cause = cause_of(exc)
        known = self._nodes.get(node)
        now = asyncio.get_running_loop().time()
        if known is not None and started > known.failed_at:
            known.failed_at, known.retry_at = now, now + known.backoff.delay(cause)
        delay = max(0.0, (known.retry_at or 0.0) - now) if known is not None else 0.0
        failure = self._told(node, exc, cause, delay)
        if known is not None:
            known.failure = failure
        return failure

    def _told(self, node: int, exc: BaseException, cause: Cause, delay: float) -> KafkaError:
        name, known = self._name(node), self._nodes.get(node)
        if cause is Cause.AUTHENTICATION:
            return AuthenticationFailed(
                f"{name} refused the gateway or its certificate: {said(exc)}; check kafka.security",
                retry_after=delay,
            )
        timeout = cause is Cause.TIMEOUT
        how = "gave no answer in time" if timeout else f"cannot be reached: {said(exc)}"
        if known is None or not known.has_answered:
            how += guess_listener(exc, self._protocol)
        return BrokerUnavailable(
            f"{name} {how}", node=_public(node), timeout=timeout, retry_after=delay
        )

    def _succeeded(self, link: Link, throttle_ms: int) -> None:
        link.is_used = True
        known = self._nodes.get(link.node)
        if known is not None:
            known.has_answered = True
            if known.retry_at is not None:
                known.retry_at = None
                known.backoff.succeeded()
                for listener in tuple(self._listeners):
                    listener(link.node)
        if throttle_ms > 0:
            link.throttled_until = asyncio.get_running_loop().time() + throttle_ms / 1000

    def _name(self, node: int) -> str:
        known = self._nodes.get(node)
        at = f" at {known.address[0]}:{known.address[1]}" if known else ""
        return f"broker {node}{at}" if node >= 0 else f"the bootstrap server{at}"

    @staticmethod
    def _drop(known: _Node) -> list[Awaitable[object]]:
        ending: list[Awaitable[object]] = []
        for attempt in known.connecting.values():
            attempt.cancel()
            ending.append(attempt)
        for link in (*known.links.values(), *known.spares, *known.lent):
            closed = link.conn.close()
            if closed is not None:
                ending.append(closed)
        known.links.clear()
        known.spares.clear()
        return ending


async def _within(seconds: float, start: Callable[[], Awaitable[R]]) -> R:
    async with asyncio.timeout(seconds):
        return await start()


def _settled(known: _Node, role: Role, done: asyncio.Task[Link]) -> None:
    known.connecting.pop(role, None)
    if not done.cancelled():
        done.exception()  # told to those who wait; where nobody does, no warning either


def _public(node: int) -> int | None:
    return node if node >= 0 else None
