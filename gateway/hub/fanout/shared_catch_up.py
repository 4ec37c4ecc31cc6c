"""Read once for many clients that resume from the same position.

A deploy, or a proxy that restarts, brings everybody back within a second, and all clients that had
the same last id are missing the same records. The second client that resumes from a position
creates a leader: a source without a client that reads privately as any other would. Its bytes are
kept in pieces, which all members are sent. When the leader has caught up, the members attach to
their channel at exactly that point.

A member that is too slow (the pieces it needs are over `max_piece_bytes`) goes on with a private
reader of its own: after each piece the whole position is known.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.channel.chunk_ring import ByteSum, CountedBytes
from gateway.core.log.record import Position

from .broadcaster import Broadcaster
from .client_source import ClientPosition, ClientSource

MAX_PIECE_BYTES = 8 << 20
JOIN_WINDOW_S = 1.0  # seconds after the last member joined for which others can still join
STALLED_TIMEOUT_S = 0.5  # seconds that a leader waits for members that take nothing


class CatchUpPiece(NamedTuple):
    """The bytes that the leader read at once, and where it stood after them."""

    data: bytes
    position_after: ClientPosition
    records: int
    gaps: Mapping[str, int]


class SharedCatchUp:
    """Keep what a leader reads, and hand it to the members piece by piece.

    `SharedCatchUps` creates one for each position that several clients resume from, and closes it
    when `maintain` returns False. To the channel it is a follower, so that the channel stays alive
    until the members attach. It owns the leader.

    Between calls, `_start_position` is the position before the first piece that is kept, and no
    member needs a piece before that one.
    """

    # As a follower of the channel it needs no chunk, and so never falls out of the ring.
    next_seq = sys.maxsize

    def __init__(
        self,
        leader: ClientSource,
        broadcaster: Broadcaster,
        max_bytes: int,
        on_resize: Callable[[int], None],
    ) -> None:
        self._leader = leader
        self._broadcaster = broadcaster
        self._is_reading = True
        self._is_push_scheduled = False
        self._max_bytes = max_bytes
        self._on_resize = on_resize
        self.subscription = leader.subscription
        self.last_joined_at = 0.0
        # Where the leader stood when it had caught up, and the channel's next chunk then.
        self._end_position: tuple[ClientPosition, int] | None = None
        # The number of the piece each gets next.
        self._member_indexes: dict[ClientSource, int] = {}
        self._counts_by_index: Counter[int] = Counter()  # how many get which piece next
        self._member_counts: Counter[str] = Counter()  # by `client_key`
        self._has_other_members = False  # since the leader last read
        self._first_index = 0  # the number of the first piece that is kept
        self._pieces: deque[CatchUpPiece] = deque()
        self._bytes = 0
        self._start_position = leader.get_position()
        self._delivered_sum: ByteSum | None = None  # of all pieces so far, on wires that count
        self._full_since: float | None = None
        leader.subscription.channel.add_follower(self)
        leader.subscription.delivery = self
        self.wake()

    # what its members see

    @property
    def can_join(self) -> bool:
        """Return whether all pieces are still there that a new member needs."""
        return self._first_index == 0 and self.subscription.end_reason is None

    def add_member(self, source: ClientSource, now: float) -> None:
        """Add a client, which begins with the first piece; its own subscription is detached."""
        self._member_indexes[source] = 0
        self._counts_by_index[0] += 1
        self._count_member(source, 1)
        self.last_joined_at = now
        source.subscription.detach()

    def remove_member(self, source: ClientSource) -> None:
        if source in self._member_indexes:
            self._pop_index(source)
            self._drop_pieces()

    def _pop_index(self, source: ClientSource) -> int:
        index = self._member_indexes.pop(source)
        self._counts_by_index[index] -= 1
        self._count_member(source, -1)
        return index

    def _count_member(self, source: ClientSource, change: int) -> None:
        client_key = source.subscription.client_key
        assert isinstance(client_key, str)
        self._member_counts[client_key] += change
        if not self._member_counts[client_key]:
            del self._member_counts[client_key]
        self._has_other_members = True

    def take_piece(self, source: ClientSource) -> bytes | None:
        """Return the next piece for a member; empty if there is none yet.

        Returns None if it had the last piece, or if the stream is to end. The client is no longer a
        member then, and goes on by itself.
        """
        index, subscription = self._member_indexes[source] - self._first_index, source.subscription
        if subscription.end_reason is None and index < len(self._pieces):
            self._member_indexes[source] += 1
            self._counts_by_index[self._first_index + index] -= 1
            self._counts_by_index[self._first_index + index + 1] += 1
            data, _, records, gaps = self._pieces[index]
            # Records of a catch-up are of a time long ago: they have no delivery latency.
            subscription.traffic.untimed += records
            subscription.traffic.gaps.update(gaps)
            if index == 0:  # it may have been the last that needed the oldest piece
                self._drop_pieces()
            return data
        if not (subscription.end_reason or self.subscription.end_reason or self._end_position):
            return b""
        self.release_member(source)
        return None

    def release_member(self, source: ClientSource) -> None:
        """Let a member go on by itself, from behind the last piece that it was sent."""
        index, subscription = (self._pop_index(source) - self._first_index, source.subscription)
        if index < len(self._pieces) or self._end_position is None:
            source.resume(self._pieces[index - 1].position_after if index else self._start_position)
        else:  # it has all pieces: it attaches where the leader had caught up with the channel
            source.resume(*self._end_position)
        end_reason = self.subscription.end_reason
        # What ended the leader, such as a read that failed, lies behind the last piece. A member
        # that was not sent that far reads on by itself.
        if index == len(self._pieces) and end_reason is not None:
            subscription.end(end_reason)
        self._drop_pieces()

    def get_member_position(self, source: ClientSource) -> ClientPosition:
        index = self._member_indexes[source] - self._first_index
        return self._pieces[index - 1].position_after if index else self._start_position

    # what the leader reads

    @property
    def is_full(self) -> bool:
        """Return whether the leader has to wait for its members."""
        return self._bytes >= self._max_bytes

    def wake(self) -> None:
        if self._is_reading and not self._is_push_scheduled:
            self._is_push_scheduled = True
            self._broadcaster.schedule_push(self)

    def push(self) -> None:
        """Keep about 64 KiB of what the leader reads, unless it has to wait for its members."""
        self._is_push_scheduled = False
        subscription = self.subscription
        if not self._is_reading or (self.is_full and not subscription.end_reason):
            return
        # It is read for in the turns of all of its members: none makes the others wait. After the
        # last one left, it has their turns: without any it would be behind all others.
        if self._has_other_members and self._member_counts:
            subscription.client_key = frozenset(self._member_counts)
            self._has_other_members = False
        data = self._leader.take()
        if data:
            self._add_piece(data)
        if subscription.end_reason:
            self._stop_leader()  # each member sends an end of its own
        elif self.is_full:
            return  # it goes on when a piece is dropped
        elif data or subscription.has_more:
            self.wake()
        elif subscription.is_fully_shared:
            # It has everything that was published. Its position is dropped with it.
            self._end_position = self._leader.get_position(), subscription.next_seq
            self._stop_leader()

    def _stop_leader(self) -> None:
        self._is_reading = False
        self._leader.stop_reading()
        self._wake_members()

    def _add_piece(self, data: bytes) -> None:
        delivered_sum = self.subscription.delivered_sum
        if delivered_sum is not None:
            # The piece carries the sum of its own bytes, so that each member counts them.
            data = CountedBytes.create(
                data,
                delivered_sum
                if self._delivered_sum is None
                else delivered_sum.subtract(self._delivered_sum),
            )
            self._delivered_sum = delivered_sum
        records, gaps = self.subscription.traffic.drain()
        self._pieces.append(CatchUpPiece(data, self._leader.get_position(), records, gaps))
        self._resize(len(data))
        self._wake_members()

    # what the channel sees: a follower that keeps it alive

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None:
        """Do nothing: it needs no chunks of the channel's ring."""

    def _wake_members(self) -> None:
        for member in self._member_indexes:
            member.subscription.wake()

    # maintenance

    def maintain(self, now: float) -> bool:
        """Drop pieces, and release members that delay the others; False once nobody needs it."""
        self._drop_pieces(keep=now - self.last_joined_at < JOIN_WINDOW_S)
        if not self.is_full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > STALLED_TIMEOUT_S:
            # The members at the oldest piece are why no piece can be dropped.
            for source in [
                member
                for member, index in self._member_indexes.items()
                if index == self._first_index
            ]:
                self.release_member(source)
                source.subscription.wake()
            self._full_since = None
        return bool(self._member_indexes) or now - self.last_joined_at < JOIN_WINDOW_S

    def release_stalled(self, stalled: Iterable[ClientSource]) -> None:
        """Release the members among these clients, and drop what was kept for them."""
        for source in stalled:
            if source in self._member_indexes:
                self.release_member(source)
        self._drop_pieces(keep=False)

    def _resize(self, size: int) -> None:
        self._bytes += size
        self._on_resize(size)

    def close(self) -> None:
        self._pieces.clear()
        self._resize(-self._bytes)
        self.subscription.channel.remove_follower(self)
        self._is_reading = False
        self._leader.stop_reading()
        del self._leader  # it refers to this: without it this is freed at once

    def _drop_pieces(self, *, keep: bool = True) -> None:
        """Drop the pieces that all members have.

        With `keep`, at most half of the limit is kept for clients that may still join.
        """
        if keep and self._bytes < self._max_bytes // 2:
            return
        was_full = self.is_full
        # Counted, not looked for among all members: each of 10,000 may be the last to have a piece.
        while self._pieces and not self._counts_by_index[self._first_index]:
            piece = self._pieces.popleft()
            self._start_position = piece.position_after
            self._resize(-len(piece.data))
            del self._counts_by_index[self._first_index]
            self._first_index += 1
        if was_full and not self.is_full:
            self.wake()


@dataclass(eq=False)
class SharedCatchUps:
    """Find or create the shared catch-up of each client that resumes.

    `Hub` creates one at each start, and calls `maintain` in its sweep. No new ones are created
    while all of them keep `max_bytes`; a leader that is `max_piece_bytes` ahead waits.
    """

    _broadcaster: Broadcaster
    _max_bytes: int
    max_piece_bytes: int = MAX_PIECE_BYTES
    size: int = 0
    _keys: dict[SharedCatchUp, Hashable] = field(default_factory=dict)
    # A newer one of the same key is created when the older one can no longer be joined; the older
    # one goes on until its members are done.
    _newest_by_key: dict[Hashable, SharedCatchUp] = field(default_factory=dict)
    # When a client resumed from each position for the first time lately.
    _seen_at: dict[Hashable, float] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        return not (self._keys or self._newest_by_key or self._seen_at)

    def join(self, source: ClientSource) -> SharedCatchUp | None:
        """Add a client to the shared catch-up of those that resume from the same position.

        Returns None for the first client of a position, for clients whose bytes or pace are their
        own (bounds, credit, a snapshot, partitions chosen by key, partitions that they have only
        from the channel, in which each stands where it subscribed), and while all of them keep too
        many bytes.
        """
        subscription, now = source.subscription, asyncio.get_running_loop().time()
        if (
            not subscription.private_positions
            or not subscription.channel.tail.logs.keys() <= subscription.private_positions.keys()
            or subscription.is_bounded
            or subscription.credit is not None
        ):
            return None
        reader, channel = subscription.private_reader, subscription.channel
        if reader is None or reader.is_selective or subscription.snapshot is not None:
            return None
        if (
            channel.topics_ending_on_loss
            or channel.tail.is_conflated
            or self.size > self._max_bytes
        ):
            return None
        positions = frozenset(subscription.private_positions.items())
        # The leader looks for where pending partitions start by its own start, in milliseconds.
        since = source.since
        if since is not None and not any(position.is_pending for _, position in positions):
            since = None
        key = (subscription.channel, positions, since, subscription.resolve_since, source.max_age)
        shared_catch_up = self._newest_by_key.get(key)
        if shared_catch_up is None or not shared_catch_up.can_join:
            if now - self._seen_at.get(key, -JOIN_WINDOW_S) >= JOIN_WINDOW_S:
                self._seen_at[key] = now
                return None
            shared_catch_up = self._newest_by_key[key] = self._create(source)
            self._keys[shared_catch_up] = key
        shared_catch_up.add_member(source, now)
        return shared_catch_up

    def maintain(self, now: float) -> None:
        for shared_catch_up, key in list(self._keys.items()):
            if not shared_catch_up.maintain(now):
                shared_catch_up.close()
                del self._keys[shared_catch_up]
                # A newer one of the key may be gone already: it may have had faster members.
                if self._newest_by_key.get(key) is shared_catch_up:
                    del self._newest_by_key[key]
        for key in [
            key for key, seen_at in self._seen_at.items() if now - seen_at >= JOIN_WINDOW_S
        ]:
            del self._seen_at[key]

    def release_stalled(self, stalled: Collection[ClientSource]) -> None:
        """Release the members among these clients, and drop what was kept for them."""
        for shared_catch_up in self._keys:
            shared_catch_up.release_stalled(stalled)

    def close(self) -> None:
        for shared_catch_up in self._keys:
            shared_catch_up.close()

    def _create(self, source: ClientSource) -> SharedCatchUp:
        max_bytes = min(self.max_piece_bytes, self._max_bytes)
        return SharedCatchUp(source.create_twin(), self._broadcaster, max_bytes, self._on_resize)

    def _on_resize(self, size: int) -> None:
        self.size += size
