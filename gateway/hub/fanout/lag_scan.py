"""Measure how far the clients are behind that rounds do not write to.

It is done in passing, about once a second, and not when metrics are collected: looking at 10,000
clients at once would block the loop.
"""

from __future__ import annotations

from gateway.core.channel.channel import Channel
from gateway.core.client.subscription import Subscription
from gateway.core.log.record import Position
from gateway.telemetry.traffic import SLOW, ClientsBehind

from .client import Client

MAX_POSITIONS_PER_SLICE = 2000  # positions that are compared before other tasks get a turn: 1 ms


class LagScan:
    """The lag of clients, collected in one pass, in which others run if `should_yield` says so."""

    def __init__(self) -> None:
        self.behind = ClientsBehind()
        self._lag_by_cursor: dict[tuple[Channel, int], int] = {}
        self._scanned_positions = 0

    @property
    def should_yield(self) -> bool:
        """Return whether other tasks are to run now, and reset that. Read it once per client."""
        if self._scanned_positions < MAX_POSITIONS_PER_SLICE:
            return False
        self._scanned_positions = 0
        return True

    def add_client(self, client: Client) -> None:
        """Add a client that has a `state`."""
        # The leader's position stands for that of the members of a shared catch-up.
        catch_up = client.shared_catch_up
        state, records = client.state, self.measure_lag((catch_up or client).subscription)
        if state is not None and (records or state == SLOW):
            self.behind.add(client.subscription.traffic.route, state, records)

    def measure_lag(self, subscription: Subscription) -> int:
        """Return the number of offsets between a subscription and the tail of its channel."""
        channel, private_positions = subscription.channel, subscription.private_positions
        if not channel.first_seq <= subscription.next_seq < channel.next_seq:
            # It has the whole ring, or does not follow it any more because it is closed.
            return self._count_between(private_positions, channel)
        if private_positions:
            return self._count_between(subscription.get_position(), channel)
        key = channel, subscription.next_seq
        if key not in self._lag_by_cursor:  # many clients fall behind together
            self._lag_by_cursor[key] = self._count_between(subscription.get_position(), channel)
        return self._lag_by_cursor[key]

    def _count_between(self, position: Position, channel: Channel) -> int:
        tail_position, records = channel.tail.position, 0
        self._scanned_positions += len(position)
        for tp, client_place in position.items():
            tail_place = tail_position.get(tp)
            if (
                tail_place is not None
                and tail_place.offset is not None
                and client_place.offset is not None
            ):
                records += max(0, tail_place.offset - client_place.offset)
        return records
