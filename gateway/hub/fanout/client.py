"""One client: a subscription, and the way its bytes go.

Attached to an outlet it costs no task: what is published is written to it in rounds (see
`broadcaster`), and it pushes by itself only what it has to itself. Where there is no outlet it is
an async iterator of bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gateway.core.channel.byte_counts import Sum
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.core.client.throttle import Throttle
from gateway.core.log.partition_reader import Since
from gateway.core.log.position import Position
from gateway.core.log.record import Reason, TopicPartition
from gateway.core.token.resume_token import Token
from gateway.hub.reads.backfill import Lacks
from gateway.hub.wires.wire import Wire
from gateway.telemetry.about import about
from gateway.telemetry.traffic import CATCHING_UP, SLOW, THROTTLED, UNPAID

from .alarm import WallAlarm
from .allowance import Allowance
from .broadcaster import Fan
from .outlet import Outlet
from .shared_tail import SharedTail
from .view import View

if TYPE_CHECKING:
    from .hub import Hub
    from .shared_catch_up import Herd

log = logging.getLogger(__name__)

BUDGET = 64 * 1024  # bytes taken at once
SOON = 0.1  # seconds for which BEGIN waits for partitions that answer with the first one
FOREVER = 1e9
EXPIRED = "token-expired"
CHANGED = "changed"  # why one ends whose stream goes on as another view
LEFT = "left"  # why it ended that was not told an end

C = TypeVar("C", bound="Client")


class Standing(NamedTuple):
    """places: as of these topic `ids`."""

    places: Position
    ids: Mapping[str, str]


class Handover(NamedTuple):
    """What one that ends as `CHANGED` leaves to the client in its place: where it stood among
    these topics of a cluster, and what was left of its terms.

    records: after which it ends.
    got:     the sum of what went out, on wires that count.
    ends_at: by the loop's clock.
    throttle: what it was sent lately, where it had a rate.
    route:   as metrics call it.
    """

    position: bytes
    cluster: str
    topics: frozenset[str]
    number: int
    until: Mapping[TopicPartition, int] | None
    records: int | None
    credit: int | None
    got: Sum | None
    ends_at: float
    throttle: Throttle | None
    route: str


class Client:
    """See the module.

    token:    what it resumes from.
    since:    where it begins in the partitions that are pending in no token.
    refused:  it came with a token that could not be used; told as a gap.
    after:    of the one in whose place it comes.
    view:     what it looks at, where somebody asks.
    number:   of all streams of this hub, the one that it is; what the log calls it.
    allowance: what `maxRate` lets it have.
    """

    __slots__ = (
        "_again", "_alarm", "_allowance", "_aside", "_changed", "_closed", "_deadline", "_ended",
        "_fan", "_hub", "_lacks", "_puller", "_refused", "_shared", "_soon", "_view_changed",
        "_wire", "ends_at", "heartbeat", "herd", "number", "outlet", "sent_at", "subscription",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        shared: SharedTail,
        subscription: Subscription,
        wire: Wire,
        *,
        heartbeat: float,
        deadline: float,
        lifetime: float | None = None,
        expires: float | None = None,
        token: Token | None = None,
        since: Since | None = None,
        refused: bool = False,
        after: Handover | None = None,
        view: View | None = None,
        number: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        self.number = number
        self.view = view
        self._allowance = allowance
        self.subscription = subscription
        self.heartbeat = heartbeat
        self.outlet: Outlet | None = None
        self.sent_at = 0.0  # when it was last written to by itself, by the loop's clock
        self.ends_at = lifetime or FOREVER  # from `begin` on by the loop's clock
        if after is not None:
            self.ends_at = after.ends_at - asyncio.get_running_loop().time()
        self._hub = hub
        self._shared = shared
        self._wire = wire
        self._deadline = deadline
        self._refused = refused
        self._again = after is not None
        self._aside = b""  # pulled, and for it alone
        self._view_changed = token is not None and token.view != subscription.channel.view
        self._changed: asyncio.Future[None] | None = None  # what `ready` waits for
        self._lacks: Lacks | None = None
        self._puller: _Puller | None = None
        self._fan: Fan | None = None  # while it rides
        self.herd: Herd | None = None  # while that one sees to what it is sent
        self._soon = self._ended = self._closed = False
        self._alarm: WallAlarm | None = None
        self.expire_at(expires)
        if token is not None or since is not None or subscription.own:
            self._lacks = Lacks(hub, shared, subscription, self.wake, token=token, since=since)
        subscription.wake = self.wake

    async def ready(self) -> None:
        """Return when BEGIN is due: with the first ready partition, when time is up, or when the
        stream was told to end."""
        loop = asyncio.get_running_loop()
        tail = self._shared.tail
        self._hub.feeds.refresh_readiness(self._shared)
        while not (self.subscription.ended or self._begins(loop.time())):
            changed = self._changed = loop.create_future()
            self._shared.changed.add(changed)
            try:
                begun = tail.readiness.begins(self._deadline, loop.time())
                async with asyncio.timeout(SOON) if begun else asyncio.timeout_at(self._deadline):
                    await changed
            except TimeoutError:
                pass
            finally:
                self._shared.changed.discard(changed)
                self._changed = None

    def _begins(self, now: float) -> bool:
        """Those that were asked for their end just now are waited for a moment: found after
        BEGIN, they would have to start by time, with older records."""
        due = self._shared.tail.readiness.begins(self._deadline, now)
        return due and not self._hub.feeds.resolving(self._shared, now - SOON)

    def begin(self) -> bytes:
        """The first block; to be taken once, before anything that follows."""
        self.sent_at = asyncio.get_running_loop().time()
        self.ends_at += self.sent_at
        if self._lacks is not None:
            self._lacks.retire()
        self._hub.feeds.refresh_readiness(self._shared)
        pending, token = self.subscription.begin()
        self._hub.feeds.promise(pending)
        logs = self._shared.tail.logs  # nobody else hears of partitions that only its token knows
        unknown = [tp for tp in self.subscription.own if tp not in logs]
        first = self._wire.begin(
            self._told(sorted([*pending, *unknown])),
            token,
            refused=self._refused,
            again=self._again,
        )
        self._note_begin(first, token)
        self.subscription.add(first)
        if self._lacks is not None:
            self.herd = self._hub.herds.join(self)
        self._seek()
        return first

    def _note_begin(self, first: bytes, token: bytes) -> None:
        traffic = self.subscription.traffic
        traffic.bytes += len(first)
        traffic.tokens.observe(len(token))
        if self._refused:
            traffic.told((Reason.POSITION_REFUSED,))

    def _note_end(self, reason: str) -> None:
        self.subscription.traffic.ended[reason] += 1
        if log.isEnabledFor(logging.DEBUG):
            with self._about():
                log.debug("stream ended reason=%s", reason)

    def _about(self) -> about:
        return about(route=self.subscription.traffic.route or None, stream=self.number)

    def standing(self) -> Standing:
        """Where it stands, to `go_on` from there; also for another that comes from where it did."""
        return Standing(self.subscription.places(), self._lacks.ids if self._lacks else {})

    def go_on(self, standing: Standing, cursor: int | None = None) -> None:
        """By itself again, after a herd."""
        self.herd = None
        self.subscription.go_on(standing.places, cursor)
        if self._lacks is not None:
            self._lacks.ids = standing.ids

    def twin(self, kind: type[C]) -> C:
        """Another one that comes from where this one does."""
        lacks, subscription = self._lacks, self.subscription
        return kind(
            self._hub,
            self._shared,
            Subscription(
                subscription.channel,
                subscription.own,
                since=subscription.since,
                traffic=subscription.traffic.twin(),
            ),
            self._wire,
            heartbeat=FOREVER,
            deadline=self._deadline,
            token=lacks.token if lacks is not None else None,
            since=lacks.since if lacks is not None else None,
        )

    @property
    def reach(self) -> float | None:
        """Seconds that its route lets it go back; None for any number."""
        token = None if self._lacks is None else self._lacks.token
        return None if token is None else token.reach

    @property
    def credit(self) -> int | None:
        """Records that it has asked for; None for any number."""
        return self.subscription.credit if self._allowance is None else self._allowance.credit

    def grant(self, records: int) -> None:
        """Let so many more be sent, to a client that asked for a limit."""
        if self._allowance is not None:
            self._allowance.grant(records)
        elif self.subscription.credit is not None:
            self.subscription.credit += records
        self.wake()

    def adapt(self, heartbeat: float, slow: SlowClient) -> None:
        """To what its route says by now."""
        self.heartbeat = heartbeat
        self.subscription.slow = slow

    def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        """An event for this client alone, once it has begun; whatever waits in its outlet, it
        goes behind that."""
        told = self._wire.tell(kind, dict(data))
        if self.outlet is not None and not self._ended:
            self.outlet.write(self._counted(told))
        elif self._puller is not None:
            self._aside = told
            self.wake()

    def expire_at(self, expires: float | None) -> None:
        """End it then, in seconds since 1970, unless told another time before: what lets its client
        in is over. None: nothing ends it so."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if expires is not None:
            self._alarm = WallAlarm(expires, self._expire)

    def _expire(self) -> None:
        self.end(EXPIRED)

    def end(self, reason: str) -> None:
        """End the stream with an `end` event."""
        self.subscription.ended = self.subscription.ended or reason
        self.wake()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def close(self) -> None:
        """Nobody is there any more."""
        if self._closed:
            return
        self._closed = True
        self.expire_at(None)
        self.outlet = None
        self._note_end((self.subscription.ended if self._ended else None) or LEFT)
        if self._allowance is not None:
            self._allowance.close()
        if self._fan is not None:
            self._fan.drop(self)
        if self.herd is not None:
            self.herd.leave(self)
        self._hub.leave(self)
        self.subscription.close()
        self._shared.was_left = True
        if self._lacks is not None:
            self._lacks.close()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Drop references that are cycles, so that a closed client is freed at once.

        Else its 40 objects and the texts of its filters wait for the garbage collector. A client
        that was told to end as `CHANGED`, or that is pulled, keeps its position: `handover` and
        `end` are yet to tell it.
        """
        self._lacks = None
        self.subscription.wake = _nothing
        if self.subscription.ended != CHANGED and self._puller is None:
            self.subscription.alone = None

    @property
    def state(self) -> str | None:
        """Why it may have yet to get what was published; None while it is written to in rounds."""
        if self._fan is not None:
            return None
        if self.outlet is not None and self.outlet.full:
            return SLOW
        if self.subscription.credit != 0:
            return CATCHING_UP
        return UNPAID if self._allowance is None or self._allowance.credit == 0 else THROTTLED

    def handover(self) -> Handover:
        """To be taken once it has begun and is told to end as `CHANGED`, before it is closed."""
        subscription = self.subscription
        handover = Handover(
            subscription.position, self._hub.name,
            frozenset(subscription.channel.tail.ids), self.number,
            subscription.until, subscription.count, self.credit, subscription.got, self.ends_at,
            None if self._allowance is None else self._allowance.throttle,
            subscription.traffic.route,
        )  # fmt: skip
        subscription.alone = None  # as in `_break_cycles`
        return handover

    def after(self, left: Callable[[], None]) -> None:
        """Call it once this client is gone."""
        self._hub.after(self, left)

    # pushed to an outlet

    def attach(self, outlet: Outlet, head: bytes = b"") -> None:
        """Begin, and from now on write whatever there is. head: goes before it."""
        self.outlet = outlet
        first = head + self.begin()
        if first:
            outlet.write(first)
        self.push()

    def drained(self) -> None:
        """The outlet is no longer full."""
        self.wake()

    def dismount(self) -> None:
        """It is no rider any more."""
        self._fan = None
        if not self._closed:
            self.subscription.channel.sleepers.add(self.subscription)
            self.wake()

    def beat(self, now: float) -> None:
        """Keep an idle stream alive, and end it when its time is up. `now` by the loop's clock."""
        if self.outlet is None or self._ended:
            return
        if self._fan is not None:
            self.sent_at = max(self.sent_at, self._fan.sent_at)
        if now >= self.ends_at:
            self.end("lifetime")
        elif now - self.sent_at >= self.heartbeat and not self.outlet.full:
            self.sent_at = now
            self.probe()

    def probe(self) -> None:
        """Write a heartbeat now: what becomes of it tells whether the client is still there."""
        if self.outlet is not None and not self._ended:
            beat = self._heartbeat()
            if beat:
                self.outlet.write(beat)

    def wake(self) -> None:
        """See what there is to send, in a moment: never within the turn that brings it."""
        if self._puller is not None:
            self._puller.woken.set()
        elif self.outlet is not None and not self._soon:
            self._soon = True
            self._hub.pump.push(self)

    def push(self) -> None:
        """Send about BUDGET bytes of what is its own; once it has it all it is among the riders
        of its channel, which the pump writes to."""
        self._soon = False
        outlet, subscription = self.outlet, self.subscription
        if outlet is None or self._ended or (outlet.full and not subscription.ended):
            return
        data = self._take()
        if data:
            self.sent_at = asyncio.get_running_loop().time()
            outlet.write(data)
        if subscription.ended:
            self._ended = True
            if subscription.ended == CHANGED:
                outlet.hand_over()
            else:
                outlet.finish(self._last(subscription.ended))
            self.close()
        elif outlet.full:
            return
        elif data or subscription.more:
            self.wake()
        elif self._fan is None and subscription.rides and not subscription.channel.fails:
            self._mount()

    def _mount(self) -> None:
        self._fan = self._hub.pump.ride(self)

    # pulled

    async def stream(self) -> AsyncIterator[bytes]:
        """Everything the client is sent, from the first block to `end`."""
        try:
            yield self.begin()
            while (data := await self.next()) is not None:
                yield data
        finally:
            self.close()

    async def next(self) -> bytes | None:
        """What comes next: data, a heartbeat, at last `end`; then None. It may be cancelled and
        called again: nothing is taken before there is something."""
        subscription = self.subscription
        puller = self._puller = self._puller or _Puller()
        while not self._ended:
            puller.woken.clear()
            data = self._take()
            if data:
                return data
            elif subscription.ended:
                self._ended = True
                return None if subscription.ended == CHANGED else self._last(subscription.ended)
            elif subscription.more:
                await asyncio.sleep(0)
            elif asyncio.get_running_loop().time() >= self.ends_at:
                subscription.ended = "lifetime"
            elif not await puller.wait(self.heartbeat, self.ends_at):
                return self._heartbeat()
        return None

    def _take(self) -> bytes:
        if self.subscription.ended == EXPIRED:
            if self.herd is not None:  # or `end` would tell where it stood before
                self.herd.release(self)
            return b""
        if self._aside:
            aside, self._aside = self._aside, b""
            return self._counted(aside)
        if self.herd is not None:
            data = self.herd.take(self)
            if data is not None:
                return self._counted(data)
        if self._lacks is not None:
            self._lacks.retire()
        if self._allowance is None:
            data = self.subscription.take(BUDGET)
        else:
            data = self._allowance.take(self.subscription, BUDGET, self.wake)
        self.subscription.traffic.bytes += len(data)
        self._seek()
        return data

    def _heartbeat(self) -> bytes:
        return self._counted(self._wire.heartbeat())

    def _counted(self, data: bytes) -> bytes:
        self.subscription.add(data)
        self.subscription.traffic.bytes += len(data)
        return data

    def _last(self, reason: str) -> bytes:
        last = self._wire.end(reason, self.subscription.position, self.subscription.got)
        self.subscription.traffic.bytes += len(last)
        return last

    def _seek(self) -> None:
        if self.subscription.alone is None or self.herd is not None:
            return
        if self._lacks is None:
            self._lacks = Lacks(self._hub, self._shared, self.subscription, self.wake)
        with self._about():  # who woke it may be anybody
            self._lacks.seek()

    def _told(self, pending: Sequence[TopicPartition]) -> dict[str, Any]:
        """What BEGIN says."""
        tail = self._shared.tail
        flushes = tail.conflates or self.subscription.snapshot is not None
        data: dict[str, Any] = {
            "topics": list(tail.ids),
            "partitions": self._shared.named(),
            "pending": [{"topic": tp.topic, "partition": tp.partition} for tp in pending],
            "resume": "exact" if tail.exact and not flushes else "batch",
        }
        if self._view_changed:
            data["view"] = "changed"
        if self._again:
            data["changed"] = True
        return data


class _Puller:
    """Waits for something to send, or for the time of a heartbeat."""

    __slots__ = ("_rang", "woken")

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self._rang = False

    async def wait(self, heartbeat: float, ends_at: float) -> bool:
        """False if it is time for a heartbeat."""
        loop = asyncio.get_running_loop()
        # A timer of the loop: 3.7 us a wait, 6.5 us with asyncio.timeout; each delivery waits once.
        alarm = loop.call_at(min(loop.time() + heartbeat, ends_at), self._ring)
        self._rang = False
        try:
            await self.woken.wait()
        finally:
            alarm.cancel()
        return not self._rang or loop.time() >= ends_at

    def _ring(self) -> None:
        self._rang = True
        self.woken.set()


def _nothing() -> None:
    """In place of a wake."""
