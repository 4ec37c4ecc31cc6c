"""What dead letters there are: of which groups, how many, since when, and why.

All of a topic is read for that, because how many records lie between two offsets is not told by
them: what was deleted, and the ends of transactions, are offsets, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.fetch.committed_read import fetch_log_bounds
from gateway.kafka.group.group_offsets import GroupOffsets

from .queue import DeadLetterQueue, QueuedDeadLetter

MAX_REASON_CHARS = 100  # characters of a reason


class DeadLetterCounts(NamedTuple):
    """Of one group; empty: by no group of ours. oldest: milliseconds, of those that wait, None
    where none does. reason: the most frequent one."""

    topic: str
    group: str
    waiting: int
    total: int
    oldest: int | None
    reason: str


@dataclass(slots=True)
class _GroupCounts:
    committed: Mapping[TopicPartition, int]
    total: int = 0
    waiting: int = 0
    oldest: int | None = None
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, found: QueuedDeadLetter) -> None:
        record = found.record
        self.total += 1
        if record.offset < self.committed.get(record.tp, 0):
            return
        self.waiting += 1
        self.oldest = min(record.timestamp, self.oldest or record.timestamp)
        self.reasons[first_line(found.message.stacktrace)] += 1


async def count_dead_letters(
    cluster: Cluster, topic: str, ext: str, groups: Collection[str]
) -> list[DeadLetterCounts]:
    """By group, those among `groups` that have none left out. The topic must be watched. Raises
    KafkaError."""
    known = cluster.get_topic(topic)
    tps = [TopicPartition(topic, each) for each in (known.partitions if known else ())]
    tallies: dict[str, _GroupCounts] = {}
    reader = DeadLetterQueue(cluster, topic, "", ext)
    async for letters, _ in reader.iter_letters(
        await fetch_log_bounds(cluster, tps), all_groups=True
    ):
        for found in letters:
            group = found.message.group
            if group not in tallies:
                tallies[group] = _GroupCounts(await _fetch_committed(cluster, f"{group}{ext}", tps))
            tallies[group].add(found)
    return [
        DeadLetterCounts(
            topic, group, each.waiting, each.total, each.oldest, _get_most_common(each.reasons)
        )
        for group, each in sorted(tallies.items())
        if not groups or group in groups
    ]


def first_line(trace: str) -> str:
    """Of a stack trace: where it says what went wrong."""
    line = trace.strip().partition("\n")[0]
    return line if len(line) <= MAX_REASON_CHARS else f"{line[: MAX_REASON_CHARS - 3]}..."


def _get_most_common(reasons: Counter[str]) -> str:
    return reasons.most_common(1)[0][0] if reasons else ""


async def _fetch_committed(
    cluster: Cluster, group: str, tps: Collection[TopicPartition]
) -> Mapping[TopicPartition, int]:
    found = await GroupOffsets(cluster.coordinators, group).committed(tps)
    return {tp: each.offset for tp, each in found.items()}
