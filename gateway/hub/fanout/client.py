"""Serve one client of a view, from its first block to its end.

A `Client` knows when its stream begins, expires and ends. Its bytes come from its `ClientSource`,
and go out by a `PushDelivery`, which writes to an outlet and needs no task, or by a `PullDelivery`,
an async iterator.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gateway.config import Rate
from gateway.core.channel.chunk_ring import ByteSum
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SlowClientPolicy, Throttle
from gateway.core.log.record import TopicPartition

from .client_registry import NOT_REGISTERED
from .client_source import ClientSource
from .delivery import Outlet, PullDelivery, PushDelivery
from .pacing import WallClockTimer
from .view import View

if TYPE_CHECKING:
    from .hub import Hub

log = logging.getLogger(__name__)

BEGIN_GRACE_S = 0.1  # seconds for which BEGIN waits for partitions that answer about now
UNLIMITED = math.inf  # as a time: one object for all clients, also after a time was added


class Handover(NamedTuple):
    """The state that a client that ends by `EndReason.CHANGED` leaves to the next client.

    Attributes:
        position: The resume token of where it stood.
        until: The offsets at which partitions end; None for no end.
        credit: The number of records that the client has asked for; None for any number.
        ends_at: When its lifetime ends, by the loop's clock in seconds.
        throttle: Set if its route has a `maxRate`.
    """

    position: bytes
    cluster: str
    topics: frozenset[str]
    number: int
    until: Mapping[TopicPartition, int] | None
    records_left: int | None
    credit: int | None
    delivered_sum: ByteSum | None
    ends_at: float
    throttle: Throttle | None
    route: str


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client is served.

    Attributes:
        heartbeat: Seconds after which an idle stream is sent a heartbeat.
        lifetime: Seconds from BEGIN to the end of the stream; None for no limit.
        expires_at: When the client's access expires, in seconds since 1970; None for never.
        position_refused: The client sent a resume token that could not be used; a `gap` says so.
        handover: The state of the client that this one replaces; its lifetime goes on.
    """

    heartbeat: float
    slow: SlowClientPolicy = SlowClientPolicy.CATCH_UP
    lifetime: float | None = None
    expires_at: float | None = None
    position_refused: bool = False
    handover: Handover | None = None
    route: str = ""
    rate: Rate | None = None


class CloseListener(Protocol):
    def on_client_closed(self) -> None: ...


class Client:
    """One client of a view, from its first block to its end.

    `Hub.subscribe` creates it; whoever asked for it owns it, and must close it. After
    `wait_until_ready` it is either attached to an outlet (`attach`) or pulled (`pull`). It may be
    closed at any time and more than once.

    Args:
        deadline: When BEGIN is due at the latest, by the loop's clock in seconds.

    Attributes:
        push: None if it is pulled, or closed.
        ends_at: When its lifetime ends, by the loop's clock. Before BEGIN: the seconds of it.
    """

    __slots__ = (
        "_close_listener",
        "_closed",
        "_deadline",
        "_expiry_timer",
        "_options",
        "_pull",
        "_ready_waiter",
        "ends_at",
        "heartbeat",
        "owner",
        "push",
        "registry_index",
        "source",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        owner: Hub,
        source: ClientSource,
        options: ClientOptions,
        *,
        deadline: float,
        view: View | None = None,
    ) -> None:
        handover = options.handover
        self.registry_index = NOT_REGISTERED
        self.source = source
        self.view = view
        self.push: PushDelivery | None = None
        self.heartbeat = options.heartbeat
        # A number of seconds for now; `begin` adds the time.
        self.ends_at = options.lifetime or UNLIMITED
        if handover is not None:
            self.ends_at = handover.ends_at - asyncio.get_running_loop().time()
        self.owner = owner
        # Until BEGIN, as they would take memory of each client.
        self._deadline = deadline
        self._options: ClientOptions | None = options
        self._pull: PullDelivery | None = None
        self._ready_waiter: asyncio.Future[None] | None = None  # of `wait_until_ready`
        self._closed = False
        self._close_listener: CloseListener | None = None
        self._expiry_timer: WallClockTimer | None = None
        self.set_expiry(options.expires_at)

    @property
    def subscription(self) -> Subscription:
        return self.source.subscription

    @property
    def number(self) -> int:
        return self.source.number

    # the beginning

    async def wait_until_ready(self) -> None:
        """Wait until a partition is ready, the readiness timeout expires, or the stream ends."""
        loop, shared_tail = asyncio.get_running_loop(), self.source.shared_tail
        self.owner.read_services.shared_reads.refresh_readiness(shared_tail)
        while not (self.subscription.end_reason or self._should_begin(loop.time())):
            waiter = self._ready_waiter = loop.create_future()
            shared_tail.ready_waiters.add(waiter)
            try:
                # If BEGIN is due but for partitions that are being resolved, wait a moment only.
                is_due = shared_tail.tail.readiness.should_begin(self._deadline, loop.time())
                async with (
                    asyncio.timeout(BEGIN_GRACE_S) if is_due else asyncio.timeout_at(self._deadline)
                ):
                    await waiter
            except TimeoutError:
                pass
            finally:
                shared_tail.ready_waiters.discard(waiter)
                self._ready_waiter = None

    def _should_begin(self, now: float) -> bool:
        """Return whether BEGIN is due, and no partition's end was asked for just now.

        Such a partition is waited for: if its end became known after BEGIN, it would have to start
        by time, with older records.
        """
        shared_tail = self.source.shared_tail
        due = shared_tail.tail.readiness.should_begin(self._deadline, now)
        return due and not self.owner.read_services.shared_reads.is_resolving(
            shared_tail, now - BEGIN_GRACE_S
        )

    def begin(self) -> bytes:
        """Return the first block; called once, by the delivery."""
        if self.ends_at != UNLIMITED:
            self.ends_at += asyncio.get_running_loop().time()
        options, self._options, self._deadline = self._options, None, 0.0
        assert options is not None
        return self.source.begin(
            self.owner.shared_catch_ups,
            heartbeat=self.heartbeat,
            position_refused=options.position_refused,
            is_continuation=options.handover is not None,
        )

    def attach(self, outlet: Outlet, head: bytes = b"") -> None:
        """Begin, and from now on write to an outlet: `head` before the first block."""
        push = PushDelivery(self.source, outlet, self.owner.broadcaster, self)
        self.push = push
        first = head + self.begin()
        if first:
            outlet.write(first)
        push.push()

    def pull(self) -> PullDelivery:
        if self._pull is None:
            self._pull = PullDelivery(self)
        return self._pull

    # while it goes on

    @property
    def state(self) -> str | None:
        """Return why it may not have all that was published; None while rounds write to it."""
        if self.push is not None and self.push.is_live:
            return None
        delivery = self.push or self._pull
        return self.source.find_state(is_full=delivery is not None and delivery.is_full)

    def grant_credit(self, records: int) -> None:
        (self.source.rate_limiter or self.subscription).grant_credit(records)
        self.subscription.wake()

    def apply_route_settings(self, heartbeat: float, slow: SlowClientPolicy) -> None:
        self.heartbeat = heartbeat
        self.subscription.set_slow_policy(slow)

    def send_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Send an event to this client only, once it has begun."""
        delivery = self.push or self._pull
        if delivery is not None:
            delivery.write_event(kind, data)

    def check_heartbeat(self, now: float) -> None:
        """Write a heartbeat to an idle outlet, and end a stream whose lifetime is over."""
        if self._options is not None:
            return  # before BEGIN
        if now >= self.ends_at:
            self.end(EndReason.LIFETIME)
        elif self.push is not None:
            self.push.check_heartbeat(now, self.heartbeat)

    # the end

    def set_expiry(self, expires_at: float | None) -> None:
        """End the stream at a time in seconds since 1970, in place of any time set before."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if expires_at is not None:
            self._expiry_timer = WallClockTimer(expires_at, self._on_expired)

    def _on_expired(self) -> None:
        self.end(EndReason.TOKEN_EXPIRED)

    def end(self, reason: EndReason) -> None:
        """End the stream with an `end` event; the first reason counts."""
        self.subscription.end(reason)
        # A live client is written to in rounds, and needs a push of its own for its end.
        self.subscription.wake()
        if self._ready_waiter is not None and not self._ready_waiter.done():
            self._ready_waiter.set_result(None)

    def take_handover(self) -> Handover:
        """Return the state for the next client; called once, after BEGIN and `end(CHANGED)`."""
        handover = self.build_handover()
        self.subscription.close()  # without its position, which is handed over
        return handover

    def build_handover(self) -> Handover:
        """Return the state as of now; to be called after BEGIN."""
        subscription, rate_limiter = self.subscription, self.source.rate_limiter
        return Handover(
            subscription.token, self.owner.name,
            frozenset(subscription.channel.tail.topic_ids), self.number,
            subscription.end_offsets, subscription.remaining_records, self.source.credit,
            subscription.delivered_sum, self.ends_at,
            None if rate_limiter is None else rate_limiter.throttle,
            subscription.traffic.route,
        )  # fmt: skip

    def set_close_listener(self, listener: CloseListener) -> None:
        """Tell a listener once this client is closed, or now if it is.

        An object, because a bound method would take 64 bytes of each client.
        """
        if self._closed:
            listener.on_client_closed()
        else:
            self._close_listener = listener

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True  # first: what is called below may close it again
        self.set_expiry(None)
        # Both refer to this client. They are dropped, so that it is freed at once.
        push, self.push = self.push, None
        pull, self._pull = self._pull, None
        delivery, end_reason = push or pull, self.subscription.end_reason
        is_end_written = delivery is not None and delivery.is_end_written
        self._count_end((end_reason if is_end_written else None) or EndReason.LEFT)
        if push is not None:
            push.close()
        self.owner.remove_client(self)
        listener, self._close_listener = self._close_listener, None
        if listener is not None:
            listener.on_client_closed()
        # `take_handover` and the `end` event of a pulled client have yet to use the position.
        if end_reason is EndReason.CHANGED:
            keep_position = is_end_written
        else:
            keep_position = pull is not None and end_reason is not None and not is_end_written
        self.source.close(keep_position=keep_position)

    def on_delivered(self) -> None:
        self.close()

    def _count_end(self, reason: EndReason) -> None:
        self.subscription.traffic.ended[reason] += 1
        if log.isEnabledFor(logging.DEBUG):
            with self.source.log_context():
                log.debug("stream ended reason=%s", reason)
