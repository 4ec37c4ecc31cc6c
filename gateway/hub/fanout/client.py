"""Serve one client of a view, from its first block to its end.

A `Client` knows when its stream begins, expires and ends, and pushes its bytes to an `Outlet`, its
connection as the hub sees it. That needs no task: it writes the bytes of the client alone, and the
`Broadcaster` writes in rounds what is published.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gateway.config import Rate
from gateway.core.channel.chunk_ring import ByteSum
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import ClientKey, EndReason, SlowClientPolicy, Throttle
from gateway.core.log.record import TopicPartition
from gateway.hub.reads.pacing import WallClockTimer
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.shared_tail import SharedTail
from gateway.hub.reads.view import View
from gateway.hub.wires.wire import Wire

from .broadcaster import Audience
from .client_source import ClientSource
from .pulled_bytes import PulledBytes
from .state_log import log as state_logger

if TYPE_CHECKING:
    from .hub import Hub


log = logging.getLogger(__name__)

BEGIN_GRACE_S = 0.1  # seconds for which BEGIN waits for partitions that answer about now
NOT_REGISTERED = -1  # the index of a client that is in no registry
UNLIMITED = math.inf  # as a time: one object for all clients, also after a time was added


class Handover(NamedTuple):
    """The state that a client that ends by `EndReason.CHANGED` leaves to the next client.

    Attributes:
        position: The resume token of where it stood.
        until: The offsets at which partitions end; None for no end.
        end_lineages: Those of the logs that the offsets are of.
        credit: The number of records that the client has asked for; None for any number.
        ends_at: When its lifetime ends, by the loop's clock in seconds.
        throttle: Set if its route has a `maxRate`.
        client_key: As in `SubscriptionTerms`.
    """

    position: bytes
    cluster: str
    topics: frozenset[str]
    number: int
    until: Mapping[TopicPartition, int] | None
    end_lineages: Mapping[TopicPartition, int] | None
    records_left: int | None
    credit: int | None
    delivered_sum: ByteSum | None
    ends_at: float
    throttle: Throttle | None
    route: str
    client_key: ClientKey


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client is served.

    Attributes:
        heartbeat: Seconds after which an idle stream is sent a heartbeat.
        lifetime: Seconds from BEGIN to the end of the stream; None for no limit.
        expires_at: When the client's access expires, in seconds since 1970; None for never.
        position_refused: The client sent a resume token that could not be used; a `gap` says so.
        handover: The state of the client that this one replaces; its lifetime goes on.
        client_key: As in `SubscriptionTerms`.
    """

    heartbeat: float
    slow: SlowClientPolicy = SlowClientPolicy.CATCH_UP
    lifetime: float | None = None
    expires_at: float | None = None
    position_refused: bool = False
    handover: Handover | None = None
    route: str = ""
    rate: Rate | None = None
    client_key: ClientKey = ""


class CloseListener(Protocol):
    def on_client_closed(self) -> None: ...


class Outlet(Protocol):
    """Take the bytes of one client, or of one stream of a WebSocket, without a task between.

    `gateway.web` implements it for connections. It calls `Client.wake` when it is no longer full,
    and `Client.close` when the connection is lost. Whether an outlet is full may change with every
    write, also with those of other streams on the same connection.
    """

    @property
    def full(self) -> bool:
        """Return whether bytes wait for the other side to take them."""

    def write(self, data: bytes) -> None:
        """Send bytes now; those that the other side does not take wait. Never raises or blocks."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes, and end the response as its protocol does."""

    def hand_over(self) -> None:
        """Release the outlet to another client, which goes on with the stream."""


class Client(ClientSource):
    """One client of a view, from its first block to its end.

    `Hub.subscribe` creates it; whoever asked for it owns it, and must close it. After
    `wait_until_ready` it is attached to an outlet (`attach`, `pull`). It may be closed at any time
    and more than once. Once it has begun, it is in one of two states:

    - In an `Audience`: it has all that was published, and rounds write to its outlet.
    - Otherwise `push` writes what it is sent alone. When it has caught up, it joins an audience.

    Args:
        deadline: When BEGIN is due at the latest, by the loop's clock in seconds.

    Attributes:
        outlet: None before BEGIN, and once it is closed.
        audience: Set while rounds write to it.
        ends_at: When its lifetime ends, by the loop's clock. Before BEGIN: the seconds of it.
        sent_at: When it was last sent something of its own, by the loop's clock.
    """

    __slots__ = (
        "_close_listener", "_closed", "_deadline", "_expiry_timer", "_is_end_written",
        "_is_push_scheduled", "_options", "_ready_waiter", "audience", "ends_at", "heartbeat",
        "hub", "outlet", "registry_index", "sent_at", "view",
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        shared_tail: SharedTail,
        subscription: Subscription,
        wire: Wire,
        start: StreamStart,
        options: ClientOptions,
        *,
        number: int,
        deadline: float,
        view: View | None = None,
    ) -> None:
        super().__init__(hub.read_services, shared_tail, subscription, wire, start, number)
        handover = options.handover
        self.registry_index = NOT_REGISTERED
        self.view = view
        self.outlet: Outlet | None = None
        self.audience: Audience | None = None
        self.heartbeat = options.heartbeat
        self.sent_at = 0.0
        # A number of seconds for now; `begin` adds the time.
        self.ends_at = options.lifetime or UNLIMITED
        if handover is not None:
            self.ends_at = handover.ends_at - asyncio.get_running_loop().time()
        self.hub = hub
        # Until BEGIN, as they would take memory of each client.
        self._deadline = deadline
        self._options: ClientOptions | None = options
        self._ready_waiter: asyncio.Future[None] | None = None  # of `wait_until_ready`
        self._is_push_scheduled = False
        self._is_end_written = False  # or another client's to write
        self._closed = False
        self._close_listener: CloseListener | None = None
        self._expiry_timer: WallClockTimer | None = None
        self.set_expiry(options.expires_at)

    # the beginning

    async def wait_until_ready(self) -> None:
        """Wait until a partition is ready, the readiness timeout expires, or the stream ends."""
        loop, shared_tail = asyncio.get_running_loop(), self.shared_tail
        self._services.shared_reads.refresh_readiness(shared_tail)
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
        due = self.shared_tail.tail.readiness.should_begin(self._deadline, now)
        return due and not self._services.shared_reads.is_resolving(
            self.shared_tail, now - BEGIN_GRACE_S
        )

    def begin(self) -> bytes:
        """Return the first block; `attach` writes it unless this was called."""
        if self.ends_at != UNLIMITED:
            self.ends_at += asyncio.get_running_loop().time()
        options, self._options, self._deadline = self._options, None, 0.0
        assert options is not None
        return self.encode_begin(
            self.hub.shared_catch_ups,
            heartbeat=self.heartbeat,
            position_refused=options.position_refused,
            is_continuation=options.handover is not None,
        )

    def attach(self, outlet: Outlet, head: bytes = b"") -> None:
        """Write to an outlet from now on: `head`, the first block, and what follows."""
        self.outlet, self.subscription.delivery = outlet, self
        self.sent_at = asyncio.get_running_loop().time()
        first = head if self._options is None else head + self.begin()
        if first:
            outlet.write(first)
        self.push()

    def pull(self, abort: Callable[[], object] | None = None) -> PulledBytes:
        """Begin, and return an outlet whose bytes are iterated."""
        outlet = PulledBytes(self, abort)
        self.attach(outlet)
        return outlet

    # while it goes on

    def wake(self) -> None:
        """Schedule a push, but never run it within the call that brought it."""
        if self.outlet is not None and not self._is_push_scheduled:
            self._is_push_scheduled = True
            self.hub.broadcaster.schedule_push(self)

    def push(self) -> None:
        """Send about 64 KiB of the client's own bytes; once it has everything, join an audience."""
        self._is_push_scheduled = False
        outlet, subscription = self.outlet, self.subscription
        # A full outlet gets nothing but an end, which must not wait until the client takes more.
        if outlet is None or (outlet.full and not subscription.end_reason):
            return
        data = self.take()  # nothing if the stream is to end
        if data:
            self.sent_at = asyncio.get_running_loop().time()
            outlet.write(data)
        if subscription.end_reason:
            self._is_end_written, self.outlet = True, None
            if subscription.end_reason is EndReason.CHANGED:
                outlet.hand_over()
            else:
                outlet.finish(self.encode_end(subscription.end_reason))
            self.close()
            return
        if outlet.full:
            pass  # it wakes the client when it is not
        elif data or subscription.has_more:
            self.wake()  # after the others that wait: a client far behind must not hold them up
        # Only a take that brought nothing shows that it has everything.
        elif (
            self.audience is None
            and subscription.is_fully_shared
            # A round does not look for gaps that end a stream (`offsetOutOfRange: fail`).
            and not subscription.channel.topics_ending_on_loss
        ):
            self.audience = self.hub.broadcaster.add_client(self)
        self._log_changes()

    def on_audience_left(self) -> None:
        self.audience = None
        if self.outlet is not None:
            # Again it has to hear of each chunk itself. Something may be there already.
            self.subscription.channel.start_waking(self.subscription)
            self.wake()
            self._log_changes()

    def _log_changes(self) -> None:
        if state_logger.isEnabledFor(logging.DEBUG):
            self.log_changes(is_full=self._is_full)

    @property
    def state(self) -> str | None:
        """Return why it may not have all that was published; None while rounds write to it."""
        return None if self.audience is not None else self.find_state(is_full=self._is_full)

    @property
    def _is_full(self) -> bool:
        return self.outlet is not None and self.outlet.full

    def grant_credit(self, records: int) -> None:
        (self.rate_limiter or self.subscription).grant_credit(records)
        self.subscription.wake()

    def apply_route_settings(self, heartbeat: float, slow: SlowClientPolicy) -> None:
        self.heartbeat = heartbeat
        self.subscription.set_slow_policy(slow)

    def send_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Send an event to this client only, once it has begun; behind what waits in the outlet."""
        if self.outlet is not None and (event := self.encode_event(kind, data)):
            self.outlet.write(event)

    def check_heartbeat(self, now: float) -> None:
        """Write a heartbeat to an idle outlet, and end a stream whose lifetime is over."""
        if self._options is not None:
            return  # before BEGIN
        if now >= self.ends_at:
            self.end(EndReason.LIFETIME)
            return
        if self.audience is not None:
            self.sent_at = max(self.sent_at, self.audience.sent_at)
        if now - self.sent_at >= self.heartbeat and not self._is_full:
            self.sent_at = now
            self.probe()

    def probe(self) -> None:
        """Write a heartbeat now: the connection shows by it whether the client is still there."""
        if self.outlet is not None and (heartbeat := self.encode_heartbeat()):
            self.outlet.write(heartbeat)

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
        subscription, rate_limiter = self.subscription, self.rate_limiter
        for log_ in subscription.channel.tail.logs.values():
            subscription.rebase_end(log_)  # the next client takes its ends for those of now
        return Handover(
            subscription.token, self.hub.name,
            frozenset(subscription.channel.tail.topic_ids), self.number,
            subscription.end_offsets, subscription.end_lineages, subscription.remaining_records,
            self.credit, subscription.delivered_sum, self.ends_at,
            None if rate_limiter is None else rate_limiter.throttle,
            subscription.traffic.route, subscription.client_key,
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
        # The outlet refers to this client. It is dropped, so that the client is freed at once, and
        # before the audience is left, so that this does not wake the client.
        self.outlet = None
        end_reason = self.subscription.end_reason if self._is_end_written else None
        self._count_end(end_reason or EndReason.LEFT)
        if self.audience is not None:
            self.audience.remove_client(self)
        self.hub.remove_client(self)
        listener, self._close_listener = self._close_listener, None
        if listener is not None:
            listener.on_client_closed()
        # `take_handover` has yet to use the position.
        self.stop_reading(keep_position=end_reason is EndReason.CHANGED)

    def _count_end(self, reason: EndReason) -> None:
        self.subscription.traffic.ended[reason] += 1
        if log.isEnabledFor(logging.DEBUG):
            with self.log_context():
                log.debug("stream ended reason=%s", reason)


class ClientRegistry:
    """The clients of a hub that have subscribed and are not closed yet.

    All can be visited while they come and go: removing a client moves the last one into its place,
    so that an iteration from the last to the first needs no copy. A copy of a million blocked the
    loop, and the garbage collector then traversed it for 35 ms.

    Invariant between calls: the `registry_index` of each client is its place in `_clients`, and
    that of every other client of the hub is `NOT_REGISTERED`.
    """

    def __init__(self) -> None:
        self._clients: list[Client] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: Client) -> bool:
        return client.registry_index != NOT_REGISTERED

    def __iter__(self) -> Iterator[Client]:
        """Iterate over all clients from the last to the first, while clients come and go.

        Each client that is there all the time is visited. One that was visited may be again, if
        it was moved into the place of one that left; clients that came meanwhile may be missed.
        """
        index = len(self._clients)
        while (index := min(index, len(self._clients)) - 1) >= 0:
            yield self._clients[index]

    def add(self, client: Client) -> None:
        client.registry_index = len(self._clients)
        self._clients.append(client)

    def discard(self, client: Client) -> None:
        index, client.registry_index = client.registry_index, NOT_REGISTERED
        if index == NOT_REGISTERED:
            return
        last = self._clients.pop()
        if last is not client:
            self._clients[index] = last
            last.registry_index = index
