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
from gateway.telemetry.traffic import StreamCounts

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

    from .client import Client

SLICE_S = 0.004  # seconds of a round without a turn for others
WRITES_PER_CLOCK_CHECK = 64  # writes from one look at the clock to the next
BYTES_PER_CLOCK_CHECK = 1 << 20  # of them, likewise: 64 of a megabyte take 60 ms
REST_FACTOR = 16.0  # times what a turn cost
MAX_REST_S = 0.008  # seconds


class BatchPacing:
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
        self.is_single = self.is_behind = self.has_rounds = False
        self.pushes_scheduled = self.pushes_done = 0
        self._now = asyncio.get_running_loop().time
        self._rest_until = 0.0

    @property
    def remaining_rest(self) -> float:
        """Seconds."""
        return max(0.0, self._rest_until - self._now())

    async def pause(self) -> None:
        """Let what was just handed over be published and written, and the rest after that be over.
        Whoever asks Kafka only then hands over what goes out at once: asked for during the rest,
        it would wait here until the rest is over (2,000 clients on keys of their own, 4,000
        records a second: p50 6 ms, not 14)."""
        await asyncio.sleep(0)  # its turn
        while self.is_behind:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # its round
        rest = self.remaining_rest
        while rest > 0:
            await asyncio.sleep(rest)
            rest = self.remaining_rest

    def record_cost(self, seconds: float) -> None:
        if self.is_single:
            return
        now = self._now()
        self._rest_until = min(now + MAX_REST_S, max(now, self._rest_until) + REST_FACTOR * seconds)


class ReceiverGroup:
    """The riders of one channel that are counted together.

    beside:    others of the channel, of another route that shows the same.
    unsettled: how many were written to in this round, and are not counted yet.
    """

    __slots__ = (
        "_chunks",
        "broadcaster",
        "channel",
        "clients",
        "has_more",
        "is_scheduled",
        "next_group",
        "remaining",
        "sent_at",
        "traffic",
        "uncounted",
    )  # fmt: skip

    # `_chunks`: what these were written.

    def __init__(
        self,
        broadcaster: Broadcaster,
        channel: Channel,
        traffic: StreamCounts,
        next_group: ReceiverGroup | None = None,
    ) -> None:
        self.broadcaster = broadcaster
        self.channel = channel
        self.traffic = traffic
        self.next_group = next_group
        self._chunks: Sequence[Chunk] = ()
        self.uncounted = 0
        self.clients: dict[Client, None] = {}
        self.remaining: list[Client] = []  # those that the present round still comes to
        self.is_scheduled = self.has_more = (
            False  # `again`: more was published since this round began
        )
        self.sent_at = 0.0  # when the last round began, by the loop's clock
        channel.on_publish = self.schedule_round

    def schedule_round(self) -> None:
        """There is something new for the riders."""
        if self.next_group is not None:
            self.next_group.schedule_round()
        if self.is_scheduled:
            self.has_more = True
        elif self.clients:
            self.is_scheduled = True
            self.broadcaster.schedule_group(self)

    def start_round(self, now: float) -> None:
        self.has_more = False
        self.remaining.extend(self.clients)
        self.sent_at = now

    def write_slice(self, max_writes: int) -> None:
        """Bring so many of the round to where the channel stands now."""
        channel, head, riders = self.channel, self.channel.next_seq, self.remaining
        at, data, left = head, b"", len(riders)  # `left`: riders before those of this `at`
        max_writes = min(max_writes, 1 + BYTES_PER_CLOCK_CHECK // (1 + channel.newest_size))
        for _ in range(min(max_writes, left)):
            client = riders.pop()
            subscription, outlet = client.subscription, client.outlet
            if outlet is None or subscription.private_reader is not None:
                self.remove_client(client)
                left -= 1
            elif outlet.full:  # by another stream of its socket: it takes from the ring later
                self.traffic.stalls += 1
                self.remove_client(client)
                left -= 1
            elif subscription.next_seq < head:
                if subscription.next_seq != at:
                    if at < head:
                        self._note_writes(at, len(data), left - len(riders) - 1)
                    at, left = subscription.next_seq, len(riders) + 1
                    data = channel.join_chunks(at)
                subscription.next_seq = head
                outlet.write(data)
                if outlet.full:
                    self.traffic.stalls += 1
                    self.remove_client(client)
            else:
                left -= 1
        if at == head - 1 and not (riders or self.uncounted):  # it is the whole round
            self._count_chunk(channel.get_chunk(at), left)
            self.traffic.bytes += len(data) * left
        elif at < head:
            self._note_writes(at, len(data), left - len(riders))

    def _note_writes(self, at: int, size: int, count: int) -> None:
        """So many were written all from there on. Summed up for a whole round: most slices of one
        write the same."""
        self.traffic.bytes += size * count
        chunks = self.channel.get_chunks(at)
        before = self._chunks
        if before and (len(chunks) != len(before) or chunks[-1] is not before[-1]):
            self.count_round()
        self._chunks = chunks
        self.uncounted += count

    def count_round(self) -> None:
        """The round is over."""
        for chunk in self._chunks:
            self._count_chunk(chunk, self.uncounted)
        self._chunks, self.uncounted = (), 0

    def _count_chunk(self, chunk: Chunk, count: int) -> None:
        traffic = self.traffic
        traffic.count_sent(chunk.events, count)
        if chunk.gaps:
            traffic.count_gaps([gap.reason for gap in chunk.gaps], count)
        if chunk.traced_records and self.broadcaster.tracing is not None:
            self.broadcaster.tracing.record_delivery(
                chunk.traced_records, count, traffic.route, traffic.wire
            )

    def remove_client(self, client: Client) -> None:
        """It sees to itself until it has caught up."""
        self.clients.pop(client, None)
        client.on_group_left()


class Broadcaster:
    """The rounds of all channels of a hub, one after the other."""

    def __init__(self, pacing: BatchPacing, tracing: Tracing | None = None) -> None:
        self.tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._pacing = pacing
        self._groups: dict[Channel, ReceiverGroup] = {}
        self._scheduled_groups: deque[ReceiverGroup] = deque()
        self._is_running = False
        self._pending_pushes: deque[Client] = deque()

    def add_client(self, client: Client) -> ReceiverGroup:
        """Take a client into the rounds of its channel; it has all that was published."""
        channel, traffic = client.subscription.channel, client.subscription.traffic
        fan = self._groups.get(channel)
        while fan is not None and fan.traffic is not traffic:
            fan = fan.next_group
        if fan is None:
            fan = self._groups[channel] = ReceiverGroup(
                self, channel, traffic, self._groups.get(channel)
            )
        fan.clients[client] = None
        channel.followers_to_wake.discard(client.subscription)
        return fan

    def remove_channel(self, channel: Channel) -> None:
        """Nobody follows it any more."""
        self._groups.pop(channel, None)
        channel.on_publish = None  # or it would be a reference cycle

    def schedule_push(self, client: Client) -> None:
        """Schedule `client.push`, so that no turn of the loop has more than SLICE of them.

        When 600 clients woke in one turn, each took a millisecond and nothing else ran.
        """
        self._pending_pushes.append(client)
        self._pacing.pushes_scheduled += 1
        if len(self._pending_pushes) == 1:
            self._loop.call_soon(self._run_pushes)

    def _run_pushes(self) -> None:
        pushes, ends = self._pending_pushes, perf_counter() + SLICE_S
        try:
            while pushes:
                client = pushes[0]  # still queued, so that a nested call schedules nothing
                try:
                    client.push()
                finally:
                    pushes.popleft()
                    self._pacing.pushes_done += 1
                if perf_counter() > ends:
                    break
        finally:
            if pushes:
                self._loop.call_soon(self._run_pushes)

    def schedule_group(self, group: ReceiverGroup) -> None:
        self._scheduled_groups.append(group)
        self._pacing.has_rounds = True
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._run_rounds)

    def _run_rounds(self) -> None:
        """One slice; several channels share it, and a large one takes several."""
        began = now = perf_counter()
        try:
            while self._scheduled_groups and now - began < SLICE_S:
                fan = self._scheduled_groups[0]
                if not fan.remaining:
                    fan.start_round(self._loop.time())
                fan.write_slice(WRITES_PER_CLOCK_CHECK)
                if not fan.remaining:
                    self._scheduled_groups.popleft()
                    fan.is_scheduled = False
                    if fan.uncounted:
                        fan.count_round()
                    if fan.has_more:
                        fan.schedule_round()
                    else:
                        fan.channel.drop_if_caught_up()
                now = perf_counter()
        finally:  # the rider whose write failed is in the round no more
            self._pacing.record_cost(now - began)
            self._is_running = self._pacing.has_rounds = bool(self._scheduled_groups)
            if self._scheduled_groups:
                self._loop.call_soon(self._run_rounds)
