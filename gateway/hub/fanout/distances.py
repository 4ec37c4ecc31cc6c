"""How far clients are behind that are not written to in rounds.

Looked at in passing, once a second, not when somebody asks: 10,000 of them would hold the loop.
"""

from __future__ import annotations

import asyncio

from gateway.core.channel.channel import Channel
from gateway.core.client.subscription import Subscription
from gateway.core.log.position import Position
from gateway.telemetry.traffic import SLOW, Behind

from .client import Client

TURN = 2000  # places looked at without a turn for others: 1 ms


class Distances:
    """One look at all.

    behind: what came of it so far.
    unsent: bytes that their connections have yet to take.
    """

    def __init__(self) -> None:
        self.behind = Behind()
        self.unsent = 0
        self._seen: set[asyncio.Transport] = set()  # a WebSocket has many streams
        self._of_rings: dict[tuple[Channel, int], int] = {}
        self._places = 0

    @property
    def costly(self) -> bool:
        """Is it time for others' turn? Asked once for each."""
        if self._places < TURN:
            return False
        self._places = 0
        return True

    def look(self, client: Client) -> None:
        """At one that has a `state`."""
        if client.outlet is not None and client.outlet.full:
            self._weigh(client.outlet.transport)
        herd = client.herd
        state, records = client.state, self.of((herd or client).subscription)
        if state is not None and (records or state == SLOW):
            self.behind.add(client.subscription.traffic.route, state, records)

    def _weigh(self, transport: asyncio.Transport | None) -> None:
        if transport is not None and transport not in self._seen and not transport.is_closing():
            self._seen.add(transport)
            self.unsent += transport.get_write_buffer_size()

    def of(self, subscription: Subscription) -> int:
        """Offsets between where it stands and where its channel does."""
        channel, own = subscription.channel, subscription.own
        if not channel.first <= subscription.cursor < channel.head:
            # It has all, or does not follow the ring: a member of a herd, or one that is closed.
            return self._between(own, channel)
        if own:
            return self._between(subscription.places(), channel)
        at = channel, subscription.cursor
        if at not in self._of_rings:  # many fall behind together
            self._of_rings[at] = self._between(subscription.places(), channel)
        return self._of_rings[at]

    def _between(self, places: Position, channel: Channel) -> int:
        now, records = channel.tail.position, 0
        self._places += len(places)
        for tp, place in places.items():
            there = now.get(tp)
            if there is not None and there.offset is not None and place.offset is not None:
                records += max(0, there.offset - place.offset)
        return records
