"""Count dead letters: of which groups, how many, since when, and why.

The whole topic is read for that, because offsets do not tell how many records lie between them:
compacted records and control records have offsets, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.fetch.bounded_read import fetch_log_bounds
from gateway.kafka.group.group_offsets import GroupOffsets

from .queue import DeadLetterQueue, QueuedDeadLetter

MAX_REASON_CHARS = 100


class DeadLetterCounts(NamedTuple):
    """Summarize the dead letters of one group in a topic.

    Attributes:
        group: The group; empty for dead letters that no group of ours has written.
        waiting: How many are not retried or committed yet.
        oldest: The timestamp of the oldest waiting one in milliseconds since 1970, or None.
        reason: The most frequent reason of those that wait; empty if none waits.
    """

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

    def add(self, dead_letter: QueuedDeadLetter) -> None:
        record = dead_letter.record
        self.total += 1
        if record.offset < self.committed.get(record.tp, 0):
            return
        self.waiting += 1
        self.oldest = min(record.timestamp, self.oldest or record.timestamp)
        self.reasons[first_line(dead_letter.message.stacktrace)] += 1


async def count_dead_letters(
    cluster: Cluster, topic: str, ext: str, groups: Collection[str]
) -> list[DeadLetterCounts]:
    """Count the dead letters in a topic, which must be watched, by group.

    `ext` is the suffix of the topic's name; no `groups` means all. Raises KafkaError.
    """
    metadata = cluster.get_topic(topic)
    tps = [TopicPartition(topic, number) for number in (metadata.partitions if metadata else ())]
    counts_by_group: dict[str, _GroupCounts] = {}
    reader = DeadLetterQueue(cluster, topic, "", ext)
    bounds = await fetch_log_bounds(cluster, tps)
    async for dead_letters, _ in reader.iter_dead_letters(bounds, all_groups=True):
        for dead_letter in dead_letters:
            group = dead_letter.message.group
            if group not in counts_by_group:
                counts_by_group[group] = _GroupCounts(
                    await _fetch_committed(cluster, f"{group}{ext}", tps)
                )
            counts_by_group[group].add(dead_letter)
    return [
        DeadLetterCounts(
            topic, group, tally.waiting, tally.total, tally.oldest, _get_most_common(tally.reasons)
        )
        for group, tally in sorted(counts_by_group.items())
        if not groups or group in groups
    ]


def first_line(trace: str) -> str:
    """Return the first line of a stack trace, shortened."""
    line = trace.strip().partition("\n")[0]
    return line if len(line) <= MAX_REASON_CHARS else f"{line[: MAX_REASON_CHARS - 3]}..."


def _get_most_common(reasons: Counter[str]) -> str:
    return reasons.most_common(1)[0][0] if reasons else ""


async def _fetch_committed(
    cluster: Cluster, group: str, tps: Collection[TopicPartition]
) -> Mapping[TopicPartition, int]:
    committed = await GroupOffsets(cluster.coordinators, group).committed(tps)
    return {tp: position.offset for tp, position in committed.items()}
