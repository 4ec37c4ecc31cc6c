"""So many records in a time, and never more: what a stream's `maxRate` leaves now.

Counted over every span of that length, not from one full second to the next: in no second, whenever
it begins, does a client get more than `100/s` says. Sans-I/O: `now` is in seconds of any monotonic
clock.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = 10  # what is sent within one of so many parts of the time is remembered as one


class Sent(NamedTuple):
    """records: between these two times."""

    first: float
    last: float
    records: int


class Throttle:
    """
    most:   records in any `within` seconds.
    before: what another has let through counts here, too.
    """

    __slots__ = ("_sent", "_within", "most")

    def __init__(self, most: int, within: float, before: Throttle | None = None) -> None:
        self.most = most
        self._within = within
        self._sent: list[Sent] = [] if before is None else list(before._sent)

    def room(self, now: float) -> int:
        """Records that may be sent now."""
        sent = self._sent
        while sent and sent[0].last + self._within <= now:
            del sent[0]
        return max(0, self.most - sum(each.records for each in sent))

    def spend(self, records: int, now: float) -> None:
        """So many were sent."""
        sent = self._sent
        if sent and now - sent[-1].first < self._within / PARTS:
            sent[-1] = Sent(sent[-1].first, now, sent[-1].records + records)
        else:
            sent.append(Sent(now, now, records))

    def again(self, now: float) -> float:
        """When there will be room, or more of it."""
        return self._sent[0].last + self._within if self._sent else now
