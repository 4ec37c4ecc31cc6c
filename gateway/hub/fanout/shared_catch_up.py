"""Clients that come back from the same place: read for once, however many they are.

A deploy, or a proxy that restarts, sends everybody back within a second, and all who had the
same last id lack the same records. The second of them that comes makes a leader: a client with
no connection, that reads alone as any other would. What it is given to write is kept in
pieces, and everybody of the herd is sent those. When the leader has caught up they ride
with their channel from exactly there.

One who cannot follow (the pieces it is to have next are over BOUND) goes on by itself
from where it is: after each piece the whole position is known.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from gateway.core.channel.byte_counts import ByteSum, CountedBytes
from gateway.core.log.position import Position

from .client import Client, ClientPosition

MAX_PIECE_BYTES = 8 << 20  # bytes of pieces; a leader that is so far ahead waits
JOIN_WINDOW_S = 1.0  # seconds for which a herd that nobody joins any more can be joined
STALLED_TIMEOUT_S = 0.5  # seconds that a leader waits for those who take nothing


class CatchUpPiece(NamedTuple):
    """What the leader read at once, and where it stood after it.

    records, gaps: how many are in it.
    """

    data: bytes
    position_after: ClientPosition
    records: int
    gaps: Mapping[str, int]


class CatchUpLeader(Client):
    """Reads for its herd; it has no connection, and never rides."""

    __slots__ = ("_led_catch_up",)

    def start_leading(self, herd: SharedCatchUp) -> None:
        self._led_catch_up = herd
        self.outlet = herd
        self.wake()

    def _join_receivers(self) -> None:
        self._led_catch_up.on_leader_caught_up()

    def close_and_release(self) -> None:
        """Its herd is let go: the channel may have nobody now."""
        self.close()
        self._shared_tail.has_left_channels = True


class SharedCatchUp:
    """The outlet of a leader, and who is sent what it gets. See the module."""

    next_seq = sys.maxsize  # a follower of the channel that never falls out of its ring

    def __init__(self, leader: CatchUpLeader, max_bytes: int = MAX_PIECE_BYTES) -> None:
        self.leader = leader
        self._max_bytes = max_bytes
        self.subscription = leader.subscription
        self.last_joined_at = 0.0  # when somebody last did, by the loop's clock
        self._end_position: tuple[ClientPosition, int] | None = None
        self._member_indexes: dict[Client, int] = {}  # the number of the piece it gets next
        self._first_index = 0
        self._pieces: deque[CatchUpPiece] = deque()
        self._bytes = 0
        self._start_position = leader.get_position()  # the first piece
        self._delivered_sum: ByteSum | None = None
        self._full_since: float | None = None
        leader.subscription.channel.followers.add(self)
        leader.start_leading(self)

    # what its members see

    @property
    def can_join(self) -> bool:
        """Is everything still there that a new member needs?"""
        return self._first_index == 0 and self.subscription.end_reason is None

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return self._bytes

    def add_member(self, client: Client, now: float) -> None:
        self._member_indexes[client] = 0
        self.last_joined_at = now
        client.subscription.detach()

    def remove_member(self, client: Client) -> None:
        if self._member_indexes.pop(client, None) is not None:
            self._drop_pieces()

    def take_piece(self, client: Client) -> bytes | None:
        """The next piece; empty if there is none yet. None: it was the last, or it is time to
        end, and the client is by itself from here on."""
        at, subscription = self._member_indexes[client] - self._first_index, client.subscription
        if subscription.end_reason is None and at < len(self._pieces):
            self._member_indexes[client] += 1
            data, _, records, gaps = self._pieces[at]
            subscription.traffic.untimed += records
            subscription.traffic.gaps.update(gaps)
            if at == 0:
                self._drop_pieces()
            return data
        if not (subscription.end_reason or self.subscription.end_reason or self._end_position):
            return b""
        self.release_member(client)
        return None

    def release_member(self, client: Client) -> None:
        """Let a member go on by itself, from behind the last piece that it got."""
        at, subscription = self._member_indexes.pop(client) - self._first_index, client.subscription
        if at < len(self._pieces) or self._end_position is None:
            client.resume(self._pieces[at - 1].position_after if at else self._start_position)
        else:
            client.resume(*self._end_position)
        if at == len(self._pieces):
            subscription.end_reason = subscription.end_reason or self.subscription.end_reason
        self._drop_pieces()

    # what the leader sees: an outlet

    transport = None

    @property
    def full(self) -> bool:
        return self._bytes >= self._max_bytes

    def write(self, data: bytes) -> None:
        got = self.subscription.delivered_sum
        if got is not None:
            data = CountedBytes.create(
                data, got if self._delivered_sum is None else got.subtract(self._delivered_sum)
            )
            self._delivered_sum = got
        records, gaps = self.subscription.traffic.drain()
        self._pieces.append(CatchUpPiece(data, self.leader.get_position(), records, gaps))
        self._bytes += len(data)
        self.wake()

    def finish(self, data: bytes) -> None:
        """Its members find out by its subscription; each has an end of its own to be told."""
        self.wake()

    def hand_over(self) -> None:
        """Nothing changes what a leader is shown."""

    def on_leader_caught_up(self) -> None:
        """The leader has caught up with its channel."""
        self._end_position = self.leader.get_position(), self.subscription.next_seq
        self.leader.close()
        self.wake()

    # what the channel sees: a follower that keeps it alive

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None: ...

    def wake(self) -> None:
        for member in self._member_indexes:
            member.wake()

    # upkeep

    def maintain(self, now: float) -> bool:
        """Let those go on by themselves who hold up the others; False once nobody needs it."""
        self._drop_pieces(keep=now - self.last_joined_at < JOIN_WINDOW_S)
        if not self.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > STALLED_TIMEOUT_S:
            for client in [
                one for one, at in self._member_indexes.items() if at == self._first_index
            ]:
                self.release_member(client)
                client.wake()
            self._full_since = None
        return bool(self._member_indexes) or now - self.last_joined_at < JOIN_WINDOW_S

    def release_stalled(self) -> None:
        """Let those go on by themselves who take nothing, and drop what was kept for them."""
        for client in list(self._member_indexes):
            if client.outlet is not None and client.outlet.full:
                self.release_member(client)
        self._drop_pieces(keep=False)

    def close(self) -> None:
        self.subscription.channel.followers.discard(self)
        self.leader.close_and_release()

    def _drop_pieces(self, *, keep: bool = True) -> None:
        """Drop what all have; for a while not, as long as there is room, for those to come."""
        if keep and self._bytes < self._max_bytes // 2:
            return
        needed, was_full = min(self._member_indexes.values(), default=self._first_index), self.full
        if not self._member_indexes:
            needed = self._first_index + len(self._pieces)
        while self._first_index < needed:
            piece = self._pieces.popleft()
            self._start_position = piece.position_after
            self._bytes -= len(piece.data)
            self._first_index += 1
        if was_full and not self.full:
            self.leader.on_drained()


class SharedCatchUps:
    """All herds of a hub. most: bytes that they may keep before no more are made."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._keys: dict[SharedCatchUp, Hashable] = {}
        self._newest_by_key: dict[
            Hashable, SharedCatchUp
        ] = {}  # one that is not open any more may have members
        self._seen_at: dict[Hashable, float] = {}  # places from which one came back, and when

    def join(self, client: Client) -> SharedCatchUp | None:
        """The herd of those who came from where this one comes from; None for the first."""
        subscription, now = client.subscription, asyncio.get_running_loop().time()
        if (
            not subscription.private_positions
            or subscription.is_bounded
            or subscription.credit is not None
        ):
            return None
        alone, channel = subscription.private_reader, subscription.channel
        if alone is None or alone.is_selective or subscription.snapshot is not None:
            return None
        if channel.failing_topics or channel.tail.is_conflated or self.size > self._max_bytes:
            return None
        places = frozenset(subscription.private_positions.items())
        key = (subscription.channel, places, subscription.resolve_since, client.max_age)
        herd = self._newest_by_key.get(key)
        if herd is None or not herd.can_join:
            if now - self._seen_at.get(key, -JOIN_WINDOW_S) >= JOIN_WINDOW_S:
                self._seen_at[key] = now
                return None
            herd = self._newest_by_key[key] = self._create(client)
            self._keys[herd] = key
        herd.add_member(client, now)
        return herd

    def maintain(self, now: float) -> None:
        for herd, key in list(self._keys.items()):
            if not herd.maintain(now):
                herd.close()
                del self._keys[herd]
                if self._newest_by_key[key] is herd:
                    del self._newest_by_key[key]
        for key in [key for key, at in self._seen_at.items() if now - at >= JOIN_WINDOW_S]:
            del self._seen_at[key]

    def release_stalled(self) -> None:
        """As `Herd.shed`, of all of them."""
        for herd in self._keys:
            herd.release_stalled()

    def close(self) -> None:
        for herd in self._keys:
            herd.close()

    @property
    def size(self) -> int:
        """Bytes that all of them keep."""
        return sum(herd.size for herd in self._keys)

    def _create(self, client: Client) -> SharedCatchUp:
        return SharedCatchUp(
            client.create_twin(CatchUpLeader), min(MAX_PIECE_BYTES, self._max_bytes)
        )
