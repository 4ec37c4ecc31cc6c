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

from gateway.core.channel.byte_counts import Counted, Sum
from gateway.core.log.position import Position

from .client import Client, Standing

BOUND = 8 << 20  # bytes of pieces; a leader that is so far ahead waits
OPEN = 1.0  # seconds for which a herd that nobody joins any more can be joined
PATIENCE = 0.5  # seconds that a leader waits for those who take nothing


class Piece(NamedTuple):
    """What the leader read at once, and where it stood after it.

    records, gaps: how many are in it.
    """

    data: bytes
    after: Standing
    records: int
    gaps: Mapping[str, int]


class Leader(Client):
    """Reads for its herd; it has no connection, and never rides."""

    __slots__ = ("_herd_of",)

    def lead(self, herd: Herd) -> None:
        self._herd_of = herd
        self.outlet = herd
        self.wake()

    def _mount(self) -> None:
        self._herd_of.arrive()

    def forget(self) -> None:
        """Its herd is let go: the channel may have nobody now."""
        self.close()
        self._shared.was_left = True


class Herd:
    """The outlet of a leader, and who is sent what it gets. See the module."""

    cursor = sys.maxsize  # a follower of the channel that never falls out of its ring

    def __init__(self, leader: Leader, bound: int = BOUND) -> None:
        self.leader = leader
        self._bound = bound
        self.subscription = leader.subscription
        self.joined_at = 0.0  # when somebody last did, by the loop's clock
        self._arrived: tuple[Standing, int] | None = None
        self._members: dict[Client, int] = {}  # the number of the piece it gets next
        self._first = 0
        self._pieces: deque[Piece] = deque()
        self._bytes = 0
        self._before = leader.standing()  # the first piece
        self._got: Sum | None = None
        self._full_since: float | None = None
        leader.subscription.channel.followers.add(self)
        leader.lead(self)

    # what its members see

    @property
    def is_open(self) -> bool:
        """Is everything still there that a new member needs?"""
        return self._first == 0 and self.subscription.ended is None

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return self._bytes

    def join(self, client: Client, now: float) -> None:
        self._members[client] = 0
        self.joined_at = now
        client.subscription.step_aside()

    def leave(self, client: Client) -> None:
        if self._members.pop(client, None) is not None:
            self._trim()

    def take(self, client: Client) -> bytes | None:
        """The next piece; empty if there is none yet. None: it was the last, or it is time to
        end, and the client is by itself from here on."""
        at, subscription = self._members[client] - self._first, client.subscription
        if subscription.ended is None and at < len(self._pieces):
            self._members[client] += 1
            data, _, records, gaps = self._pieces[at]
            subscription.traffic.untimed += records
            subscription.traffic.gaps.update(gaps)
            if at == 0:
                self._trim()
            return data
        if not (subscription.ended or self.subscription.ended or self._arrived):
            return b""
        self.release(client)
        return None

    def release(self, client: Client) -> None:
        """Let a member go on by itself, from behind the last piece that it got."""
        at, subscription = self._members.pop(client) - self._first, client.subscription
        if at < len(self._pieces) or self._arrived is None:
            client.go_on(self._pieces[at - 1].after if at else self._before)
        else:
            client.go_on(*self._arrived)
        if at == len(self._pieces):
            subscription.ended = subscription.ended or self.subscription.ended
        self._trim()

    # what the leader sees: an outlet

    transport = None

    @property
    def full(self) -> bool:
        return self._bytes >= self._bound

    def write(self, data: bytes) -> None:
        got = self.subscription.got
        if got is not None:
            data = Counted.of(data, got if self._got is None else got.since(self._got))
            self._got = got
        records, gaps = self.subscription.traffic.drain()
        self._pieces.append(Piece(data, self.leader.standing(), records, gaps))
        self._bytes += len(data)
        self.wake()

    def finish(self, data: bytes) -> None:
        """Its members find out by its subscription; each has an end of its own to be told."""
        self.wake()

    def hand_over(self) -> None:
        """Nothing changes what a leader is shown."""

    def arrive(self) -> None:
        """The leader has caught up with its channel."""
        self._arrived = self.leader.standing(), self.subscription.cursor
        self.leader.close()
        self.wake()

    # what the channel sees: a follower that keeps it alive

    def fall(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None: ...

    def wake(self) -> None:
        for member in self._members:
            member.wake()

    # upkeep

    def mind(self, now: float) -> bool:
        """Let those go on by themselves who hold up the others; False once nobody needs it."""
        self._trim(keep=now - self.joined_at < OPEN)
        if not self.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > PATIENCE:
            for client in [one for one, at in self._members.items() if at == self._first]:
                self.release(client)
                client.wake()
            self._full_since = None
        return bool(self._members) or now - self.joined_at < OPEN

    def shed(self) -> None:
        """Let those go on by themselves who take nothing, and drop what was kept for them."""
        for client in list(self._members):
            if client.outlet is not None and client.outlet.full:
                self.release(client)
        self._trim(keep=False)

    def close(self) -> None:
        self.subscription.channel.followers.discard(self)
        self.leader.forget()

    def _trim(self, *, keep: bool = True) -> None:
        """Drop what all have; for a while not, as long as there is room, for those to come."""
        if keep and self._bytes < self._bound // 2:
            return
        needed, was_full = min(self._members.values(), default=self._first), self.full
        if not self._members:
            needed = self._first + len(self._pieces)
        while self._first < needed:
            piece = self._pieces.popleft()
            self._before = piece.after
            self._bytes -= len(piece.data)
            self._first += 1
        if was_full and not self.full:
            self.leader.drained()


class Herds:
    """All herds of a hub. most: bytes that they may keep before no more are made."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._herds: dict[Herd, Hashable] = {}
        self._newest: dict[Hashable, Herd] = {}  # one that is not open any more may have members
        self._seen: dict[Hashable, float] = {}  # places from which one came back, and when

    def join(self, client: Client) -> Herd | None:
        """The herd of those who came from where this one comes from; None for the first."""
        subscription, now = client.subscription, asyncio.get_running_loop().time()
        if not subscription.own or subscription.bounded or subscription.credit is not None:
            return None
        alone, channel = subscription.alone, subscription.channel
        if alone is None or alone.is_picky or subscription.snapshot is not None:
            return None
        if channel.fails or channel.tail.conflates or self.size > self._most:
            return None
        places = frozenset(subscription.own.items())
        key = (subscription.channel, places, subscription.since, client.reach)
        herd = self._newest.get(key)
        if herd is None or not herd.is_open:
            if now - self._seen.get(key, -OPEN) >= OPEN:
                self._seen[key] = now
                return None
            herd = self._newest[key] = self._lead(client)
            self._herds[herd] = key
        herd.join(client, now)
        return herd

    def mind(self, now: float) -> None:
        for herd, key in list(self._herds.items()):
            if not herd.mind(now):
                herd.close()
                del self._herds[herd]
                if self._newest[key] is herd:
                    del self._newest[key]
        for key in [key for key, at in self._seen.items() if now - at >= OPEN]:
            del self._seen[key]

    def shed(self) -> None:
        """As `Herd.shed`, of all of them."""
        for herd in self._herds:
            herd.shed()

    def close(self) -> None:
        for herd in self._herds:
            herd.close()

    @property
    def size(self) -> int:
        """Bytes that all of them keep."""
        return sum(herd.size for herd in self._herds)

    def _lead(self, client: Client) -> Herd:
        return Herd(client.twin(Leader), min(BOUND, self._most))
