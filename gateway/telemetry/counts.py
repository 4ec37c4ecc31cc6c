"""Count what happens between the gateway and Kafka.

The fetcher, the broker connections, the producers and the members of consumer groups each own one
of these values and add to it as they run. They are plain numbers: nothing else happens until a
scrape reads them. Counters only grow, from 0 at the start of the process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .histogram import Histogram

TOO_OLD_CAUSE = "unsupported-version"  # a broker speaks none of the versions of a request
MAX_GROUPS = 1000  # groups with figures of their own


@dataclass(slots=True)
class FetchCounts:
    """What a fetcher has read from Kafka.

    Attributes:
        records: Entries that were decoded, by topic: records, and runs of offsets without one.
        bytes: Bytes by topic, compressed as Kafka sent them.
        reconnects: How often the read of a partition was interrupted, by topic and cause.
        gaps: Gaps that were found, by topic and reason.
        gap_records: Offsets in these gaps, by topic and reason.
        ready_seconds: How long a partition took to become readable after it was first wanted, by
            topic.
    """

    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    reconnects: Counter[tuple[str, str]] = field(default_factory=Counter)
    gaps: Counter[tuple[str, str]] = field(default_factory=Counter)
    gap_records: Counter[tuple[str, str]] = field(default_factory=Counter)
    ready_seconds: dict[str, Histogram] = field(default_factory=dict)

    def observe_ready(self, topic: str, seconds: float) -> None:
        """Record that a partition can be read, this long after it was first wanted."""
        self.ready_seconds.setdefault(topic, Histogram()).observe(seconds)

    def count_gap(self, topic: str, reason: str, records: int) -> None:
        """Count one gap of so many offsets; below 0 counts as 0."""
        self.gaps[topic, reason] += 1
        self.gap_records[topic, reason] += max(0, records)


@dataclass(slots=True)
class BrokerRequestCounts:
    """The requests and connections of one cluster's brokers.

    Attributes:
        seconds: How long brokers took to answer, by the name of the Kafka API.
        failures: Requests without an answer, by the name of the API and the cause.
        connects: Connections that were established, by their role.
        connect_failures: Connections that could not be established, by cause.
        throttled_seconds: For how long brokers said that they throttle the gateway.
    """

    seconds: dict[str, Histogram] = field(default_factory=dict)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    connects: Counter[str] = field(default_factory=Counter)
    connect_failures: Counter[str] = field(default_factory=Counter)
    throttled_seconds: float = 0.0

    def observe_response(self, api: str, seconds: float) -> None:
        """Record that a broker answered a request of this API after so many seconds."""
        histogram = self.seconds.get(api)
        if histogram is None:
            histogram = self.seconds[api] = Histogram()
        histogram.observe(seconds)


@dataclass(slots=True)
class ProduceCounts:
    """What a producer has written to Kafka.

    Attributes:
        records: Records by topic and outcome: `written`, `refused`, `doubtful` or `unsent`.
        bytes: Bytes of keys, values and headers of written records, by topic.
        seconds: From the call that hands a record over to Kafka's acknowledgement, by topic.
    """

    records: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, Histogram] = field(default_factory=dict)

    def count_written(self, topic: str, size: int, seconds: float, times: int = 1) -> None:
        """Count records that Kafka acknowledged together.

        Args:
            topic: The topic they were written to.
            size: The bytes of all of them.
            seconds: How long each of them took.
            times: How many records they are.
        """
        self.records[topic, "written"] += times
        self.bytes[topic] += size
        histogram = self.seconds.get(topic)
        if histogram is None:
            histogram = self.seconds[topic] = Histogram()
        histogram.observe(seconds, times)


@dataclass(slots=True)
class GroupCounts:
    """What happened to the consumer groups that have members in this process, by group.

    Clients choose the names of groups, so their number has a limit: the first `MAX_GROUPS` groups
    have figures of their own, and all others share the label `""`.

    Attributes:
        rebalance_seconds: How long a member was out of the state RUNNING.
        lost_partitions: Partitions that another member got before this one could commit.
        missing_records: Records that Kafka deleted before the group had read them.
    """

    rebalance_seconds: dict[str, Histogram] = field(default_factory=dict)
    lost_partitions: Counter[str] = field(default_factory=Counter)
    missing_records: Counter[str] = field(default_factory=Counter)
    _names: set[str] = field(default_factory=set)

    def observe_rebalance(self, group: str, seconds: float) -> None:
        """Record that a member is RUNNING again, after so many seconds."""
        self.rebalance_seconds.setdefault(self.get_label(group), Histogram()).observe(seconds)

    def count_lost(self, group: str, partitions: int) -> None:
        """Count partitions that another member took over."""
        self.lost_partitions[self.get_label(group)] += partitions

    def get_label(self, group: str) -> str:
        """Return the name under which a group has its figures; `""` for one too many."""
        if group not in self._names:
            if len(self._names) >= MAX_GROUPS:
                return ""
            self._names.add(group)
        return group
