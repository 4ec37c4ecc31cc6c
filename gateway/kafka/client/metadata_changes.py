"""Compare a topic in a metadata answer with what is known of it. There is no I/O here.

An answer may be older than what is known, because brokers learn of changes at different times.
Therefore a partition whose leader epoch is lower in the answer is left as it was (KIP-320).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata


class LeaderChange(NamedTuple):
    """A partition before and after its leader or leader epoch changed."""

    before: PartitionMetadata
    after: PartitionMetadata


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What one answer changed of one watched topic. It is false where nothing changed.

    `Metadata` creates it and calls its listeners with it.

    Attributes:
        topic: What is known of the topic now.
        added: Partitions that were not known before: all of them in the first answer, and in the
            first one after `is_deleted`.
        removed: Partitions that are gone, because the topic was recreated with fewer.
        leader_changes: Partitions with another leader or leader epoch.
        is_recreated: The topic id changed, so every known offset belongs to another log.
        is_deleted: No broker knows the topic, any more or yet. It stays watched.
        is_denied: The topic may not be described (any more).
        is_restored: The topic was deleted or denied, and is not any more.
    """

    topic: TopicMetadata
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    leader_changes: dict[int, LeaderChange] = field(default_factory=dict)
    is_recreated: bool = False
    is_deleted: bool = False
    is_denied: bool = False
    is_restored: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.added
            or self.removed
            or self.leader_changes
            or self.is_recreated
            or self.is_deleted
            or self.is_denied
            or self.is_restored
        )


def is_any_epoch_lower(known: TopicMetadata, answer: TopicMetadata) -> bool:
    """Return whether the leader epoch of a partition is lower in an answer than the known one.

    The broker lags behind (KIP-320), or the topic was created again: epochs then begin at 0.
    """
    return any(
        index in known.partitions and _is_older(known.partitions[index], after)
        for index, after in answer.partitions.items()
    )


def _is_older(before: PartitionMetadata, after: PartitionMetadata) -> bool:
    return 0 <= after.leader_epoch < before.leader_epoch


def compare_topics(known: TopicMetadata, answer: TopicMetadata) -> TopicChange:
    """Compare an answer about a topic with what is known of it.

    Args:
        known: What is known. Its `error` is not 0 where the topic is missing or denied.
        answer: The topic in a metadata answer, without an error or with
            TOPIC_AUTHORIZATION_FAILED.

    Returns:
        The changes; its `topic` is what is known from now on.
    """
    if answer.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicChange(
            known._replace(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            is_denied=known.error != ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    restored = known.error != 0
    # Brokers before Kafka 2.8 send no topic ids: `Metadata` has the topic deleted first.
    if known.topic_id is not None and answer.topic_id not in (None, known.topic_id):
        return TopicChange(
            answer._replace(error=0),
            added=tuple(sorted(answer.partitions.keys() - known.partitions.keys())),
            removed=tuple(sorted(known.partitions.keys() - answer.partitions.keys())),
            is_recreated=True,
            is_restored=restored,
        )
    partitions = dict(known.partitions)
    leader_changes: dict[int, LeaderChange] = {}
    added: list[int] = []
    for index, after in sorted(answer.partitions.items()):
        before = known.partitions.get(index)
        if before is None:
            added.append(index)
        elif _is_older(before, after):
            continue  # the broker that answered knows less than we do (KIP-320)
        elif after[:2] != before[:2]:  # leader and leader epoch
            leader_changes[index] = LeaderChange(before, after)
        partitions[index] = after
    topic = TopicMetadata(known.name, answer.topic_id or known.topic_id, 0, partitions)
    return TopicChange(
        topic, added=tuple(added), leader_changes=leader_changes, is_restored=restored
    )
