"""What goes on between the gateway and Kafka, counted where it happens: plain numbers of whoever
counts, asked for when somebody scrapes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .histogram import Histogram

MAX_GROUPS = 1000


@dataclass(slots=True)
class FetchCounts:
    """What a fetcher reads.

    records, bytes: by topic; bytes as Kafka sent them.
    reconnects:     how often a partition had to be tried again, by topic and cause.
    gaps, lost:     gaps of partitions and the offsets in them, by topic and reason.
    ready:          seconds from where a partition was first wanted to where it could be read.
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
    """What brokers are asked.

    seconds:  until they answered, by the api's name.
    failures: requests that were not answered, by the api's name and cause.
    connects, refused: connections by role, and those that could not be had, by cause.
    """

    seconds: dict[str, Histogram] = field(default_factory=dict)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    connects: Counter[str] = field(default_factory=Counter)
    connect_failures: Counter[str] = field(default_factory=Counter)

    def observe_response(self, api: str, seconds: float) -> None:
        found = self.seconds.get(api)
        if found is None:
            found = self.seconds[api] = Histogram()
        found.observe(seconds)


@dataclass(slots=True)
class ProduceCounts:
    """What is written to Kafka.

    records: by topic and what became of them (`written, refused, doubtful, unsent`).
    bytes:   of keys and values that were written, by topic.
    seconds: from where a record was handed over to where Kafka has it, by topic.
    """

    records: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, Histogram] = field(default_factory=dict)

    def count_written(self, topic: str, size: int, seconds: float, times: int = 1) -> None:
        """size: of all of them."""
        self.records[topic, "written"] += times
        self.bytes[topic] += size
        found = self.seconds.get(topic)
        if found is None:
            found = self.seconds[topic] = Histogram()
        found.observe(seconds, times)


@dataclass(slots=True)
class GroupCounts:
    """What becomes of consumer groups whose members are here, by group.

    Clients choose names of groups, so only the first `MOST_GROUPS` have figures of their own; what
    is told of others is under "".
    seconds: from where a member left RUNNING to where it was there again.
    lost:    partitions that were another's before their member could give them up.
    missing: records that Kafka deleted before the group had read them.
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
        """Return the name under which a group has its figures."""
        if group not in self._names:
            if len(self._names) >= MAX_GROUPS:
                return ""
            self._names.add(group)
        return group
