"""How far clients are behind that are not written to in rounds.

Looked at in passing, once a second, not when somebody asks: 10,000 of them would hold the loop.
"""

from __future__ import annotations

import asyncio

from gateway.core.channel.channel import Channel
from gateway.core.client.subscription import Subscription
from gateway.core.log.position import Position
from gateway.telemetry.traffic import SLOW, ClientsBehind

from .client import Client

MAX_POSITIONS_PER_SLICE = 2000  # places looked at without a turn for others: 1 ms


class LagScan:
    """One look at all.

    behind: what came of it so far.
    unsent: bytes that their connections have yet to take.
    """

    def __init__(self) -> None:
        self.behind = ClientsBehind()
        self.unsent_bytes = 0
        self._seen_transports: set[asyncio.Transport] = set()  # a WebSocket has many streams
        self._lag_by_cursor: dict[tuple[Channel, int], int] = {}
        self._scanned_positions = 0

    @property
    def should_yield(self) -> bool:
        """Is it time for others' turn? Asked once for each."""
        if self._scanned_positions < MAX_POSITIONS_PER_SLICE:
            return False
        self._scanned_positions = 0
        return True

    def add_client(self, client: Client) -> None:
        """At one that has a `state`."""
        if client.outlet is not None and client.outlet.full:
            self._count_unsent(client.outlet.transport)
        herd = client.shared_catch_up
        state, records = client.state, self.measure_lag((herd or client).subscription)
        if state is not None and (records or state == SLOW):
            self.behind.add(client.subscription.traffic.route, state, records)

    def _count_unsent(self, transport: asyncio.Transport | None) -> None:
        if (
            transport is not None
            and transport not in self._seen_transports
            and not transport.is_closing()
        ):
            self._seen_transports.add(transport)
            self.unsent_bytes += transport.get_write_buffer_size()

    def measure_lag(self, subscription: Subscription) -> int:
        """Offsets between where it stands and where its channel does."""
        channel, own = subscription.channel, subscription.private_positions
        if not channel.first_seq <= subscription.next_seq < channel.next_seq:
            # It has all, or does not follow the ring: a member of a herd, or one that is closed.
            return self._count_between(own, channel)
        if own:
            return self._count_between(subscription.get_position(), channel)
        at = channel, subscription.next_seq
        if at not in self._lag_by_cursor:  # many fall behind together
            self._lag_by_cursor[at] = self._count_between(subscription.get_position(), channel)
        return self._lag_by_cursor[at]

    def _count_between(self, position: Position, channel: Channel) -> int:
        now, records = channel.tail.position, 0
        self._scanned_positions += len(position)
        for tp, place in position.items():
            there = now.get(tp)
            if there is not None and there.offset is not None and place.offset is not None:
                records += max(0, there.offset - place.offset)
        return records
