"""Speed up readers of single keys: index the logs, and skip partitions without these keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from gateway.config import Topic
from gateway.core.client.terms import PartitionPredicate
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import ResumeToken
from gateway.errors import KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.produce.pending_records import compute_partition

from .view import View

if TYPE_CHECKING:
    from .shared_reads import SharedRead

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.1  # seconds from one look at all logs to the next
SLICE_S = 0.001  # seconds of building before other tasks get a turn
ENTRIES_PER_CLOCK_CHECK = 512  # entries from one look at the clock to the next: 0.2 ms


class KeyIndexBuilder:
    """Build the indexes of keys of one cluster's logs; `reads` may change at any time.

    They are built in slices, between which the event loop runs: an index of 500,000 entries takes
    0.2 s, which would hold up everybody if it were built at once. Readers of single keys look at
    every entry meanwhile, as before.
    """

    def __init__(
        self, reads: Mapping[TopicPartition, SharedRead], on_growth: Callable[[int], None]
    ) -> None:
        self._reads = reads
        self._on_growth = on_growth

    async def build_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.build([read.log for read in self._reads.values()])
            except Exception:  # without indexes clients are slower, but are served
                log.exception("building an index of keys failed")

    async def build(self, logs: Iterable[PartitionLog]) -> None:
        """Do all the work that logs need now, and let other tasks run after each slice of it."""
        for partition_log in logs:
            has_more = True
            while has_more:
                has_more = self._build_slice(partition_log)
                if has_more:
                    await asyncio.sleep(0)

    def _build_slice(self, partition_log: PartitionLog) -> bool:
        """Work on one log for about `SLICE_S`; return whether there is more to do."""
        ends, bytes_before = perf_counter() + SLICE_S, partition_log.bytes
        has_more = partition_log.build_key_index(ENTRIES_PER_CLOCK_CHECK)
        while has_more and perf_counter() < ends:
            has_more = partition_log.build_key_index(ENTRIES_PER_CLOCK_CHECK)
        self._on_growth(max(0, partition_log.bytes - bytes_before))
        return has_more


REFRESH_TIMEOUT_S = 1.0  # seconds for which the brokers are asked for the number of partitions


class KeyPartitions:
    """Tell which partitions may hold the records of a view, while their number stays the same.

    This works for topics whose producers all use Kafka's default partitioner, `murmur2`. A client
    whose filters name its keys then catches up on the partitions of these keys only, or on all
    partitions if the token knows another number of them, or if this process has seen it change.

    The gateway cannot know of changes before the token or the process began; without a token, of
    any change since the history that the client asks for began; nor of producers that still use the
    old number after a change, or a partitioner of their own.
    """

    def __init__(self, cluster: Cluster, get_topic_settings: Callable[[str], Topic]) -> None:
        self._cluster = cluster
        self._get_topic_settings = get_topic_settings
        self._first_counts: dict[str, int] = {}  # partitions, when this process first saw a topic
        self._topic_ids: dict[str, str] = {}  # as of now
        self._changed_topics: set[str] = set()  # topics whose number of partitions changed since
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    def close(self) -> None:
        self._unlisten()

    async def build_partition_predicate(
        self, view: View, token: ResumeToken | None
    ) -> PartitionPredicate | None:
        """Return whether a partition may hold what a view shows; None if each may.

        It asks the brokers first: a change that they know of may be older than the records.
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
        """Return the same as `build_partition_predicate`, by what is known already.

        Within `metadataMaxAge` of a change it may be wrong. Documents use it because brokers are
        asked at most four times a second (64 clients: 5,000 documents a second instead of 287).
        """
        keys, names = view.filters.keys, self._list_murmur2_topics(view)
        if keys is None or not names:
            return None
        topic_ids = {name: self._topic_ids.get(name, "") for name in view.topics}
        token_topics = token.match_topics(topic_ids) if token is not None else {}
        placed: dict[str, frozenset[int]] = {}
        for name in names:
            count = self._first_counts.get(name, 0)
            if count and (name not in token_topics or token_topics[name].partition_count == count):
                placed[name] = frozenset(compute_partition(key, count) for key in keys)

        def reads_partition(tp: TopicPartition) -> bool:
            partitions = placed.get(tp.topic)
            # Looked up at each call: the number may change while the client catches up.
            is_changed = tp.topic in self._changed_topics
            return partitions is None or is_changed or tp.partition in partitions

        return reads_partition

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
        if not count:  # nothing is remembered of topics that do not exist: clients may ask for any
            return
        self._topic_ids[name] = str(change.topic.topic_id or "")
        if self._first_counts.setdefault(name, count) != count:
            self._changed_topics.add(name)
