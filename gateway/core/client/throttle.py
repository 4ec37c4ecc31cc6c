"""Bound the records that a stream is sent in any span of time (`maxRate`).

Records are counted over every span of that length, not from one full second to the next: in no
second, whenever it begins, does a client get more than `100/s` says. Sans-I/O: `now` is in seconds
of any monotonic clock.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOW_PARTS = 10  # what is sent within such a part of the window is remembered as one interval


class SentInterval(NamedTuple):
    first: float
    last: float
    records: int


class Throttle:
    """A bound of records in any span of `window_s` seconds, for one stream.

    Invariant between calls: `_sent` is in order of time, and no interval is longer than a part of
    the window. An interval counts until `window_s` seconds after its end, so the bound is never
    exceeded, and capacity comes back at most one part too late. The records of a previous throttle
    count as well, such as that of the stream before a change of its settings.
    """

    __slots__ = ("_sent", "_window_s", "max_records")

    def __init__(self, max_records: int, window_s: float, previous: Throttle | None = None) -> None:
        self.max_records = max_records
        self._window_s = window_s
        self._sent: list[SentInterval] = [] if previous is None else list(previous._sent)

    def get_capacity(self, now: float) -> int:
        sent = self._sent
        while sent and sent[0].last + self._window_s <= now:
            del sent[0]
        return max(0, self.max_records - sum(interval.records for interval in sent))

    def record_sent(self, records: int, now: float) -> None:
        sent = self._sent
        if sent and now - sent[-1].first < self._window_s / WINDOW_PARTS:
            sent[-1] = SentInterval(sent[-1].first, now, sent[-1].records + records)
        else:
            sent.append(SentInterval(now, now, records))

    def next_capacity_at(self, now: float) -> float:
        return self._sent[0].last + self._window_s if self._sent else now
