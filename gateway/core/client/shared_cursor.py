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
from gateway.telemetry.traffic import StreamCounts

from .slow_client import SlowClientPolicy
from .snapshot import Snapshot

UNREPORTED_TRAFFIC = StreamCounts()


class SharedCursor:
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
        "channel",
        "credit",
        "end_offsets",
        "end_reason",
        "has_more",
        "next_seq",
        "remaining_records",
        "resolve_since",
        "slow_policy",
        "snapshot",
        "traffic",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
        end_offsets: Mapping[TopicPartition, int] | None = None,
        max_records: int | None = None,
        credit: int | None = None,
        resolve_since: int | None = None,
        snapshot: Snapshot | None = None,
        traffic: StreamCounts = UNREPORTED_TRAFFIC,
    ) -> None:
        self.channel = channel
        self.slow_policy = slow_policy
        self.end_offsets = end_offsets
        self.remaining_records = max_records
        self.credit = credit
        self.resolve_since = resolve_since
        self.snapshot = snapshot
        self.traffic = traffic
        self.next_seq = channel.next_seq
        self.end_reason: str | None = None
        self.has_more = False

    @property
    def is_bounded(self) -> bool:
        """It ends by itself, and reads alone until then."""
        return self.end_offsets is not None or self.remaining_records is not None

    def read_chunks(self, max_bytes: int) -> bytes:
        """About `budget` bytes of the chunks that come next, whole. Where there is `more` and
        nothing came, there is credit for a part of the next one."""
        channel, out, short = self.channel, list[bytes](), False
        while self.next_seq < channel.next_seq and max_bytes > 0 and not self.end_reason:
            chunk = channel.get_chunk(self.next_seq)
            if self.credit is not None and not self.spend_credit(chunk, {}):
                short = self.credit > 0
                break
            self.next_seq += 1
            self.count_sent(chunk)
            out.append(chunk.data)
            max_bytes -= len(chunk.data)
            if chunk.ending_partitions:
                self.end_reason = "offset-out-of-range"
        self.has_more = (short or max_bytes <= 0) and not self.end_reason
        return out[0] if len(out) == 1 else b"".join(out)

    def spend_credit(self, chunk: Chunk, private_positions: Position) -> bool:
        """Is there credit for all that it has for this client? It is taken off then."""
        assert self.credit is not None
        cost = sum(
            event.timestamp is not None and event.tp not in private_positions
            for event in chunk.events
        )
        if cost > self.credit:
            return False
        self.credit -= cost
        return True

    def count_sent(self, chunk: Chunk, private_positions: Container[TopicPartition] = ()) -> None:
        """It is sent this, but for these partitions."""
        events = (
            [each for each in chunk.events if each.tp not in private_positions]
            if private_positions
            else chunk.events
        )
        self.traffic.count_sent(events)
        if chunk.gaps:
            self.traffic.count_gaps(
                gap.reason for gap in chunk.gaps if gap.tp not in private_positions
            )

    def merge_positions(self, private_positions: Position) -> Position:
        """Where the client stands, partition by partition."""
        channel, tail = self.channel, self.channel.tail
        if self.next_seq == channel.next_seq:
            return {**tail.position, **private_positions}
        return {
            **tail.position_before(channel.get_chunk(self.next_seq).update_seq),
            **private_positions,
        }

    def create_token_writer(self, private_positions: Position) -> TokenWriter:
        """Ids from where the client stands."""
        at_head = self.next_seq == self.channel.next_seq
        writer = self.channel.tail.create_token_writer(
            private_positions if at_head else self.merge_positions(private_positions)
        )
        if self.resolve_since is not None and any(
            place.is_pending for place in private_positions.values()
        ):
            writer.set_issued(self.resolve_since)
        return writer
