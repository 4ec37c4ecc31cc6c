"""Represent one broker at one address: its connections, their failures, and when to try again.

Connecting fails apart from requests, and the requests of each role apart from those of others: a
broker may refuse new logins while it answers on older connections, or answer metadata and no fetch
because its disk hangs. Each has its own backoff, which only its own success ends. All roles wait
for the backoff of connecting; a connection after failed connects ends the failures of all, and an
answer to a probe (see `Connections.probe`) those of roles that are not used any more.
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

from .aiokafka_internals import KafkaConnection
from .outages import FailedAttempt, SecurityOptions, cause_from_exception, describe_failure

R = TypeVar("R")

MAX_LISTED_BROKERS = 5  # how many addresses an error lists
# From the end of a role's backoff until the role counts as unused. Whoever waits for a broker tries
# again as soon as the backoff is over.
UNUSED_AFTER_S = 2.0


class ConnectionRole(StrEnum):
    """The use of a connection. Requests of one role wait only for each other."""

    TAIL = "tail"
    FRESH = "fresh"  # partitions that were added while the tail's fetch was waiting for records
    CONTROL = "control"
    LOOKUP = "lookup"  # offsets by time, for each of which the broker reads a batch
    CATCHUP = "catchup"
    PRODUCE = "produce"
    GROUP = "group"  # heartbeats and commits of all members that the broker coordinates
    SPARE = "spare"  # one of several, lent for a request that the broker may hold back
    PROBE = "probe"  # opened to find out whether a broker that failed is back


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """One connection to a broker, created and owned by `Connections`.

    When the broker has closed it, as idle or at the end of its session, the next request goes to
    another one, so holders need not notice. Only of a spare, `conn` and `broker` are replaced.

    Attributes:
        broker: The broker at the address that was connected to; it may have moved since.
        throttled_until: Loop time until which the broker throttles the gateway.
        renew_at: Loop time from which it is to be replaced, since its SASL session ends soon.
        is_used: Whether `conn` has carried an answer.
        lock: Held while `conn` is replaced.
        timeouts: The timeout of each request under way, and the seconds that it may take.
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
        versions: Mapping[int, tuple[int, int]] = self.conn._versions
        return versions

    @property
    def is_open(self) -> bool:
        return bool(self.conn.connected())

    def get_deadline(self, sent_at: float, seconds: float) -> float:
        """Return the loop time until which a request may take; throttling adds to it (KIP-219)."""
        return max(sent_at, self.throttled_until) + seconds

    async def send(self, request: KafkaRequest[R], sent_at: float, seconds: float) -> R:
        """Send a request, and wait `seconds` from `sent_at` (loop time) and from any throttling."""
        async with asyncio.timeout_at(self.get_deadline(sent_at, seconds)) as timeout:
            self.timeouts[timeout] = seconds
            try:
                response: R = await self.conn.send(request)
            finally:
                del self.timeouts[timeout]
        return response

    def throttle(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self.throttled_until = max(self.throttled_until, now + seconds)
        for timeout, allowed in self.timeouts.items():
            if not timeout.expired():
                timeout.reschedule(self.get_deadline(now, allowed))


@dataclass(slots=True)
class FailureRecord:
    """The last failure of connecting to a broker, or of the requests of one role.

    Attributes:
        failed_at: Loop time of the last failure that counted for the backoff.
        retry_at: Loop time of the next attempt; None after a success.
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

        Requests on a connection that is lost fail together: that is one failure.
        """
        if started_at > self.failed_at:
            self.failed_at, self.retry_at = now, now + self.backoff.next_delay(cause)

    def end(self) -> bool:
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
        is_closed: Whether the broker has moved, or `Connections` is closed.
        connections: The connections of all roles but SPARE, of which there may be several.
        spares: The spare connections that nobody uses.
        draining: Connections that were replaced while requests waited for answers, and the timer
            that looks at them again.
    """

    def __init__(
        self, node: int, address: tuple[str, int], create_backoff: Callable[[], Backoff]
    ) -> None:
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
        return f"{describe_node(self.node)} at {_format_address(self.address)}"

    @property
    def failure(self) -> FailureRecord | None:
        """Return the failure of connecting, which concerns all roles, or else the latest one."""
        if self.connects.error is not None:
            return self.connects
        failing = [record for record in self.requests.values() if record.error is not None]
        return max(failing, key=lambda record: record.failed_at, default=None)

    def get_retry_time(self, role: ConnectionRole) -> float | None:
        retry_times = (self.connects.retry_at, self.requests[role].retry_at)
        return max((time for time in retry_times if time is not None), default=None)

    def raise_if_backing_off(self, role: ConnectionRole) -> None:
        """Raise the failure that began a backoff while the backoff lasts, with `retry_after`."""
        records = self.connects, self.requests[role]
        record = max(records, key=lambda record: record.retry_at or 0.0)
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
        record = self.requests[role] if is_connected else self.connects
        cause, now = cause_from_exception(exc), asyncio.get_running_loop().time()
        record.begin_backoff(cause, started_at, now)
        # If the broker moved meanwhile, its new address has not failed.
        delay = 0.0 if self.is_closed else max(0.0, (record.retry_at or 0.0) - now)
        attempt = FailedAttempt(self.address[0], self.node < 0, self.has_answered, is_connected)
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
        """Record a connection, which ends the failures of all roles: the outage was the same."""
        if not self.connects.end():
            return False
        for record in self.requests.values():
            record.end()
        return True

    def record_answer(self, role: ConnectionRole) -> bool:
        self.has_answered = True
        ended = [self.requests[role]]
        if role is ConnectionRole.PROBE:
            ended += self._list_unused()
        return any([record.end() for record in ended])

    def needs_probe(self) -> bool:
        has_failed = self.connects.error is not None and not self.connecting
        return has_failed or bool(self._list_unused())

    def close(self) -> list[Awaitable[object]]:
        """Close all connections; borrowers of spares keep them, and their requests fail."""
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
        since = asyncio.get_running_loop().time() - UNUSED_AFTER_S
        connections = (*self.connections.values(), *self.lent_spares)
        busy = {each.role for each in connections if not each.conn.is_idle} | self.connecting.keys()
        return [
            record
            for role, record in self.requests.items()
            if record.retry_at is not None and record.retry_at < since and role not in busy
        ]


def combine_failures(brokers: Iterable[BrokerNode]) -> KafkaError | None:
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
    return f"broker {node}" if node >= 0 else "the bootstrap server"


def public_node_id(node: int) -> int | None:
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
