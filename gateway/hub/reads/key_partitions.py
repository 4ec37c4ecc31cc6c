"""Which partitions hold the records of a view's keys: for topics whose producers all place them
by Kafka's default partitioner (`partitioner: murmur2`).

A client whose filters name its keys catches up on their partitions only. On all of them once
the number of partitions is not what it was: where the token knows of another, or this process
has seen it change. It cannot know of a change before the token or the process, without a
token of any change since the history that is asked for began, and it cannot know of producers
that still place by the old number after a change, or by a partitioner of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.config import Topic
from gateway.core.client.private_positions import PartitionPredicate
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import ResumeToken
from gateway.errors import KafkaError
from gateway.hub.fanout.view import View
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.produce.partitioner import compute_partition

REFRESH_TIMEOUT_S = 1.0  # seconds for which the brokers are asked for the number of partitions


class KeyPartitions:
    """See the module. `close` it in the loop.

    topic: the settings of a topic, by name.
    """

    def __init__(self, cluster: Cluster, get_topic_settings: Callable[[str], Topic]) -> None:
        self._cluster = cluster
        self._get_topic_settings = get_topic_settings
        self._first_counts: dict[str, int] = {}  # of partitions, as this process first saw it
        self._topic_ids: dict[str, str] = {}  # as of now
        self._changed_topics: set[str] = set()
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    def close(self) -> None:
        self._unlisten()

    async def build_partition_predicate(
        self, view: View, token: ResumeToken | None
    ) -> PartitionPredicate | None:
        """Whether a partition may hold what a view lets through; None if each of them may.

        Asks the brokers first: a change that they know of may be older than the client's records.
        """
        if (
            view.filters.keys is None
            or not self._list_murmur2_topics(view)
            or not await self._refresh_metadata()
        ):
            return None
        return self.build_known_partition_predicate(view, token)

    def build_known_partition_predicate(
        self, view: View, token: ResumeToken | None = None
    ) -> PartitionPredicate | None:
        """The same by what is known already: within `metadataMaxAge` of a change it may be wrong.
        Brokers are asked four times a second at most, which a document must not wait for (64
        clients: 287 a second, not 5,000)."""
        keys, names = view.filters.keys, self._list_murmur2_topics(view)
        if keys is None or not names:
            return None
        ids = {name: self._topic_ids.get(name, "") for name in view.topics}
        told = token.match_topics(ids) if token is not None else {}
        placed: dict[str, frozenset[int]] = {}
        for name in names:
            count = self._first_counts.get(name, 0)
            if count and (name not in told or told[name].partition_count == count):
                placed[name] = frozenset(compute_partition(key, count) for key in keys)

        def reads(tp: TopicPartition) -> bool:
            among = placed.get(tp.topic)
            return among is None or tp.topic in self._changed_topics or tp.partition in among

        return reads

    def _list_murmur2_topics(self, view: View) -> list[str]:
        return [
            name for name in view.topics if self._get_topic_settings(name).partitioner == "murmur2"
        ]

    async def _refresh_metadata(self) -> bool:
        try:
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                await self._cluster.metadata.refresh("a client reads the partitions of its keys")
        except (KafkaError, TimeoutError):
            return False
        return True

    def _on_metadata_change(self, change: TopicChange) -> None:
        name, count = change.topic.name, len(change.topic.partitions)
        self._topic_ids[name] = str(change.topic.topic_id or "")
        if count and self._first_counts.setdefault(name, count) != count:
            self._changed_topics.add(name)
