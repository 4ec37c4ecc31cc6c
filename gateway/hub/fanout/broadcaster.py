"""Write what a channel publishes to all clients that have received everything before it.

Such a client is attached to an `Audience` of its channel and has no task. The `Broadcaster` writes
new chunks to audiences in rounds. A client whose outlet does not take a chunk whole leaves the
round, and returns when it has caught up.

A round is written in slices, so that new connections and pings get their turn among 10,000 clients;
what is published meanwhile is joined to what the later clients of the round get. A round is
followed by a rest in proportion to its cost: records that arrive during the rest share a write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import TYPE_CHECKING, cast

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import Chunk
from gateway.core.small_set import SmallSet, add_member, discard_member
from gateway.hub.reads.pacing import BatchPacing
from gateway.telemetry.traffic import StreamCounts

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

    from .client import Client
    from .shared_catch_up import SharedCatchUp

SLICE_S = 0.004  # seconds of a round before other tasks get a turn
WRITES_PER_CLOCK_CHECK = 64  # writes from one look at the clock to the next
# Clients of one audience: a round begins with a copy of them, which took 110 ms of a million.
MAX_AUDIENCE_CLIENTS = 20_000
BYTES_PER_CLOCK_CHECK = 1 << 20  # likewise in bytes: 64 writes of a megabyte take 60 ms


@dataclass(eq=False, slots=True)
class Audience:
    """The attached clients of one channel and one `StreamCounts`, at most `max_audience_clients`.

    Audiences of a channel are linked by `next_audience`; the channel's `listener` is the newest.
    Between rounds, every client in `clients` has all chunks of the channel, has no private reader,
    and has an outlet that is not full.

    Attributes:
        has_more: More was published since the present round began.
        is_scheduled: A round is scheduled or under way.
        sent_at: When the last round began, by the loop's clock.
    """

    broadcaster: Broadcaster
    channel: Channel
    traffic: StreamCounts
    next_audience: Audience | None = None
    clients: SmallSet[Client] = ()
    is_scheduled: bool = False
    has_more: bool = False
    sent_at: float = 0.0

    def on_published(self) -> None:
        audience: Audience | None = self
        while audience is not None:
            audience.schedule_round()
            audience = audience.next_audience

    def schedule_round(self) -> None:
        if self.is_scheduled:
            self.has_more = True
        elif self.clients:
            self.is_scheduled = True  # until its round is over, not only until it begins
            self.broadcaster.schedule_audience(self)

    def can_take(self, traffic: StreamCounts) -> bool:
        return self.traffic is traffic and len(self.clients) < self.broadcaster.max_audience_clients

    def add_client(self, client: Client) -> None:
        self.clients = add_member(self.clients, client)

    def remove_client(self, client: Client) -> None:
        """Detach a client; it pushes its own bytes until it has caught up."""
        self.clients = discard_member(self.clients, client)
        client.on_audience_left()


class Round:
    """One write to all clients that are attached to an audience when it begins."""

    __slots__ = ("_chunks", "_uncounted", "audience", "remaining")

    # `_chunks`: the chunks that were written to the clients that `_uncounted` counts.

    def __init__(self, audience: Audience, now: float) -> None:
        self.audience = audience
        self.remaining = list(audience.clients)
        self._chunks: Sequence[Chunk] = ()
        self._uncounted = 0
        audience.has_more = False
        audience.sent_at = now

    def write_slice(self, max_writes: int) -> None:
        """Write to at most `max_writes` of the clients; to fewer if the newest chunk is large."""
        audience, remaining = self.audience, self.remaining
        channel, traffic = audience.channel, audience.traffic
        head = channel.next_seq
        first_seq, data, run_start = head, b"", len(remaining)
        max_writes = min(max_writes, 1 + BYTES_PER_CLOCK_CHECK // (1 + channel.newest_size))
        # Clients that stand at the same chunk get the same bytes, and most follow each other: a run
        # of them is joined once and counted once. `first_seq` is the chunk that the present run
        # begins with, `data` what it is written, and `run_start - len(remaining)` how many clients
        # it has so far.
        for _ in range(min(max_writes, run_start)):
            client = remaining.pop()
            subscription, outlet = client.subscription, client.outlet
            # Closed since the round began, or out of the ring: this round came too late for it.
            if outlet is None or subscription.private_reader is not None:
                audience.remove_client(client)
                run_start -= 1
            elif outlet.full:  # by another stream of its WebSocket: it reads the ring later
                traffic.stalls += 1
                audience.remove_client(client)
                run_start -= 1
            elif subscription.next_seq < head:
                if subscription.next_seq != first_seq:
                    if first_seq < head:
                        self._note_writes(first_seq, len(data), run_start - len(remaining) - 1)
                    first_seq, run_start = subscription.next_seq, len(remaining) + 1
                    data = channel.join_chunks(first_seq)
                subscription.next_seq = head
                outlet.write(data)
                if outlet.full:
                    traffic.stalls += 1
                    audience.remove_client(client)
            else:  # it has all: it was attached after the chunk was published
                run_start -= 1
        # Most rounds are one chunk in one slice: count it without the lists that a sum takes.
        if first_seq == head - 1 and not (remaining or self._uncounted):
            self._count_chunk(channel.get_chunk(first_seq), run_start)
            traffic.bytes += len(data) * run_start
        elif first_seq < head:
            self._note_writes(first_seq, len(data), run_start - len(remaining))

    def _note_writes(self, first_seq: int, size: int, count: int) -> None:
        """Note that `count` clients were written `size` bytes: all chunks from `first_seq` on.

        Counts are added up over a round, because most of its slices write the same chunks.
        """
        self.audience.traffic.bytes += size * count
        chunks = self.audience.channel.get_chunks(first_seq)
        noted = self._chunks
        if noted and (len(chunks) != len(noted) or chunks[-1] is not noted[-1]):
            self.count_writes()
        self._chunks = chunks
        self._uncounted += count

    def count_writes(self) -> None:
        for chunk in self._chunks:
            self._count_chunk(chunk, self._uncounted)
        self._chunks, self._uncounted = (), 0

    def _count_chunk(self, chunk: Chunk, count: int) -> None:
        traffic, tracing = self.audience.traffic, self.audience.broadcaster.tracing
        traffic.count_sent(chunk.events, time(), count)
        if chunk.gaps:
            traffic.count_gaps([gap.reason for gap in chunk.gaps], count)
        if chunk.traced_records and tracing is not None:
            tracing.record_delivery(chunk.traced_records, count, traffic.route, traffic.wire)


@dataclass(eq=False)
class Broadcaster:
    """Run the rounds of all channels of a hub, one after the other.

    `Hub` creates one at each start. At most one call of `_run_rounds` and one of `_run_pushes` is
    scheduled in the loop at any time, and each ends after about `slice_s`.
    """

    _pacing: BatchPacing
    tracing: Tracing | None = None
    slice_s: float = SLICE_S
    writes_per_clock_check: int = WRITES_PER_CLOCK_CHECK
    max_audience_clients: int = MAX_AUDIENCE_CLIENTS
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _scheduled_audiences: deque[Audience] = field(default_factory=deque)
    _round: Round | None = None  # that of the first scheduled audience, once it began
    _is_running: bool = False
    _pending_pushes: deque[Client | SharedCatchUp] = field(default_factory=deque)

    def add_client(self, client: Client) -> Audience:
        """Attach a client that has all that was published, and return its audience."""
        channel, traffic = client.subscription.channel, client.subscription.traffic
        newest = audience = cast("Audience | None", channel.listener)
        while audience is not None and not audience.can_take(traffic):
            audience = audience.next_audience
        if audience is None:
            # The channel calls its newest audience only, which passes it on to the older ones.
            audience = channel.listener = Audience(self, channel, traffic, newest)
        audience.add_client(client)
        # A round writes to it from now on; a wake as well would schedule a push for nothing.
        channel.stop_waking(client.subscription)
        return audience

    def remove_channel(self, channel: Channel) -> None:
        channel.listener = None  # break the reference cycle with its audience

    def schedule_push(self, client: Client | SharedCatchUp) -> None:
        """Schedule `client.push`, so that pushes take at most about `slice_s` of a turn.

        When 600 clients woke in one turn of the loop, each took a millisecond and nothing else ran.
        """
        self._pending_pushes.append(client)
        self._pacing.pushes_scheduled += 1
        if len(self._pending_pushes) == 1:
            self._loop.call_soon(self._run_pushes)

    def _run_pushes(self) -> None:
        pushes, slice_end = self._pending_pushes, perf_counter() + self.slice_s
        try:
            while pushes:
                client = pushes[0]  # still queued, so that a nested call schedules nothing
                try:
                    client.push()
                finally:
                    pushes.popleft()
                    self._pacing.pushes_done += 1
                if perf_counter() > slice_end:
                    break
        finally:
            if pushes:
                self._loop.call_soon(self._run_pushes)

    def schedule_audience(self, audience: Audience) -> None:
        self._scheduled_audiences.append(audience)
        self._pacing.has_rounds = True
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._run_rounds)

    def _run_rounds(self) -> None:
        """Run one slice. Several small rounds share it; a large round takes several slices."""
        began = now = perf_counter()
        try:
            while self._scheduled_audiences and now - began < self.slice_s:
                audience = self._scheduled_audiences[0]
                if self._round is None:
                    self._round = Round(audience, self._loop.time())
                self._round.write_slice(self.writes_per_clock_check)
                if not self._round.remaining:
                    self._round.count_writes()
                    self._round = None
                    self._scheduled_audiences.popleft()
                    audience.is_scheduled = False
                    if audience.has_more:
                        audience.schedule_round()
                    else:
                        audience.channel.drop_if_caught_up()
                now = perf_counter()
        finally:  # if a write failed, its client has left `remaining` already: go on with the rest
            self._pacing.record_cost(now - began)
            self._is_running = self._pacing.has_rounds = bool(self._scheduled_audiences)
            if self._scheduled_audiences:
                self._loop.call_soon(self._run_rounds)
