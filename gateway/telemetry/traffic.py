"""What goes out to the clients of one route on one wire.

Counted once for all that are written to in one round, never once a delivery: 0.6 us a round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import time
from typing import Any, TypeAlias

from .histogram import LATENCY_BUCKETS_S, SIZE_BUCKETS_BYTES, Histogram

SentEvent: TypeAlias = tuple[Any, Any, Any, int | None]
"""What is sent, of which only the last matters here: of a record its timestamp in milliseconds,
None for what is none."""

SLOW, CATCHING_UP, NO_CREDIT, THROTTLED = "slow", "catching-up", "no-credit", "max-rate"


class StreamCounts:
    """See the module.

    opened:  streams ever. ended: by the reason, `left` for clients that went away.
    bytes:   handed to connections.
    latency: from a record's timestamp to where it is written, of those that are sent as they come.
    untimed: records that are in no latency: read alone, of a time long ago, or without a timestamp.
    gaps:    that clients were told, by reason.
    stalls:  how often a connection did not take all, and its client had to wait for it.
    falls:   how often one fell too far behind, by what its route has done about that.
    read:    records that clients read alone, by where they came from.
    tokens:  bytes of the ids that streams began with.
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
        """Streams there are now."""
        return self.opened - self.ended.total()

    @property
    def records(self) -> int:
        """All that clients were sent."""
        return self.latency.count + self.untimed

    def create_reader_counts(self) -> StreamCounts:
        """For one that reads for several clients of this: what it is sent goes to nobody, but what
        it reads is read for them."""
        made = StreamCounts(self.route, self.wire)
        made.catch_up_records = self.catch_up_records
        return made

    def drain(self) -> tuple[int, Mapping[str, int]]:
        """Records and gaps since it was drained last."""
        drained = self.records, self.gaps
        self.untimed, self.latency, self.gaps = 0, Histogram(LATENCY_BUCKETS_S), Counter()
        return drained

    def count_sent(self, events: Sequence[SentEvent], times: int = 1) -> None:
        """These went to so many clients just now. Records that follow each other are mostly of one
        millisecond, and counted together."""
        if len(events) == 1:
            stamp = events[0][3]
            if stamp is not None:  # as `_late`, without the call: 0.1 us of 0.4
                late, latency = time() - stamp * 0.001, self.latency
                if stamp < 0:
                    self.untimed += times
                    return
                latency.counts[bisect_left(LATENCY_BUCKETS_S, late)] += times
                if late > 0.0:
                    latency.sum += late * times
            return
        now, stood, count = time(), None, 0
        for _, _, _, stamp in events:
            if stamp == stood:
                count += times
                continue
            if stood is not None:
                self._observe_latency(now, stood, count)
            stood, count = stamp, times
        if stood is not None:
            self._observe_latency(now, stood, count)

    def _observe_latency(self, now: float, stamp: int, times: int) -> None:
        if stamp < 0:  # Kafka's word for none
            self.untimed += times
            return
        latency, late = self.latency, now - stamp * 0.001
        latency.counts[bisect_left(LATENCY_BUCKETS_S, late)] += times
        if late > 0.0:  # or the producer's clock is ahead
            latency.sum += late * times

    def count_gaps(self, reasons: Iterable[str], times: int = 1) -> None:
        """Gaps for these reasons, to so many clients."""
        for reason in reasons:
            self.gaps[reason] += times


class StreamCountsByRoute:
    """All of a hub's, by route and wire."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, str], StreamCounts] = {}

    def get_counts(self, route: str, wire: str) -> StreamCounts:
        key = route, wire
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = StreamCounts(route, wire)
        return found

    def __iter__(self) -> Iterator[StreamCounts]:
        return iter(self._by.values())


class ClientsBehind:
    """How many clients have yet to get what was published, by route and why, and how far they are
    from it: in records, as their partitions' offsets say."""

    def __init__(self) -> None:
        self.clients: Counter[tuple[str, str]] = Counter()
        self.records: Counter[tuple[str, str]] = Counter()
        self.max_records: dict[tuple[str, str], int] = {}

    def add(self, route: str, state: str, records: int) -> None:
        key = route, state
        self.clients[key] += 1
        self.records[key] += records
        self.max_records[key] = max(records, self.max_records.get(key, 0))
