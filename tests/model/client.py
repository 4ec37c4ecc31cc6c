"""A client of the model: reads bytes cut anywhere, and comes back with the id it has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from support.sse import Event, Parser

from gateway.core.channel.byte_counts import Counted
from gateway.core.log.position import Position
from gateway.wire.crc import Sum

from .oracle import Wrong
from .replica import Replica


class Stay:
    """Keeps a channel published, as a herd does."""

    cursor = sys.maxsize

    def wake(self) -> None: ...

    def fall(
        self, position: Position, notices: Sequence[bytes] = (), *, is_slow: bool = True
    ) -> None: ...


class Client:
    """eager: takes an id with its line, as fetch-event-source does, not with the whole event."""

    def __init__(self, number: int, view: int, eager: bool, options: dict[str, Any]) -> None:
        self.number, self.view, self.eager, self.options = number, view, eager, options
        self.last_event_id = ""
        self.start = "live"
        self.replica: Replica | None = None
        self.subscription: Any = None
        self.parser = Parser()
        self.wire = b""
        self.begun = False
        self.got = Sum()
        self.aside: tuple[Position, int | None] | None = None
        self.stay = Stay()
        self._topic_id = ""

    @property
    def connected(self) -> bool:
        return self.subscription is not None

    def connect(self, replica: Replica) -> None:
        """Open a stream; nothing is on the wire before BEGIN."""
        self.replica = replica
        self.subscription = replica.connect(
            self.view, self.last_event_id, self.start, **self.options
        )
        self.wire, self.begun, self.aside = b"", False, None
        self.parser = Parser(self.last_event_id)

    def take(self, budget: int) -> None:
        """The server writes what fits."""
        if self.aside is not None:
            self._come_back()
        if not self.begun:
            pending, token = self.subscription.begin()
            self.replica.promise(pending)
            self.wire, self.begun = b"event: begin\ndata: {}\nid: %b\n\n" % token, True
            self.got = Sum.of(self.wire)
            self.subscription.add(Counted.of(self.wire, self.got))
        credit = self.subscription.credit
        data = self.subscription.take(budget)
        if credit is not None and data.count(b"data: r ") != credit - self.subscription.credit:
            raise Wrong(f"client {self.number} is sent {data!r} for a credit of {credit}")
        self.wire += data
        self.got += Sum.of(data)
        if self.number % 2 == 0:  # of the others rides are as long as they get
            self._is_counted()

    def _is_counted(self) -> None:
        if self.begun and self.got != self.subscription.got:
            raise Wrong(f"client {self.number} got {self.got}, known {self.subscription.got}")

    def step_aside(self) -> None:
        """As if somebody else saw to it, until the next `take`."""
        it = self.subscription
        if self.begun and self.aside is None and not it.ended:
            self.aside = it.places(), (it.cursor if it.rides else None)
            it.step_aside()
            it.channel.followers.add(self.stay)

            self._topic_id = self.replica.metadata.topic_id

    def _come_back(self) -> None:
        it = self.subscription
        it.channel.followers.discard(self.stay)
        it.go_on(*self.aside)
        self.aside = None
        if self.replica.metadata.topic_id != self._topic_id:
            self.replica._retire(it)

    def grant(self, records: int) -> None:
        if self.subscription.credit is not None:
            self.subscription.credit += records

    def read(self, size: int) -> list[Event]:
        """So many bytes arrive."""
        if self.eager and self.wire[size - 1 : size + 1] == b"\n\n":
            size += 1  # whoever takes ids early loses an event cut just here, whatever we do
        data, self.wire = self.wire[:size], self.wire[size:]
        events = self.parser.feed(data)
        self.last_event_id = self.parser._id if self.eager else self.parser.last_event_id
        return events

    def cut(self) -> None:
        """The connection is gone, and all that was on its way."""
        if self.subscription is not None:
            assert self.replica is not None
            if self.aside is not None:
                self._come_back()
            self._is_counted()
            self.replica.close(self.subscription)
        self.subscription, self.replica, self.wire = None, None, b""
