"""A client's way through its channel: the chunk that it is sent next, and the terms it came on.

Who rides is sent what its channel publishes, as it was encoded for all. Where a client stands
in a partition that it reads alone is not known here: `own` are those places.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from gateway.core.channel.channel import Channel, Chunk
from gateway.core.log.position import Position
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import TokenWriter
from gateway.telemetry.traffic import Traffic

from .slow_client import SlowClient
from .snapshot import Snapshot

NOBODYS = Traffic()


class Ride:
    """See the module.

    cursor: the number of the chunk that it is sent next.
    ended:  why nothing more is sent, once that is so.
    more:   would taking again go on at once?
    until:  offsets at which partitions end; the client's stream ends when all have. Such a
            one reads alone throughout.
    count:  records after which it ends, likewise.
    credit: records that the client may still be sent; None for any number. What does not fit
            waits, in the ring at first.
    since:  time in seconds of the epoch as of which pending places of its own are to be
            resolved; goes into its ids while there are any.
    snapshot: what it is to be told before it is live.
    traffic: where it is counted what it is sent.
    """

    __slots__ = (
        "channel", "count", "credit", "cursor", "ended", "more", "since", "slow", "snapshot",
        "traffic", "until",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        slow: SlowClient = SlowClient.CATCH_UP,
        until: Mapping[TopicPartition, int] | None = None,
        count: int | None = None,
        credit: int | None = None,
        since: int | None = None,
        snapshot: Snapshot | None = None,
        traffic: Traffic = NOBODYS,
    ) -> None:
        self.channel = channel
        self.slow = slow
        self.until = until
        self.count = count
        self.credit = credit
        self.since = since
        self.snapshot = snapshot
        self.traffic = traffic
        self.cursor = channel.head
        self.ended: str | None = None
        self.more = False

    @property
    def bounded(self) -> bool:
        """It ends by itself, and reads alone until then."""
        return self.until is not None or self.count is not None

    def along(self, budget: int) -> bytes:
        """About `budget` bytes of the chunks that come next, whole. Where there is `more` and
        nothing came, there is credit for a part of the next one."""
        channel, out, short = self.channel, list[bytes](), False
        while self.cursor < channel.head and budget > 0 and not self.ended:
            chunk = channel.chunk(self.cursor)
            if self.credit is not None and not self.pays(chunk, {}):
                short = self.credit > 0
                break
            self.cursor += 1
            self.note(chunk)
            out.append(chunk.data)
            budget -= len(chunk.data)
            if chunk.ends:
                self.ended = "offset-out-of-range"
        self.more = (short or budget <= 0) and not self.ended
        return out[0] if len(out) == 1 else b"".join(out)

    def pays(self, chunk: Chunk, own: Position) -> bool:
        """Is there credit for all that it has for this client? It is taken off then."""
        assert self.credit is not None
        cost = sum(event.stamp is not None and event.tp not in own for event in chunk.events)
        if cost > self.credit:
            return False
        self.credit -= cost
        return True

    def note(self, chunk: Chunk, own: Container[TopicPartition] = ()) -> None:
        """It is sent this, but for these partitions."""
        events = [each for each in chunk.events if each.tp not in own] if own else chunk.events
        self.traffic.sent(events)
        if chunk.gaps:
            self.traffic.told(gap.reason for gap in chunk.gaps if gap.tp not in own)

    def places_with(self, own: Position) -> Position:
        """Where the client stands, partition by partition."""
        channel, tail = self.channel, self.channel.tail
        if self.cursor == channel.head:
            return {**tail.position, **own}
        return {**tail.position_before(channel.chunk(self.cursor).turn), **own}

    def writer(self, own: Position) -> TokenWriter:
        """Ids from where the client stands."""
        at_head = self.cursor == self.channel.head
        writer = self.channel.tail.writer(own if at_head else self.places_with(own))
        if self.since is not None and any(place.pending for place in own.values()):
            writer.issue(self.since)
        return writer
