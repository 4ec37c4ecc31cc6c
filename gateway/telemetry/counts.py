"""Count the events between the gateway and Kafka, in numbers and histograms.

The fetcher, the broker connections, the producers and the members of consumer groups each own one
of these values and add to it as they run. They are plain numbers: nothing else happens until a
scrape reads them. Counters only grow, from 0 at the start of the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

LATENCY_BUCKETS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds in seconds, from the best that one core reaches to where a user has given up."""

SIZE_BUCKETS_BYTES = (64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 16384, 65536)
"""Upper bounds in bytes. 8 KiB is the header limit of most proxies, 64 KiB that of this gateway."""


class Histogram:
    """A histogram that takes many equal values in one call.

    It has the number of values in each bucket alone (not cumulative), and the sum of all values.
    `bounds` are inclusive upper bounds; the last count is that of the values above all of them.

    The histogram of prometheus-client takes one observation at a time, with a lock: 1.1 us each. A
    round of the broadcaster delivers a record to 1,000 clients with the same latency, and this
    histogram records all of them in 0.2 us. It has no lock: one thread adds to it.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


TOO_OLD_CAUSE = "unsupported-version"  # a broker speaks none of the versions of a request
MAX_GROUPS = 1000  # groups with figures of their own


@dataclass(slots=True)
class FetchCounts:
    """The reads of a fetcher by topic, and by cause or reason.

    `records` includes runs of offsets without one; `bytes` are compressed; `ready_seconds` begin
    when a partition was first wanted.
    """

    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    reconnects: Counter[tuple[str, str]] = field(default_factory=Counter)
    gaps: Counter[tuple[str, str]] = field(default_factory=Counter)
    gap_records: Counter[tuple[str, str]] = field(default_factory=Counter)
    ready_seconds: dict[str, Histogram] = field(default_factory=dict)

    def observe_ready(self, topic: str, seconds: float) -> None:
        self.ready_seconds.setdefault(topic, Histogram()).observe(seconds)

    def count_gap(self, topic: str, reason: str, records: int) -> None:
        self.gaps[topic, reason] += 1
        self.gap_records[topic, reason] += max(0, records)


@dataclass(slots=True)
class BrokerRequestCounts:
    """The requests to one cluster's brokers by API and cause, and connections by role."""

    seconds: dict[str, Histogram] = field(default_factory=dict)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    connects: Counter[str] = field(default_factory=Counter)
    connect_failures: Counter[str] = field(default_factory=Counter)
    throttled_seconds: float = 0.0

    def observe_response(self, api: str, seconds: float) -> None:
        histogram = self.seconds.get(api)
        if histogram is None:
            histogram = self.seconds[api] = Histogram()
        histogram.observe(seconds)


@dataclass(slots=True)
class ProduceCounts:
    """The writes of a producer by topic; records also by outcome.

    `seconds` are from the call that hands a record over to Kafka's acknowledgement.
    """

    records: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, Histogram] = field(default_factory=dict)

    def count_written(self, topic: str, size: int, seconds: float, times: int = 1) -> None:
        self.records[topic, "written"] += times
        self.bytes[topic] += size
        histogram = self.seconds.get(topic)
        if histogram is None:
            histogram = self.seconds[topic] = Histogram()
        histogram.observe(seconds, times)


@dataclass(slots=True)
class GroupCounts:
    """The consumer groups that have members in this process.

    Clients choose the names of groups, so their number has a limit: the first `MAX_GROUPS` groups
    have figures of their own, and all others share the label `""`. `rebalance_seconds` are those
    out of the state RUNNING.
    """

    rebalance_seconds: dict[str, Histogram] = field(default_factory=dict)
    lost_partitions: Counter[str] = field(default_factory=Counter)
    missing_records: Counter[str] = field(default_factory=Counter)
    _names: set[str] = field(default_factory=set)

    def observe_rebalance(self, group: str, seconds: float) -> None:
        self.rebalance_seconds.setdefault(self.get_label(group), Histogram()).observe(seconds)

    def count_lost(self, group: str, partitions: int) -> None:
        self.lost_partitions[self.get_label(group)] += partitions

    def get_label(self, group: str) -> str:
        """Return the name under which a group has its figures; `""` for one too many."""
        if group not in self._names:
            if len(self._names) >= MAX_GROUPS:
                return ""
            self._names.add(group)
        return group
