"""What one answer to Metadata changes of a topic: pure.

An answer may be older than what is known, because brokers learn of changes at different
times: a partition with a lower leader epoch is left as it was (KIP-320).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer

DENIED = 29  # TOPIC_AUTHORIZATION_FAILED


class Moved(NamedTuple):
    """A partition's leader, before and after."""

    before: PartitionAnswer
    after: PartitionAnswer


@dataclass(frozen=True, slots=True)
class Change:
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

    topic: TopicAnswer
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    moved: dict[int, Moved] = field(default_factory=dict)
    recreated: bool = False
    deleted: bool = False
    denied: bool = False
    restored: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.added
            or self.removed
            or self.moved
            or self.recreated
            or self.deleted
            or self.denied
            or self.restored
        )


def difference(known: TopicAnswer, answer: TopicAnswer) -> Change:
    """What `answer` changes of what is known; `topic` of it is what is known then."""
    if answer.error == DENIED:
        return Change(known._replace(error=DENIED), denied=known.error != DENIED)
    restored = known.error != 0
    if known.topic_id is not None and answer.topic_id not in (None, known.topic_id):
        return Change(
            answer._replace(error=0),
            added=tuple(sorted(answer.partitions.keys() - known.partitions.keys())),
            removed=tuple(sorted(known.partitions.keys() - answer.partitions.keys())),
            recreated=True,
            restored=restored,
        )
    partitions = dict(known.partitions)
    moved: dict[int, Moved] = {}
    added: list[int] = []
    for index, after in sorted(answer.partitions.items()):
        before = known.partitions.get(index)
        if before is None:
            added.append(index)
        elif 0 <= after.leader_epoch < before.leader_epoch:
            continue  # an older answer, KIP-320
        elif after[:2] != before[:2]:
            moved[index] = Moved(before, after)
        partitions[index] = after
    topic = TopicAnswer(known.name, answer.topic_id or known.topic_id, 0, partitions)
    return Change(topic, added=tuple(added), moved=moved, restored=restored)
