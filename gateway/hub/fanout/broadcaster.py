"""Rounds: what a channel publishes, written to all who ride with it.

A rider has everything its channel published and an outlet that takes what it is given; it is
in no task and waits for nothing. One that does not take a chunk whole leaves the round, falls
behind in its channel's ring, and comes back when it has caught up.

A round goes in slices, so that accepts and pings have their turns among 10,000 riders; what
is published meanwhile is joined to what the later ones get. After a round comes a rest in
proportion to what it cost: records that come within it share a write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from gateway.core.channel.channel import Channel, Chunk
from gateway.telemetry.traffic import Traffic

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

    from .client import Client

SLICE = 0.004  # seconds of a round without a turn for others
STRIDE = 64  # writes from one look at the clock to the next
STRIDE_BYTES = 1 << 20  # of them, likewise: 64 of a megabyte take 60 ms
REST = 16.0  # times what a turn cost
MOST_REST = 0.008  # seconds


class Pace:
    """How long what comes from Kafka may wait for more. Each turn, its encoding and its round,
    is followed by a rest in proportion to what it cost; one that brought a single record is
    not, as the next is most likely to come alone, too, and only later (200 clients, 100
    records a second: p50 1.9 ms, not 5).

    lone: the turn brought one.
    is_behind: entries that were delivered wait for another flush.
    has_rounds: a round is under way.
    pushes, pushes_done: how many were scheduled so far, and how many of them ran.
    """

    def __init__(self) -> None:
        self.lone = self.is_behind = self.has_rounds = False
        self.pushes = self.pushes_done = 0
        self._now = asyncio.get_running_loop().time
        self._until = 0.0

    @property
    def rest(self) -> float:
        """Seconds."""
        return max(0.0, self._until - self._now())

    async def pause(self) -> None:
        """Let what was just handed over be published and written, and the rest after that be over.
        Whoever asks Kafka only then hands over what goes out at once: asked for during the rest,
        it would wait here until the rest is over (2,000 clients on keys of their own, 4,000
        records a second: p50 6 ms, not 14)."""
        await asyncio.sleep(0)  # its turn
        while self.is_behind:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # its round
        rest = self.rest
        while rest > 0:
            await asyncio.sleep(rest)
            rest = self.rest

    def spent(self, seconds: float) -> None:
        if self.lone:
            return
        now = self._now()
        self._until = min(now + MOST_REST, max(now, self._until) + REST * seconds)


class Fan:
    """The riders of one channel that are counted together.

    beside:    others of the channel, of another route that shows the same.
    unsettled: how many were written to in this round, and are not counted yet.
    """

    __slots__ = (
        "_chunks", "again", "beside", "channel", "due", "pump", "riders", "round",
        "sent_at", "traffic", "unsettled",
    )  # fmt: skip

    # `_chunks`: what these were written.

    def __init__(
        self, pump: Pump, channel: Channel, traffic: Traffic, beside: Fan | None = None
    ) -> None:
        self.pump = pump
        self.channel = channel
        self.traffic = traffic
        self.beside = beside
        self._chunks: Sequence[Chunk] = ()
        self.unsettled = 0
        self.riders: dict[Client, None] = {}
        self.round: list[Client] = []  # those that the present round still comes to
        self.due = self.again = False  # `again`: more was published since this round began
        self.sent_at = 0.0  # when the last round began, by the loop's clock
        channel.round = self.call

    def call(self) -> None:
        """There is something new for the riders."""
        if self.beside is not None:
            self.beside.call()
        if self.due:
            self.again = True
        elif self.riders:
            self.due = True
            self.pump.call(self)

    def begin(self, now: float) -> None:
        self.again = False
        self.round.extend(self.riders)
        self.sent_at = now

    def write(self, most: int) -> None:
        """Bring so many of the round to where the channel stands now."""
        channel, head, riders = self.channel, self.channel.head, self.round
        at, data, left = head, b"", len(riders)  # `left`: riders before those of this `at`
        most = min(most, 1 + STRIDE_BYTES // (1 + channel.newest_size))
        for _ in range(min(most, left)):
            client = riders.pop()
            subscription, outlet = client.subscription, client.outlet
            if outlet is None or subscription.alone is not None:
                self.drop(client)
                left -= 1
            elif outlet.full:  # by another stream of its socket: it takes from the ring later
                self.traffic.stalls += 1
                self.drop(client)
                left -= 1
            elif subscription.cursor < head:
                if subscription.cursor != at:
                    if at < head:
                        self._note(at, len(data), left - len(riders) - 1)
                    at, left = subscription.cursor, len(riders) + 1
                    data = channel.joined(at)
                subscription.cursor = head
                outlet.write(data)
                if outlet.full:
                    self.traffic.stalls += 1
                    self.drop(client)
            else:
                left -= 1
        if at == head - 1 and not (riders or self.unsettled):  # it is the whole round
            self._count_in(channel.chunk(at), left)
            self.traffic.bytes += len(data) * left
        elif at < head:
            self._note(at, len(data), left - len(riders))

    def _note(self, at: int, size: int, count: int) -> None:
        """So many were written all from there on. Summed up for a whole round: most slices of one
        write the same."""
        self.traffic.bytes += size * count
        chunks = self.channel.chunks(at)
        before = self._chunks
        if before and (len(chunks) != len(before) or chunks[-1] is not before[-1]):
            self.settle()
        self._chunks = chunks
        self.unsettled += count

    def settle(self) -> None:
        """The round is over."""
        for chunk in self._chunks:
            self._count_in(chunk, self.unsettled)
        self._chunks, self.unsettled = (), 0

    def _count_in(self, chunk: Chunk, count: int) -> None:
        traffic = self.traffic
        traffic.sent(chunk.events, count)
        if chunk.gaps:
            traffic.told([gap.reason for gap in chunk.gaps], count)
        if chunk.followed and self.pump.tracing is not None:
            self.pump.tracing.delivered(chunk.followed, count, traffic.route, traffic.wire)

    def drop(self, client: Client) -> None:
        """It sees to itself until it has caught up."""
        self.riders.pop(client, None)
        client.dismount()


class Pump:
    """The rounds of all channels of a hub, one after the other."""

    def __init__(self, pace: Pace, tracing: Tracing | None = None) -> None:
        self.tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._pace = pace
        self._fans: dict[Channel, Fan] = {}
        self._due: deque[Fan] = deque()
        self._running = False
        self._pushes: deque[Client] = deque()

    def ride(self, client: Client) -> Fan:
        """Take a client into the rounds of its channel; it has all that was published."""
        channel, traffic = client.subscription.channel, client.subscription.traffic
        fan = self._fans.get(channel)
        while fan is not None and fan.traffic is not traffic:
            fan = fan.beside
        if fan is None:
            fan = self._fans[channel] = Fan(self, channel, traffic, self._fans.get(channel))
        fan.riders[client] = None
        channel.sleepers.discard(client.subscription)
        return fan

    def forget(self, channel: Channel) -> None:
        """Nobody follows it any more."""
        self._fans.pop(channel, None)
        channel.round = None  # or it would be a reference cycle

    def push(self, client: Client) -> None:
        """Schedule `client.push`, so that no turn of the loop has more than SLICE of them.

        When 600 clients woke in one turn, each took a millisecond and nothing else ran.
        """
        self._pushes.append(client)
        self._pace.pushes += 1
        if len(self._pushes) == 1:
            self._loop.call_soon(self._push)

    def _push(self) -> None:
        pushes, ends = self._pushes, perf_counter() + SLICE
        try:
            while pushes:
                client = pushes[0]  # still queued, so that a nested call schedules nothing
                try:
                    client.push()
                finally:
                    pushes.popleft()
                    self._pace.pushes_done += 1
                if perf_counter() > ends:
                    break
        finally:
            if pushes:
                self._loop.call_soon(self._push)

    def call(self, fan: Fan) -> None:
        self._due.append(fan)
        self._pace.has_rounds = True
        if not self._running:
            self._running = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """One slice; several channels share it, and a large one takes several."""
        began = now = perf_counter()
        try:
            while self._due and now - began < SLICE:
                fan = self._due[0]
                if not fan.round:
                    fan.begin(self._loop.time())
                fan.write(STRIDE)
                if not fan.round:
                    self._due.popleft()
                    fan.due = False
                    if fan.unsettled:
                        fan.settle()
                    if fan.again:
                        fan.call()
                    else:
                        fan.channel.let_go()
                now = perf_counter()
        finally:  # the rider whose write failed is in the round no more
            self._pace.spent(now - began)
            self._running = self._pace.has_rounds = bool(self._due)
            if self._due:
                self._loop.call_soon(self._run)
