"""Count what the clients of one route are sent on one wire.

Counting takes place once per round, with the number of clients as the weight, never once per
delivery: that takes 0.6 us per round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from .counts import LATENCY_BUCKETS_S, SIZE_BUCKETS_BYTES, Histogram

SentEvent: TypeAlias = tuple[Any, Any, Any, int | None]
"""An event of a channel. Only its last item is used here: the timestamp of a record in
milliseconds; None if the event is not a record."""

SLOW, CATCHING_UP, NO_CREDIT, THROTTLED = "slow", "catching-up", "no-credit", "max-rate"
"""Why a client is behind, as the label `state` has it."""


class StreamCounts:
    """The counts of one route on one wire.

    The hub owns them (`StreamCountsByRoute`). Its clients and broadcaster add to them; a scrape
    reads them.

    Attributes:
        route: The route's first path; empty for the Python API.
        latency: From a record's timestamp to its write, in seconds, of records that are sent as
            they arrive.
        untimed: Records that `latency` does not include: read privately, or without a timestamp.
        stalls: How often a connection did not accept everything at once.
        falls: How often a client fell out of its channel's ring, by its route's `slowClient`.
        catch_up_records: Entries that clients read privately, by source.
    """

    __slots__ = (
        "bytes",
        "catch_up_records",
        "ended",
        "falls",
        "gaps",
        "latency",
        "opened",
        "route",
        "stalls",
        "token_bytes",
        "untimed",
        "wire",
    )  # fmt: skip

    def __init__(self, route: str = "", wire: str = "") -> None:
        self.route = route
        self.wire = wire
        self.opened = 0
        self.ended: Counter[str] = Counter()
        self.bytes = 0
        self.latency = Histogram(LATENCY_BUCKETS_S)
        self.untimed = 0
        self.gaps: Counter[str] = Counter()
        self.stalls = 0
        self.falls: Counter[str] = Counter()
        self.catch_up_records: Counter[str] = Counter()
        self.token_bytes = Histogram(SIZE_BUCKETS_BYTES)

    @property
    def open(self) -> int:
        return self.opened - self.ended.total()

    @property
    def records(self) -> int:
        return self.latency.count + self.untimed

    def create_reader_counts(self) -> StreamCounts:
        """Return counts for a shared catch-up: its reads count here, its deliveries do not."""
        counts = StreamCounts(self.route, self.wire)
        counts.catch_up_records = self.catch_up_records
        return counts

    def drain(self) -> tuple[int, Mapping[str, int]]:
        drained = self.records, self.gaps
        self.untimed, self.latency, self.gaps = 0, Histogram(LATENCY_BUCKETS_S), Counter()
        return drained

    def count_sent(self, events: Sequence[SentEvent], now: float, times: int = 1) -> None:
        """Count events that were written just now, runs of the same timestamp in one step."""
        if len(events) == 1:
            stamp = events[0][3]
            if stamp is not None:  # `_observe_latency` inlined: saves 0.1 us of 0.4
                late, latency = now - stamp * 0.001, self.latency
                if stamp < 0:
                    self.untimed += times
                    return
                latency.counts[bisect_left(LATENCY_BUCKETS_S, late)] += times
                if late > 0.0:
                    latency.sum += late * times
            return
        previous, count = None, 0
        for _, _, _, stamp in events:
            if stamp == previous:
                count += times
                continue
            if previous is not None:
                self._observe_latency(now, previous, count)
            previous, count = stamp, times
        if previous is not None:
            self._observe_latency(now, previous, count)

    def _observe_latency(self, now: float, stamp: int, times: int) -> None:
        if stamp < 0:  # Kafka's -1: the record has no timestamp
            self.untimed += times
            return
        latency, late = self.latency, now - stamp * 0.001
        latency.counts[bisect_left(LATENCY_BUCKETS_S, late)] += times
        if late > 0.0:  # else the producer's clock is ahead
            latency.sum += late * times

    def count_gaps(self, reasons: Iterable[str], times: int = 1) -> None:
        for reason in reasons:
            self.gaps[reason] += times


class StreamCountsByRoute:
    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], StreamCounts] = {}

    def get_counts(self, route: str, wire: str) -> StreamCounts:
        key = route, wire
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = StreamCounts(route, wire)
        return counts

    def __iter__(self) -> Iterator[StreamCounts]:
        return iter(self._counts.values())


class ClientsBehind:
    """The clients that lack published records; the hub's lag scan fills a new one every second."""

    def __init__(self) -> None:
        self.clients: Counter[tuple[str, str]] = Counter()
        self.records: Counter[tuple[str, str]] = Counter()
        self.max_records: dict[tuple[str, str], int] = {}

    def add(self, route: str, state: str, records: int) -> None:
        key = route, state
        self.clients[key] += 1
        self.records[key] += records
        self.max_records[key] = max(records, self.max_records.get(key, 0))
