"""Represent one broker at one address: its connections, what fails there, and when to try again.

Connecting fails apart from requests, and the requests of each role fail apart from those of others:
a broker may refuse new logins while it answers on older connections, or answer metadata and no
fetch because its disk hangs. Each of these therefore has its own backoff, which only its own
success ends. Connecting concerns all roles, so all of them wait for its backoff, and a connection
to a broker that could not be connected to ends the failures of all.

A failure of a role that is not used any more would last for ever. An answer to a probe (see
`Connections.probe`) ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TypeVar

from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.requests import KafkaRequest

from .failures import FailedAttempt, SecurityOptions, cause_from_exception, describe_failure
from .security import KafkaConnection

R = TypeVar("R")

MAX_LISTED_BROKERS = 5  # how many addresses an error lists
# From the end of a role's backoff until the role counts as unused. Whoever waits for a broker tries
# again as soon as the backoff is over.
UNUSED_AFTER_S = 2.0


class ConnectionRole(StrEnum):
    """What a connection is used for. Requests of one role wait only for each other."""

    TAIL = "tail"
    FRESH = "fresh"  # partitions that were added while the tail's fetch was waiting for records
    CONTROL = "control"
    CATCHUP = "catchup"
    PRODUCE = "produce"
    GROUP = "group"  # heartbeats and commits of all members that the broker coordinates
    SPARE = "spare"  # one of several, lent for a request that the broker may hold back
    PROBE = "probe"  # opened to find out whether a broker that failed is back


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """One connection to a broker, created and owned by `Connections`.

    When the broker has closed it, as idle or at the end of its session, the next request goes to
    another one, so holders of a BrokerConnection need not notice that. Only of a spare, `conn` and
    `broker` are replaced.

    Attributes:
        role: What it is used for.
        broker: The broker at the address that it was opened to, which may have moved since.
        conn: The connection of aiokafka that carries the requests.
        throttled_until: Loop time until which the broker throttles the gateway: it answers late
            without being ill.
        renew_at: Loop time from which it is to be replaced, since its SASL session ends soon.
        is_used: Whether `conn` has carried an answer.
        lock: Held while `conn` is replaced.
        timeouts: Of each request under way, its timeout and how many seconds it may take.
    """

    role: ConnectionRole
    broker: BrokerNode
    conn: KafkaConnection
    throttled_until: float = 0.0
    renew_at: float = inf
    is_used: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    timeouts: dict[asyncio.Timeout, float] = field(default_factory=dict)

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Return the lowest and highest version that the broker speaks, by API key."""
        versions: Mapping[int, tuple[int, int]] = self.conn._versions
        return versions

    @property
    def is_open(self) -> bool:
        """Return whether its TCP connection is open."""
        return bool(self.conn.connected())

    def should_replace(self, now: float) -> bool:
        """Return whether its session ends so soon that no request should be begun on it."""
        return now >= self.renew_at

    def get_deadline(self, sent_at: float, seconds: float) -> float:
        """Return the loop time until which a request may take.

        A broker reads nothing from a connection that it throttles (KIP-219), so the time of what
        it has not read yet begins afterwards.

        Args:
            sent_at: Loop time at which it was sent.
            seconds: How long it may take where the broker does not throttle.
        """
        return max(sent_at, self.throttled_until) + seconds

    async def send(self, request: KafkaRequest[R], sent_at: float, seconds: float) -> R:
        """Send a request and return the answer.

        Args:
            sent_at: Loop time from which its time counts.
            seconds: How long it may take; what the broker throttles meanwhile comes on top.

        Raises:
            TimeoutError: There was no answer in time.
            CONNECTION_ERRORS: The connection is lost, or the answer is malformed.
            BrokerTooOld: The broker is too old for the request.
        """
        async with asyncio.timeout_at(self.get_deadline(sent_at, seconds)) as timeout:
            self.timeouts[timeout] = seconds
            try:
                response: R = await self.conn.send(request)
            finally:
                del self.timeouts[timeout]
        return response

    def throttle(self, seconds: float) -> None:
        """Note that the broker throttles the connection, and give requests under way more time."""
        now = asyncio.get_running_loop().time()
        self.throttled_until = max(self.throttled_until, now + seconds)
        for timeout, allowed in self.timeouts.items():
            if not timeout.expired():
                timeout.reschedule(self.get_deadline(now, allowed))


@dataclass(slots=True)
class FailureRecord:
    """How connecting to a broker, or the requests of one role, failed last.

    Created and owned by `BrokerNode`.

    Attributes:
        backoff: The delays between attempts.
        failed_at: Loop time of the last failure that counted for the backoff.
        retry_at: Loop time of the next attempt; not None from a failure until the next success.
        error: The last failure; None after a success.
        reason: Its text without the name of the broker.
    """

    backoff: Backoff
    failed_at: float = -1.0
    retry_at: float | None = None
    error: KafkaError | None = None
    reason: str = ""

    def begin_backoff(self, cause: Cause, started_at: float, now: float) -> None:
        """Delay the next attempt, unless the failed one had begun before the last failure.

        All requests under way on a connection fail together when it is lost: that is one failure.
        """
        if started_at > self.failed_at:
            self.failed_at, self.retry_at = now, now + self.backoff.next_delay(cause)

    def end(self) -> bool:
        """Record a success, and return whether it ends a failure."""
        if self.retry_at is None:
            return False
        # The traceback of the error keeps the request that failed, such as the records of a
        # produce.
        self.retry_at = self.error = None
        self.backoff.reset()
        return True


class BrokerNode:
    """One broker at one address, created and owned by `Connections`.

    A broker that moves gets a new one, so failures at the old address do not delay the new one.

    Attributes:
        node: The id of the broker; below 0 for a bootstrap server.
        address: Its host and port.
        is_closed: Whether the broker has moved, or `Connections` is closed.
        has_answered: Whether it ever answered a request.
        connects: How connecting to it failed.
        requests: How the requests of each role failed.
        connections: The connections by role, but for SPARE: of these there may be several.
        connecting: The attempts to connect that are under way, by role, but for SPARE.
        spares: The spare connections that nobody uses.
        lent_spares: Those that were lent.
        draining: Connections that were replaced while requests waited for answers, and the timer
            that looks at them again.
    """

    def __init__(
        self, node: int, address: tuple[str, int], create_backoff: Callable[[], Backoff]
    ) -> None:
        """Create it without a connection.

        Args:
            node: The id of the broker.
            address: Its host and port.
            create_backoff: Returns the delays between attempts to connect, or of one role.
        """
        self.node = node
        self.address = address
        self.is_closed = False
        self.has_answered = False
        self.connects = FailureRecord(create_backoff())
        self.requests = {role: FailureRecord(create_backoff()) for role in ConnectionRole}
        self.connections: dict[ConnectionRole, BrokerConnection] = {}
        self.connecting: dict[ConnectionRole, asyncio.Task[BrokerConnection]] = {}
        self.spares: list[BrokerConnection] = []
        self.lent_spares: set[BrokerConnection] = set()
        self.draining: dict[BrokerConnection, asyncio.TimerHandle] = {}

    @property
    def name(self) -> str:
        """Return how errors call it, such as `broker 1 at localhost:9092`."""
        return f"{describe_node(self.node)} at {_format_address(self.address)}"

    @property
    def failure(self) -> FailureRecord | None:
        """Return what fails: connecting, which concerns all roles, or else what failed last."""
        if self.connects.error is not None:
            return self.connects
        failing = [record for record in self.requests.values() if record.error is not None]
        return max(failing, key=lambda record: record.failed_at, default=None)

    def get_retry_time(self, role: ConnectionRole) -> float | None:
        """Return the loop time before which a role does not connect; None for no backoff."""
        retry_times = (self.connects.retry_at, self.requests[role].retry_at)
        return max((time for time in retry_times if time is not None), default=None)

    def raise_if_backing_off(self, role: ConnectionRole) -> None:
        """Raise the failure that began a backoff of a role while that lasts.

        Raises:
            BrokerUnavailable: The role has to wait, for `retry_after`.
            AuthenticationFailed: Likewise, as credentials were refused.
        """
        record = max(
            (self.connects, self.requests[role]), key=lambda record: record.retry_at or 0.0
        )
        delay = (record.retry_at or 0.0) - asyncio.get_running_loop().time()
        if delay <= 0:
            return
        message = f"{record.error or self.name}; it is tried again in {delay:.2f}s"
        # `failures.unwrap_error` finds the failure that began the backoff by the `from`.
        if isinstance(record.error, AuthenticationFailed):
            raise AuthenticationFailed(message, retry_after=delay) from record.error
        # Not `timeout`, whatever failed before: this request was never sent.
        raise BrokerUnavailable(
            message, node=public_node_id(self.node), retry_after=delay
        ) from record.error

    def record_failure(
        self,
        role: ConnectionRole,
        exc: BaseException,
        started_at: float,
        options: SecurityOptions | None,
        *,
        is_connected: bool,
    ) -> KafkaError:
        """Record a failure and return the error to raise.

        Args:
            exc: What the connection raised.
            started_at: Loop time at which the request or connect began.
            is_connected: Whether a request failed, on a connection that had been opened before.
        """
        record = self.requests[role] if is_connected else self.connects
        cause, now = cause_from_exception(exc), asyncio.get_running_loop().time()
        record.begin_backoff(cause, started_at, now)
        # If the broker moved meanwhile, its new address has not failed.
        delay = 0.0 if self.is_closed else max(0.0, (record.retry_at or 0.0) - now)
        attempt = FailedAttempt(
            host=self.address[0],
            is_bootstrap=self.node < 0,
            has_answered=self.has_answered,
            is_connected=is_connected,
        )
        reason = describe_failure(exc, attempt, options)
        error: KafkaError
        if cause is Cause.AUTHENTICATION:
            error = AuthenticationFailed(f"{self.name} {reason}", retry_after=delay)
        else:
            error = BrokerUnavailable(
                f"{self.name} {reason}",
                node=public_node_id(self.node),
                timeout=cause is Cause.TIMEOUT,
                retry_after=delay,
            )
        if record.retry_at is not None:
            record.error, record.reason = error, reason
        return error

    def record_connect(self) -> bool:
        """Record that it was connected to, and return whether that ends a failure.

        Requests that failed before it could not be connected to failed by the same outage, so their
        roles need not wait either, nor count as failing until each of them has an answer.
        """
        if not self.connects.end():
            return False
        for record in self.requests.values():
            record.end()
        return True

    def record_answer(self, role: ConnectionRole) -> bool:
        """Record an answer to a request of a role, and return whether it ends a failure."""
        self.has_answered = True
        ended = [self.requests[role]]
        if role is ConnectionRole.PROBE:
            ended += self._list_unused()
        return any([record.end() for record in ended])

    def needs_probe(self) -> bool:
        """Return whether it fails and nobody else finds out whether it is back."""
        return (self.connects.error is not None and not self.connecting) or bool(
            self._list_unused()
        )

    def close(self) -> list[Awaitable[object]]:
        """Close all connections, and return what to await for their end.

        Borrowers of spares keep them: their requests fail.
        """
        self.is_closed = True
        closing: list[Awaitable[object]] = []
        for attempt in self.connecting.values():
            attempt.cancel()
            closing.append(attempt)
        for connection in (
            *self.connections.values(),
            *self.spares,
            *self.lent_spares,
            *self.draining,
        ):
            closed = connection.conn.close()
            if closed is not None:
                closing.append(closed)
        for timer in self.draining.values():
            timer.cancel()
        self.connections.clear()
        self.spares.clear()
        self.draining.clear()
        return closing

    def _list_unused(self) -> list[FailureRecord]:
        """List the failures of roles whose backoff is long over without another attempt."""
        since = asyncio.get_running_loop().time() - UNUSED_AFTER_S
        return [
            record
            for role, record in self.requests.items()
            if record.retry_at is not None and record.retry_at < since and not self._is_busy(role)
        ]

    def _is_busy(self, role: ConnectionRole) -> bool:
        """Return whether a role is connecting, or waits for an answer."""
        return role in self.connecting or any(
            connection.role is role and not connection.conn.is_idle
            for connection in (*self.connections.values(), *self.lent_spares)
        )


def combine_failures(brokers: Iterable[BrokerNode]) -> KafkaError | None:
    """Return one error for the failures of several brokers; see `Connections.combine_failures`."""
    # By address: known brokers come before bootstrap servers.
    failing: dict[tuple[str, int], tuple[BrokerNode, FailureRecord]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.node < 0):
        if (failure := broker.failure) is not None:
            failing.setdefault(broker.address, (broker, failure))
    if not failing:
        return None
    failures = [failure for _, failure in failing.values()]
    refusals = [each for each in failures if isinstance(each.error, AuthenticationFailed)]
    brokers_by_reason: dict[str, list[BrokerNode]] = {each.reason: [] for each in refusals}
    for broker, failure in failing.values():
        brokers_by_reason.setdefault(failure.reason, []).append(broker)
    text = "; ".join(
        f"{_describe_brokers(same)} {reason}" for reason, same in brokers_by_reason.items()
    )
    retry_at = min(each.retry_at or 0.0 for each in failures)
    delay = max(0.0, retry_at - asyncio.get_running_loop().time())
    if refusals:
        return AuthenticationFailed(text, retry_after=delay)
    nodes = [broker.node for broker, _ in failing.values()]
    return BrokerUnavailable(
        text,
        node=public_node_id(nodes[0]) if len(nodes) == 1 else None,
        timeout=any(getattr(each.error, "timeout", False) for each in failures),
        retry_after=delay,
    )


def describe_node(node: int) -> str:
    """Return how errors call a broker whose address is not known."""
    return f"broker {node}" if node >= 0 else "the bootstrap server"


def public_node_id(node: int) -> int | None:
    """Return the id that errors carry: None for a bootstrap server."""
    return node if node >= 0 else None


def _describe_brokers(brokers: Sequence[BrokerNode]) -> str:
    if len(brokers) == 1:
        return brokers[0].name
    addresses = [_format_address(broker.address) for broker in brokers]
    more = len(addresses) - MAX_LISTED_BROKERS
    listed = ", ".join(addresses[:MAX_LISTED_BROKERS])
    kind = "bootstrap servers" if all(broker.node < 0 for broker in brokers) else "brokers"
    return f"each of the {kind} {listed}{f' and {more} more' if more > 0 else ''}"


def _format_address(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
