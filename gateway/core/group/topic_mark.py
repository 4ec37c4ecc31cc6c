"""Mark committed offsets with the topic that they are of.

Kafka keeps offsets by the name of a topic. A member that still had a deleted topic may commit after
a topic of the same name was created, and the next owner of the partition cannot tell such an offset
from later ones of the new topic. The mark is the text that Kafka keeps along with an offset:

    topic-id=5f0c9a52-6a53-4c0b-9a3f-1c1c6a5d9a10,partitions=3,cluster-id=MkU3OEVBNTcwNTJENDM2Qk

If the program that commits gives a text of its own, the mark stands behind it, after a space.

Programs that copy offsets to another cluster copy that text, too (MirrorMaker 2 does so in its
checkpoints). There every topic has another id, which says nothing about the copied offset.

The number of partitions distinguishes those that were added after the group had begun, all of whose
records the group is owed, from those without a committed offset for another reason.
"""

from __future__ import annotations

from typing import NamedTuple, Self
from uuid import UUID

_TOPIC_ID_PREFIX, _PARTITIONS_PREFIX, _CLUSTER_ID_PREFIX = (
    "topic-id=",
    ",partitions=",
    ",cluster-id=",
)

MAX_METADATA_LENGTH = 4096  # the default of Kafka's `offset.metadata.max.bytes`


class TopicMark(NamedTuple):
    """The topic that a committed offset is of.

    `initial_partitions` is the number when the group began; 0 for a topic that was created later.
    """

    topic_id: UUID
    cluster_id: str | None = None
    initial_partitions: int | None = None

    @classmethod
    def split(cls, metadata: str | None) -> tuple[str | None, Self | None]:
        own, prefix, mark = (metadata or "").rpartition(_TOPIC_ID_PREFIX)
        text, _, cluster_id = mark.partition(_CLUSTER_ID_PREFIX)
        topic_id, _, partitions = text.partition(_PARTITIONS_PREFIX)
        if not prefix or own[-1:] not in ("", " "):
            return metadata, None
        try:
            count = int(partitions) if partitions else None
            return own[:-1], cls(UUID(topic_id), cluster_id or None, count)
        except ValueError:
            return metadata, None

    def append_to(self, metadata: str | None) -> str | None:
        """Return the metadata of an offset with the mark behind it, unless that is too long."""
        marked = f"{metadata} {self}" if metadata else str(self)
        return marked if len(marked) <= MAX_METADATA_LENGTH else metadata

    def __str__(self) -> str:
        cluster = f"{_CLUSTER_ID_PREFIX}{self.cluster_id}" if self.cluster_id else ""
        count = self.initial_partitions
        partitions = f"{_PARTITIONS_PREFIX}{count}" if count is not None else ""
        return f"{_TOPIC_ID_PREFIX}{self.topic_id}{partitions}{cluster}"

    def is_of_other_cluster(self, cluster_id: str | None) -> bool:
        """Return whether the mark was made in another cluster; an unknown one counts as the same.

        Reading a topic again is better than passing over records of a new one.
        """
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id
