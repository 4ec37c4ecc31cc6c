"""So many records in a time, and never more: what a stream's `maxRate` leaves now.

Counted over every span of that length, not from one full second to the next: in no second, whenever
it begins, does a client get more than `100/s` says. Sans-I/O: `now` is in seconds of any monotonic
clock.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOW_PARTS = 10  # what is sent within one of so many parts of the time is remembered as one


class SentInterval(NamedTuple):
    """records: between these two times."""

    first: float
    last: float
    records: int


class Throttle:
    """
    most:   records in any `within` seconds.
    before: what another has let through counts here, too.
    """

    __slots__ = ("_sent", "_window_s", "max_records")

    def __init__(self, max_records: int, window_s: float, previous: Throttle | None = None) -> None:
        self.max_records = max_records
        self._window_s = window_s
        self._sent: list[SentInterval] = [] if previous is None else list(previous._sent)

    def get_capacity(self, now: float) -> int:
        """Records that may be sent now."""
        sent = self._sent
        while sent and sent[0].last + self._window_s <= now:
            del sent[0]
        return max(0, self.max_records - sum(each.records for each in sent))

    def record_sent(self, records: int, now: float) -> None:
        """So many were sent."""
        sent = self._sent
        if sent and now - sent[-1].first < self._window_s / WINDOW_PARTS:
            sent[-1] = SentInterval(sent[-1].first, now, sent[-1].records + records)
        else:
            sent.append(SentInterval(now, now, records))

    def next_capacity_at(self, now: float) -> float:
        """When there will be room, or more of it."""
        return self._sent[0].last + self._window_s if self._sent else now
