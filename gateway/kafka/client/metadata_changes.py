"""What one answer to Metadata changes of a topic: pure.

An answer may be older than what is known, because brokers learn of changes at different
times: a partition with a lower leader epoch is left as it was (KIP-320).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata

TOPIC_AUTHORIZATION_FAILED = 29  # TOPIC_AUTHORIZATION_FAILED


class LeaderChange(NamedTuple):
    """A partition's leader, before and after."""

    before: PartitionMetadata
    after: PartitionMetadata


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What one answer changed of one watched topic.

    topic:     as known now.
    added:     partitions not known before: all of them with the first answer, and with the
               first one after `deleted`.
    removed:   partitions that are gone: the topic was recreated with fewer.
    moved:     partitions with another leader or leader epoch.
    recreated: the topic id changed, so every offset known is of another log.
    deleted:   no broker knows the topic, any more or yet. It stays watched.
    denied:    describing it is not allowed (any more).
    restored:  it was deleted or denied, and is not any more.
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


def compare_topics(known: TopicMetadata, answer: TopicMetadata) -> TopicChange:
    """What `answer` changes of what is known; `topic` of it is what is known then."""
    if answer.error == TOPIC_AUTHORIZATION_FAILED:
        return TopicChange(
            known._replace(error=TOPIC_AUTHORIZATION_FAILED),
            is_denied=known.error != TOPIC_AUTHORIZATION_FAILED,
        )
    restored = known.error != 0
    if known.topic_id is not None and answer.topic_id not in (None, known.topic_id):
        return TopicChange(
            answer._replace(error=0),
            added=tuple(sorted(answer.partitions.keys() - known.partitions.keys())),
            removed=tuple(sorted(known.partitions.keys() - answer.partitions.keys())),
            is_recreated=True,
            is_restored=restored,
        )
    partitions = dict(known.partitions)
    moved: dict[int, LeaderChange] = {}
    added: list[int] = []
    for index, after in sorted(answer.partitions.items()):
        before = known.partitions.get(index)
        if before is None:
            added.append(index)
        elif 0 <= after.leader_epoch < before.leader_epoch:
            continue  # an older answer, KIP-320
        elif after[:2] != before[:2]:
            moved[index] = LeaderChange(before, after)
        partitions[index] = after
    topic = TopicMetadata(known.name, answer.topic_id or known.topic_id, 0, partitions)
    return TopicChange(topic, added=tuple(added), leader_changes=moved, is_restored=restored)
