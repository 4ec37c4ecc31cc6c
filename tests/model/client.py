"""A client of the model: reads bytes cut anywhere, and comes back with the id it has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from support.sse import SseEvent, SseParser

from gateway.core.channel.chunk_ring import CountedBytes
from gateway.core.log.record import Position
from gateway.wire.gzip import Crc32Sum

from .oracle import BrokenPromise
from .replica import Replica


class PinningFollower:
    """Keeps a channel published, as a herd does."""

    next_seq = sys.maxsize

    def wake(self) -> None: ...

    def fall_behind(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None: ...


class ModelClient:
    """eager: takes an id with its line, as fetch-event-source does, not with the whole event."""

    def __init__(
        self, number: int, view: int, takes_ids_early: bool, options: dict[str, Any]
    ) -> None:
        self.number, self.view, self.takes_ids_early, self.options = (
            number,
            view,
            takes_ids_early,
            options,
        )
        self.last_event_id = ""
        self.start = "live"
        self.replica: Replica | None = None
        self.subscription: Any = None
        self.parser = SseParser()
        self.wire = b""
        self.has_begun = False
        self.received_sum = Crc32Sum()
        self.detached_state: tuple[Position, int | None] | None = None
        self.pinning_follower = PinningFollower()
        self._topic_id = ""

    @property
    def is_connected(self) -> bool:
        return self.subscription is not None

    def connect(self, replica: Replica) -> None:
        """Open a stream; nothing is on the wire before BEGIN."""
        self.replica = replica
        self.subscription = replica.open_subscription(
            self.view, self.last_event_id, self.start, **self.options
        )
        self.wire, self.has_begun, self.detached_state = b"", False, None
        self.parser = SseParser(self.last_event_id)

    def take_bytes(self, budget: int) -> None:
        """The server writes what fits."""
        if self.detached_state is not None:
            self._reattach()
        if not self.has_begun:
            pending, token = self.subscription.begin()
            self.replica.pin_starts(pending)
            self.wire, self.has_begun = b"event: begin\ndata: {}\nid: %b\n\n" % token, True
            self.received_sum = Crc32Sum.from_bytes(self.wire)
            self.subscription.count_private(CountedBytes.create(self.wire, self.received_sum))
        credit = self.subscription.credit
        data = self.subscription.take(budget, 0.0)
        if credit is not None and data.count(b"data: r ") != credit - self.subscription.credit:
            raise BrokenPromise(f"client {self.number} is sent {data!r} for a credit of {credit}")
        self.wire += data
        self.received_sum += Crc32Sum.from_bytes(data)
        if self.number % 2 == 0:  # of the others rides are as long as they get
            self._check_counts()

    def _check_counts(self) -> None:
        known = self.subscription.delivered_sum
        if self.has_begun and self.received_sum != known:
            raise BrokenPromise(f"client {self.number} got {self.received_sum}, known {known}")

    def detach(self) -> None:
        """As if somebody else saw to it, until the next `take`."""
        it = self.subscription
        if self.has_begun and self.detached_state is None and not it.end_reason:
            self.detached_state = it.get_position(), (it.next_seq if it.is_fully_shared else None)
            it.detach()
            it.channel.add_follower(self.pinning_follower)

            self._topic_id = self.replica.metadata.topic_id

    def _reattach(self) -> None:
        it = self.subscription
        it.channel.remove_follower(self.pinning_follower)
        it.reattach(*self.detached_state)
        self.detached_state = None
        if self.replica.metadata.topic_id != self._topic_id:
            self.replica.drop_unverified(it)

    def grant_credit(self, records: int) -> None:
        self.subscription.grant_credit(records)

    def read_events(self, size: int) -> list[SseEvent]:
        """So many bytes arrive."""
        if self.takes_ids_early and self.wire[size - 1 : size + 1] == b"\n\n":
            size += 1  # whoever takes ids early loses an event cut just here, whatever we do
        data, self.wire = self.wire[:size], self.wire[size:]
        events = self.parser.feed(data)
        self.last_event_id = (
            self.parser.pending_id if self.takes_ids_early else self.parser.last_event_id
        )
        return events

    def disconnect(self) -> None:
        """The connection is gone, and all that was on its way."""
        if self.subscription is not None:
            assert self.replica is not None
            if self.detached_state is not None:
                self._reattach()
            self._check_counts()
            self.replica.close_subscription(self.subscription)
        self.subscription, self.replica, self.wire = None, None, b""
