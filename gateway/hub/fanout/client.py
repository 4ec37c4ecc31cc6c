"""Serve one client: a subscription, and the way its bytes go out.

A client that is attached to an outlet has no task. What is published is written to it in rounds by
the `Broadcaster`, and it pushes only what is its own: what it is sent while it catches up,
heartbeats and the end. Without an outlet, a client is an async iterator of bytes that is pulled by
its caller.

The states of an attached client:

- In a `ReceiverGroup`: it has all that was published, and rounds write to it.
- In a `SharedCatchUp`: it is sent what a leader reads for several clients.
- Otherwise `push` takes from its subscription: from its channel's ring, or from its private reader,
  which `Backfill` feeds from Kafka. When it has caught up it joins a group again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.client.slow_client import SlowClientPolicy
from gateway.core.client.subscription import Subscription
from gateway.core.client.throttle import Throttle
from gateway.core.log.partition_reader import TimestampStart
from gateway.core.log.position import Position
from gateway.core.log.record import GapReason, TopicPartition
from gateway.core.token.resume_token import ResumeToken
from gateway.hub.reads.backfill import Backfill
from gateway.hub.reads.services import ReadServices
from gateway.hub.wires.wire import Wire
from gateway.telemetry.log_context import log_context
from gateway.telemetry.traffic import CATCHING_UP, NO_CREDIT, SLOW, THROTTLED

from .broadcaster import Broadcaster, ReceiverGroup
from .outlet import Outlet
from .rate_limiter import RateLimiter
from .shared_tail import SharedTail
from .view import View
from .wall_clock_timer import WallClockTimer

log = logging.getLogger(__name__)

MAX_PUSH_BYTES = 64 * 1024  # bytes that are taken from a subscription at once
BEGIN_GRACE_S = 0.1  # seconds for which BEGIN waits for partitions that answer about now
UNLIMITED_S = 1e9

# Reasons of an end.
END_EXPIRED = "token-expired"
END_CHANGED = "changed"  # another client, with another view, goes on with the stream
END_LEFT = "left"  # the client went away (in metrics only)

C = TypeVar("C", bound="Client")


class ClientPosition(NamedTuple):
    """Describe where a client stands.

    Attributes:
        position: The position of every partition.
        topic_ids: The topic ids that the position is of, by topic.
    """

    position: Position
    topic_ids: Mapping[str, str]


class Handover(NamedTuple):
    """Describe what a client that ends as `END_CHANGED` leaves to the client that replaces it.

    Attributes:
        position: The resume token of where it stood.
        cluster: The name of its cluster.
        topics: The topics of its view.
        number: Its number, which the stream keeps.
        until: The offsets at which partitions end; None for no end.
        records_left: The number of records after which the stream ends; None for no limit.
        credit: The number of records that the client has asked for; None for any number.
        delivered_sum: The sum of what was sent, on wires that count bytes.
        ends_at: When its lifetime ends, by the loop's clock in seconds.
        throttle: What it was sent lately, if its route has a `maxRate`.
        route: The route as metrics name it.
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


class CatchUpSource(Protocol):
    """Define what a client needs of the `SharedCatchUp` that it is a member of.

    Attributes:
        subscription: The subscription of the client that reads for all members.
    """

    subscription: Subscription

    def take_piece(self, client: Client) -> bytes | None:
        """Return the client's next piece; None if it is no member any more."""

    def get_member_position(self, client: Client) -> ClientPosition:
        """Return where the client stands."""

    def release_member(self, client: Client) -> None:
        """Let the client go on by itself."""

    def remove_member(self, client: Client) -> None:
        """Remove a client that is being closed."""


class CatchUpRegistry(Protocol):
    """Define what a client needs of `SharedCatchUps`."""

    def join(self, client: Client) -> CatchUpSource | None:
        """Add the client to the shared catch-up of its position; None if it reads alone."""


class ClientOwner(Protocol):
    """Define what a client needs of the `Hub` that it belongs to.

    Attributes:
        name: The name of the cluster; empty where there is only one.
        broadcaster: Writes to live clients.
    """

    name: str
    broadcaster: Broadcaster

    @property
    def shared_catch_ups(self) -> CatchUpRegistry:
        """Return the reads of the past that several clients share."""

    @property
    def read_services(self) -> ReadServices:
        """Return what clients and their backfills read with."""

    def remove_client(self, client: Client) -> None:
        """Forget a client that is being closed."""

    def call_when_closed(self, client: Client, on_closed: Callable[[], None]) -> None:
        """Call `on_closed` once the client is closed."""


class Client:
    """Serve one client of a view, from its first block to its end.

    `Hub.subscribe` creates it; whoever asked for it owns it, and must close it. It either is
    attached to an outlet (`attach`) or pulled (`iter_bytes`, `next_bytes`), after
    `wait_until_ready`. It may be closed at any time and more than once.

    Args:
        owner: The hub that it is a client of.
        shared_tail: The tail of its topics.
        subscription: Its cursor, which it owns.
        wire: How its bytes are encoded.
        heartbeat: Seconds after which an idle stream is sent a heartbeat.
        deadline: When BEGIN is due at the latest, by the loop's clock in seconds.
        lifetime: Seconds from BEGIN to the end of the stream; None for no limit.
        expires_at: When its access expires, in seconds since 1970; None for never.
        token: The resume token that it resumes from, verified.
        since: Where it begins in partitions whose start is not resolved yet.
        position_refused: It came with a token that could not be used; BEGIN says so by a gap.
        handover: What the client left that this one replaces.
        view: What it is shown; for callers that look at it.
        number: Its number among all streams of the process, for logs.
        rate_limiter: What `maxRate` lets it be sent; None for no limit.

    Attributes:
        ends_at: When its lifetime ends, by the loop's clock. Before BEGIN: the seconds of it.
        sent_at: When it was last sent something of its own, by the loop's clock.
        outlet: The connection that it is attached to; None if it is pulled or closed.
        shared_catch_up: The shared catch-up that it is a member of; None for none.
    """

    __slots__ = (
        "_backfill",
        "_closed",
        "_deadline",
        "_expiry_timer",
        "_is_continuation",
        "_is_end_written",
        "_is_push_scheduled",
        "_owner",
        "_position_refused",
        "_private_event",
        "_puller",
        "_rate_limiter",
        "_ready_waiter",
        "_receiver_group",
        "_shared_tail",
        "_view_changed",
        "_wire",
        "ends_at",
        "heartbeat",
        "number",
        "outlet",
        "sent_at",
        "shared_catch_up",
        "subscription",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        owner: ClientOwner,
        shared_tail: SharedTail,
        subscription: Subscription,
        wire: Wire,
        *,
        heartbeat: float,
        deadline: float,
        lifetime: float | None = None,
        expires_at: float | None = None,
        token: ResumeToken | None = None,
        since: TimestampStart | None = None,
        position_refused: bool = False,
        handover: Handover | None = None,
        view: View | None = None,
        number: int = 0,
        rate_limiter: RateLimiter | None = None,
    ) -> None:
        self.number = number
        self.view = view
        self._rate_limiter = rate_limiter
        self.subscription = subscription
        self.heartbeat = heartbeat
        self.outlet: Outlet | None = None
        self.sent_at = 0.0
        # A number of seconds for now; `begin` adds the time.
        self.ends_at = lifetime or UNLIMITED_S
        if handover is not None:
            self.ends_at = handover.ends_at - asyncio.get_running_loop().time()
        self._owner = owner
        self._shared_tail = shared_tail
        self._wire = wire
        self._deadline = deadline
        self._position_refused = position_refused
        self._is_continuation = handover is not None
        self._private_event = b""  # an event for this client only, until it is pulled
        self._view_changed = token is not None and token.view != subscription.channel.view
        self._ready_waiter: asyncio.Future[None] | None = None  # of `wait_until_ready`
        self._backfill: Backfill | None = None
        self._puller: _Puller | None = None
        self._receiver_group: ReceiverGroup | None = None  # set while rounds write to it
        self.shared_catch_up: CatchUpSource | None = None
        self._is_push_scheduled = self._is_end_written = self._closed = False
        self._expiry_timer: WallClockTimer | None = None
        self.set_expiry(expires_at)
        if token is not None or since is not None or subscription.private_positions:
            self._backfill = Backfill(
                owner.read_services, shared_tail, subscription, self.wake, token=token, since=since
            )
        subscription.wake = self.wake

    async def wait_until_ready(self) -> None:
        """Return when BEGIN is due.

        That is when the first partition is ready, when the readiness timeout has expired, or when
        the stream is to end.
        """
        loop = asyncio.get_running_loop()
        tail = self._shared_tail.tail
        self._owner.read_services.shared_reads.refresh_readiness(self._shared_tail)
        while not (self.subscription.end_reason or self._should_begin(loop.time())):
            waiter = self._ready_waiter = loop.create_future()
            self._shared_tail.ready_waiters.add(waiter)
            try:
                # If BEGIN is due but for partitions that are being resolved, wait a moment only.
                is_due = tail.readiness.should_begin(self._deadline, loop.time())
                async with (
                    asyncio.timeout(BEGIN_GRACE_S) if is_due else asyncio.timeout_at(self._deadline)
                ):
                    await waiter
            except TimeoutError:
                pass
            finally:
                self._shared_tail.ready_waiters.discard(waiter)
                self._ready_waiter = None

    def _should_begin(self, now: float) -> bool:
        """Return whether BEGIN is due, and no partition's end was asked for just now.

        Such partitions are waited for a moment longer. If their end became known after BEGIN, they
        would have to start by time, with older records.
        """
        due = self._shared_tail.tail.readiness.should_begin(self._deadline, now)
        return due and not self._owner.read_services.shared_reads.is_resolving(
            self._shared_tail, now - BEGIN_GRACE_S
        )

    def begin(self) -> bytes:
        """Return the first block. It is called once, before anything that follows is taken."""
        self.sent_at = asyncio.get_running_loop().time()
        self.ends_at += self.sent_at
        if self._backfill is not None:
            self._backfill.retire_recreated()
        # What BEGIN calls pending must be so at this instant.
        self._owner.read_services.shared_reads.refresh_readiness(self._shared_tail)
        pending, token = self.subscription.begin()
        self._owner.read_services.shared_reads.pin_starts(pending)
        # Partitions that only its token knows of are pending, too, for this client only.
        logs = self._shared_tail.tail.logs
        unknown = [tp for tp in self.subscription.private_positions if tp not in logs]
        first = self._wire.encode_begin(
            self._build_begin_data(sorted([*pending, *unknown])),
            token,
            position_refused=self._position_refused,
            is_continuation=self._is_continuation,
        )
        self._count_begin(first, token)
        self.subscription.count_private(first)
        if self._backfill is not None:
            self.shared_catch_up = self._owner.shared_catch_ups.join(self)
        self._start_backfill()
        return first

    def _count_begin(self, first: bytes, token: bytes) -> None:
        traffic = self.subscription.traffic
        traffic.bytes += len(first)
        traffic.token_bytes.observe(len(token))
        if self._position_refused:
            traffic.count_gaps((GapReason.POSITION_REFUSED,))

    def _count_end(self, reason: str) -> None:
        self.subscription.traffic.ended[reason] += 1
        if log.isEnabledFor(logging.DEBUG):
            with self._log_context():
                log.debug("stream ended reason=%s", reason)

    def _log_context(self) -> log_context:
        """Return the log context of this stream: its route and its number."""
        return log_context(route=self.subscription.traffic.route or None, stream=self.number)

    def get_position(self) -> ClientPosition:
        """Return where it stands, for `resume`.

        It is also given to other clients that started from the same position (`SharedCatchUp`).
        """
        return ClientPosition(
            self.subscription.get_position(), self._backfill.topic_ids if self._backfill else {}
        )

    def get_delivered_position(self) -> Position:
        """Return where it stands, also while a shared catch-up reads for it."""
        catch_up = self.shared_catch_up
        position = self.get_position() if catch_up is None else catch_up.get_member_position(self)
        return position.position

    def resume(self, position: ClientPosition, cursor: int | None = None) -> None:
        """Leave a shared catch-up and go on from a position.

        Args:
            position: Where the client stands.
            cursor: The number of the channel's chunk that follows the position; None if the
                position is not one of the channel's.
        """
        self.shared_catch_up = None
        self.subscription.reattach(position.position, cursor)
        if self._backfill is not None:
            self._backfill.topic_ids = position.topic_ids

    def create_twin(self, client_type: type[C]) -> C:
        """Create a client without a connection that starts from the same position as this one.

        What it is sent is counted for nobody, but what it reads is counted for this client's route.
        Its creator owns it.

        Args:
            client_type: The class of the client to create.
        """
        backfill, subscription = self._backfill, self.subscription
        return client_type(
            self._owner,
            self._shared_tail,
            Subscription(
                subscription.channel,
                subscription.private_positions,
                resolve_since=subscription.resolve_since,
                traffic=subscription.traffic.create_reader_counts(),
            ),
            self._wire,
            heartbeat=UNLIMITED_S,
            deadline=self._deadline,
            token=backfill.token if backfill is not None else None,
            since=backfill.since if backfill is not None else None,
        )

    @property
    def max_age(self) -> float | None:
        """Return how many seconds its route lets it go back; None for no limit."""
        token = None if self._backfill is None else self._backfill.token
        return None if token is None else token.max_age

    @property
    def credit(self) -> int | None:
        """Return how many more records it has asked for; None for any number."""
        return self.subscription.credit if self._rate_limiter is None else self._rate_limiter.credit

    def grant_credit(self, records: int) -> None:
        """Let a client that asked for a limit be sent so many more records."""
        if self._rate_limiter is not None:
            self._rate_limiter.grant_credit(records)
        elif self.subscription.credit is not None:
            self.subscription.credit += records
        self.wake()

    def apply_route_settings(self, heartbeat: float, slow: SlowClientPolicy) -> None:
        """Apply what its route says after a reload.

        Args:
            heartbeat: Seconds after which an idle stream is sent a heartbeat.
            slow: What to do when the client falls behind.
        """
        self.heartbeat = heartbeat
        self.subscription.slow_policy = slow

    def send_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Send an event to this client only, once it has begun.

        It follows whatever waits in the outlet already.

        Args:
            kind: The name of the event.
            data: Its data, which is encoded as JSON.
        """
        event = self._wire.encode_event(kind, dict(data))
        if self.outlet is not None and not self._is_end_written:
            self.outlet.write(self._count_bytes(event))
        elif self._puller is not None:
            self._private_event = event
            self.wake()

    def set_expiry(self, expires_at: float | None) -> None:
        """End the stream when its access expires, in place of any time set before.

        Args:
            expires_at: The time in seconds since 1970; None for never.
        """
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if expires_at is not None:
            self._expiry_timer = WallClockTimer(expires_at, self._on_expired)

    def _on_expired(self) -> None:
        self.end(END_EXPIRED)

    def end(self, reason: str) -> None:
        """End the stream with an `end` event; the first reason counts."""
        self.subscription.end_reason = self.subscription.end_reason or reason
        self.wake()
        if self._ready_waiter is not None and not self._ready_waiter.done():
            self._ready_waiter.set_result(None)

    def close(self) -> None:
        """Release everything: the client is gone, or has been sent its end."""
        if self._closed:
            return
        self._closed = True
        self.set_expiry(None)
        self.outlet = None
        self._count_end(
            (self.subscription.end_reason if self._is_end_written else None) or END_LEFT
        )
        if self._rate_limiter is not None:
            self._rate_limiter.close()
        # `_closed` is set already, so that leaving the group does not wake it.
        if self._receiver_group is not None:
            self._receiver_group.remove_client(self)
        if self.shared_catch_up is not None:
            self.shared_catch_up.remove_member(self)
        self._owner.remove_client(self)
        self.subscription.close()
        self._shared_tail.has_left_channels = True
        if self._backfill is not None:
            self._backfill.close()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Drop references that are cycles, so that a closed client is freed at once.

        Otherwise its 40 objects and the texts of its filters wait for the garbage collector. A
        client that ends as `END_CHANGED`, or that is pulled, keeps its position: `take_handover`
        and the `end` event have yet to use it.
        """
        self._backfill = None
        self.subscription.wake = _ignore_wake
        if self.subscription.end_reason != END_CHANGED and self._puller is None:
            self.subscription.private_reader = None

    @property
    def state(self) -> str | None:
        """Return why it may not have all that was published; None while rounds write to it."""
        if self._receiver_group is not None:
            return None
        if self.outlet is not None and self.outlet.full:
            return SLOW
        if self.subscription.credit != 0:
            return CATCHING_UP
        return (
            NO_CREDIT if self._rate_limiter is None or self._rate_limiter.credit == 0 else THROTTLED
        )

    def take_handover(self) -> Handover:
        """Return what the client that replaces this one needs.

        It is called once, after BEGIN and after `end(END_CHANGED)`.
        """
        subscription = self.subscription
        handover = Handover(
            subscription.token, self._owner.name,
            frozenset(subscription.channel.tail.topic_ids), self.number,
            subscription.end_offsets, subscription.remaining_records, self.credit,
            subscription.delivered_sum, self.ends_at,
            None if self._rate_limiter is None else self._rate_limiter.throttle,
            subscription.traffic.route,
        )  # fmt: skip
        subscription.private_reader = None  # as in `_break_cycles`
        return handover

    def call_when_closed(self, on_closed: Callable[[], None]) -> None:
        """Call a function once this client is closed, or now if it is."""
        self._owner.call_when_closed(self, on_closed)

    # pushed to an outlet

    def attach(self, outlet: Outlet, head: bytes = b"") -> None:
        """Begin, and from now on write to an outlet.

        Args:
            outlet: The connection.
            head: Bytes that go out before the first block.
        """
        self.outlet = outlet
        first = head + self.begin()
        if first:
            outlet.write(first)
        self.push()

    def on_drained(self) -> None:
        """Go on: the outlet is no longer full."""
        self.wake()

    def on_group_left(self) -> None:
        """Take over from the rounds of a group, which no longer write to this client."""
        self._receiver_group = None
        if not self._closed:
            # Again it has to hear of each chunk itself. Something may be there already.
            self.subscription.channel.followers_to_wake.add(self.subscription)
            self.wake()

    def check_heartbeat(self, now: float) -> None:
        """Write a heartbeat to an idle stream, and end a stream whose lifetime is over.

        Args:
            now: The time by the loop's clock, in seconds.
        """
        if self.outlet is None or self._is_end_written:
            return
        if self._receiver_group is not None:
            self.sent_at = max(self.sent_at, self._receiver_group.sent_at)
        if now >= self.ends_at:
            self.end("lifetime")
        elif now - self.sent_at >= self.heartbeat and not self.outlet.full:
            self.sent_at = now
            self.probe()

    def probe(self) -> None:
        """Write a heartbeat now: the connection shows by it whether the client is still there."""
        if self.outlet is not None and not self._is_end_written:
            heartbeat = self._build_heartbeat()
            if heartbeat:
                self.outlet.write(heartbeat)

    def wake(self) -> None:
        """Look for something to send soon, but never within the call that brought it."""
        if self._puller is not None:
            self._puller.woken.set()
        elif self.outlet is not None and not self._is_push_scheduled:
            self._is_push_scheduled = True
            self._owner.broadcaster.schedule_push(self)

    def push(self) -> None:
        """Send about `MAX_PUSH_BYTES` of what is this client's own.

        Once it has everything, it joins the group that the `Broadcaster` writes to.
        """
        self._is_push_scheduled = False
        outlet, subscription = self.outlet, self.subscription
        # A full outlet gets nothing but an end, which must not wait until the client takes more.
        if outlet is None or self._is_end_written or (outlet.full and not subscription.end_reason):
            return
        data = self._take_bytes()
        if data:
            self.sent_at = asyncio.get_running_loop().time()
            outlet.write(data)
        if subscription.end_reason:
            self._is_end_written = True
            if subscription.end_reason == END_CHANGED:
                outlet.hand_over()
            else:
                outlet.finish(self._build_end(subscription.end_reason))
            self.close()
        elif outlet.full:
            return  # `on_drained` wakes it
        elif data or subscription.has_more:
            self.wake()
        elif (
            self._receiver_group is None
            and subscription.is_fully_shared
            # A round does not look for gaps that end a stream (`offsetOutOfRange: fail`).
            and not subscription.channel.failing_topics
        ):
            self._join_receivers()

    def _join_receivers(self) -> None:
        """Let rounds write to this client: it has everything that was published."""
        self._receiver_group = self._owner.broadcaster.add_client(self)

    # pulled

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield everything the client is sent, from the first block to `end`; then close it."""
        try:
            yield self.begin()
            while (data := await self.next_bytes()) is not None:
                yield data
        finally:
            self.close()

    async def next_bytes(self) -> bytes | None:
        """Return what comes next: data, a heartbeat, at last `end`; then None.

        It may be cancelled and called again: nothing is taken before there is something to return.
        """
        subscription = self.subscription
        puller = self._puller = self._puller or _Puller()
        while not self._is_end_written:
            puller.woken.clear()  # before looking: a wake after the look must not be lost
            data = self._take_bytes()
            if data:
                return data
            elif subscription.end_reason:
                self._is_end_written = True
                return (
                    None
                    if subscription.end_reason == END_CHANGED
                    else self._build_end(subscription.end_reason)
                )
            elif subscription.has_more:  # a filter lets nothing through for a while
                await asyncio.sleep(0)
            elif asyncio.get_running_loop().time() >= self.ends_at:
                subscription.end_reason = "lifetime"
            elif not await puller.wait(self.heartbeat, self.ends_at):
                return self._build_heartbeat()
        return None

    def _take_bytes(self) -> bytes:
        """Return about `MAX_PUSH_BYTES` that can be sent now; empty while there are none."""
        if self.subscription.end_reason == END_EXPIRED:
            # Nothing more is sent after the expiry. A member of a shared catch-up has to get its
            # position back first, because `end` carries it.
            if self.shared_catch_up is not None:
                self.shared_catch_up.release_member(self)
            return b""
        if self._private_event:
            event, self._private_event = self._private_event, b""
            return self._count_bytes(event)
        if self.shared_catch_up is not None:
            data = self.shared_catch_up.take_piece(self)
            if data is not None:
                return self._count_bytes(data)
        if self._backfill is not None:
            self._backfill.retire_recreated()
        if self._rate_limiter is None:
            data = self.subscription.take(MAX_PUSH_BYTES)
        else:
            data = self._rate_limiter.take(self.subscription, MAX_PUSH_BYTES, self.wake)
        self.subscription.traffic.bytes += len(data)
        self._start_backfill()
        return data

    def _build_heartbeat(self) -> bytes:
        return self._count_bytes(self._wire.encode_heartbeat())

    def _count_bytes(self, data: bytes) -> bytes:
        """Count bytes that only this client is sent, and return them."""
        self.subscription.count_private(data)
        self.subscription.traffic.bytes += len(data)
        return data

    def _build_end(self, reason: str) -> bytes:
        last = self._wire.encode_end(
            reason, self.subscription.token, self.subscription.delivered_sum
        )
        self.subscription.traffic.bytes += len(last)
        return last

    def _start_backfill(self) -> None:
        """Start reading from Kafka what the private reader is missing."""
        if self.subscription.private_reader is None or self.shared_catch_up is not None:
            return
        if self._backfill is None:
            self._backfill = Backfill(
                self._owner.read_services, self._shared_tail, self.subscription, self.wake
            )
        with self._log_context():  # the calling task may serve another stream
            self._backfill.start_missing()

    def _build_begin_data(self, pending: Sequence[TopicPartition]) -> dict[str, Any]:
        """Return the data of the `begin` event."""
        tail = self._shared_tail.tail
        # Conflated output and snapshots have an id only at the end of each flush.
        flushes = tail.is_conflated or self.subscription.snapshot is not None
        data: dict[str, Any] = {
            "topics": list(tail.topic_ids),
            "partitions": self._shared_tail.count_partitions(),
            "pending": [{"topic": tp.topic, "partition": tp.partition} for tp in pending],
            "resume": "exact" if tail.has_exact_tokens and not flushes else "batch",
        }
        if self._view_changed:
            data["view"] = "changed"
        if self._is_continuation:
            data["changed"] = True
        return data


class _Puller:
    """Wait for something to send, or for the time of the next heartbeat."""

    __slots__ = ("_timed_out", "woken")

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self._timed_out = False

    async def wait(self, heartbeat: float, ends_at: float) -> bool:
        """Wait until the client is woken, or until a time.

        Args:
            heartbeat: Seconds to wait at most.
            ends_at: When the stream's lifetime ends, by the loop's clock.

        Returns:
            False if it is time for a heartbeat.
        """
        loop = asyncio.get_running_loop()
        # A timer of the loop: 3.7 us a wait, 6.5 us with asyncio.timeout; each delivery waits once.
        timer = loop.call_at(min(loop.time() + heartbeat, ends_at), self._on_timeout)
        self._timed_out = False
        try:
            await self.woken.wait()
        finally:
            timer.cancel()
        return not self._timed_out or loop.time() >= ends_at

    def _on_timeout(self) -> None:
        self._timed_out = True
        self.woken.set()


def _ignore_wake() -> None:
    """Do nothing; the `wake` of a closed client's subscription."""
