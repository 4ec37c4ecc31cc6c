"""Find what changed in a topic by an answer with its metadata."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.error_code import ErrorCode
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The changes that one answer made to one watched topic. It is false without any change.

    `Metadata` creates it and calls its listeners with it.

    Attributes:
        topic: The known state from now on.
        added: Partitions that were not known before, or not since `is_deleted`.
        leader_changes: Partitions that have another leader, or leader epoch.
        removed: Partitions that are gone, because the topic was recreated with fewer.
        is_recreated: The topic id changed, so every known offset belongs to another log.
        is_deleted: No broker knows the topic, any more or yet. It stays watched.
        is_denied: The topic may not be described (any more).
        is_restored: The topic was deleted or denied, and is not any more.
    """

    topic: TopicMetadata
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    leader_changes: tuple[int, ...] = ()
    is_recreated: bool = False
    is_deleted: bool = False
    is_denied: bool = False
    is_restored: bool = False

    @property
    def concerns_all(self) -> bool:
        """Return whether all partitions of the topic are affected, not only those it names."""
        return bool(
            self.removed
            or self.is_recreated
            or self.is_deleted
            or self.is_denied
            or self.is_restored
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.leader_changes or self.concerns_all)


def compare_topics(known: TopicMetadata, answer: TopicMetadata) -> TopicChange:
    """Compare an answer, which may have TOPIC_AUTHORIZATION_FAILED, with the known state.

    An answer may be older than the known state, because brokers learn of changes at different
    times. A partition whose leader epoch is lower in the answer is therefore left as it was
    (KIP-320).
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
    leader_changes: list[int] = []
    added: list[int] = []
    for index, after in sorted(answer.partitions.items()):
        before = known.partitions.get(index)
        if before is None:
            added.append(index)
        elif _is_older(before, after):
            continue  # the broker that answered knows less than we do (KIP-320)
        elif after[:2] != before[:2]:  # leader and leader epoch
            leader_changes.append(index)
        partitions[index] = after
    topic = TopicMetadata(known.name, answer.topic_id or known.topic_id, 0, partitions)
    return TopicChange(topic, tuple(added), (), tuple(leader_changes), is_restored=restored)


def is_any_epoch_lower(known: TopicMetadata, answer: TopicMetadata) -> bool:
    """Return whether a leader epoch is lower in an answer than the known one.

    The broker lags behind (KIP-320), or the topic was created again: epochs then begin at 0.
    """
    return any(
        index in known.partitions and _is_older(known.partitions[index], after)
        for index, after in answer.partitions.items()
    )


def _is_older(before: PartitionMetadata, after: PartitionMetadata) -> bool:
    return 0 <= after.leader_epoch < before.leader_epoch
