"""Find the latest record of a key, for clients that want a document and not a stream.

It is looked up in the tables that snapshots are made of, after these are brought up to where the
partition ended at some time after the request: a client whose write was acknowledged finds its
record. A topic is read whole for the first document, and from where that ended for the next ones.

Only one writer at a time compares a key's record and writes (`lock_key`), and nobody else writes
the key until Kafka has the record: every writer of a topic of documents takes the lock, whether it
compares or not (`RecordWriter`, and the sidecar's producer by `lock_keys`). Kafka itself cannot
compare: a client that writes the key by other ways, or through a gateway on another host, may come
in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from gateway.config import Settings
from gateway.core.channel.filters import MATCH_ALL, Filter, Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.core.produce.idempotency import IdempotencyKey
from gateway.errors import BrokerUnavailable, TableTooLarge
from gateway.hub.fanout.shared_tail import SharedTail
from gateway.hub.fanout.view import View
from gateway.hub.writes.publisher import Publisher

from .key_partitions import KeyPartitions
from .services import ReadServices
from .tables import TableSpilled

CONDITION_SCOPE = "\0if-match"  # no idempotency key has this scope
# A lock of the whole topic, where transforms give records other keys than they are written by.
ANY_KEY = b""


class DocumentReader:
    """Find documents, and lock their keys for writers.

    `Hub` creates one at each start. A lock exists while somebody holds it or waits for it.

    Args:
        services: What the hub reads with.
        key_partitions: Knows in which partition a key is.
        keep_open: Keeps the topics of a view open for a while, and returns their tail.
        publisher: Has the locks that are shared with other processes.
        settings: The settings, whose routes say which topics have documents.
        cluster_name: The name of the cluster; empty where there is only one.
        timeout_s: Seconds for a document to be found.
    """

    def __init__(
        self,
        services: ReadServices,
        key_partitions: KeyPartitions,
        keep_open: Callable[[View], SharedTail],
        publisher: Publisher,
        settings: Settings,
        cluster_name: str = "",
        timeout_s: float = 10.0,
    ) -> None:
        self._services = services
        self._key_partitions = key_partitions
        self._keep_open = keep_open
        self._publisher = publisher
        self._settings = settings
        self._cluster_name = cluster_name
        self._timeout_s = timeout_s
        self._key_locks: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._is_compared_by_topic: dict[str, bool] = {}

    def apply_settings(self, settings: Settings) -> None:
        """Apply other settings: other topics may have documents now."""
        self._settings = settings
        self._is_compared_by_topic.clear()

    async def get_latest(
        self, topic: str, key: bytes, filters: Filters = MATCH_ALL
    ) -> Record | None:
        """Return the latest record of a key among those that the filters accept.

        Args:
            topic: The topic.
            key: The key.
            filters: The filters that the record has to match.

        Returns:
            The record; None if there is none, or if it was deleted.

        Raises:
            UnknownTopic: The topic does not exist.
            AccessDenied: The brokers do not let the gateway read the topic.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
            BrokerUnavailable: The record was not found in time.
            TableTooLarge: The latest records of the topic are more than its cache.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        view = View((topic,), Filters((Filter(key),)), "value", "error")
        with self._services.topics.hold(view.topics):
            await self._services.topics.open_topics(deadline, view.topics, may_be_missing=False)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._find_latest(view, key, filters)
            except TimeoutError:
                reason = self._services.cluster.error or f"not all of {topic} can be read for now"
                raise BrokerUnavailable(f"{reason}; try again", retry_after=1.0) from None
            except TableSpilled:
                raise TableTooLarge(
                    f"the keys of {topic} are more than its cache, or than memory leaves for them; "
                    "raise cache.bytes of the topic, or memory"
                ) from None

    async def _find_latest(self, view: View, key: bytes, filters: Filters) -> Record | None:
        """Return the latest record of the key over all partitions that may hold it.

        Where the key's partition is not known, it may be in any of them, or in several.
        """
        shared_tail = self._keep_open(view)
        reads_partition = self._key_partitions.build_known_partition_predicate(view)
        tps = [tp for tp in shared_tail.tail.logs if reads_partition is None or reads_partition(tp)]
        latest = await asyncio.gather(*(self._read_latest(tp, key, filters) for tp in tps))
        return max(filter(None, latest), key=_sort_key, default=None)

    async def _read_latest(self, tp: TopicPartition, key: bytes, filters: Filters) -> Record | None:
        snapshots = self._services.snapshots
        return await snapshots.tables.get_latest(
            tp, await snapshots.ends.find_end(tp), key, filters
        )

    def is_compared(self, topic: str) -> bool:
        """Return whether a write to the topic may depend on the record that is there.

        That is so if a route serves its records as documents. A client that compares has the topic
        read whole, which is for the operator to allow.
        """
        compared = self._is_compared_by_topic.get(topic)
        if compared is None:
            compared = self._is_compared_by_topic[topic] = self._serves_documents(topic)
        return compared

    def _serves_documents(self, topic: str) -> bool:
        """Return whether a route serves records of the topic as documents."""
        return any(
            route.with_.capability == "fetch"
            and any(source.can_render(topic) for source in route.with_.topic_templates)
            and self._settings.get_cluster_name(route) == self._cluster_name
            for route in self._settings.routes
        )

    @asynccontextmanager
    async def lock_key(self, topic: str, key: bytes) -> AsyncIterator[None]:
        """Let nobody else write the key in the `async with` block; see the module's docstring."""
        release = await self.lock_keys(topic, [key])
        try:
            yield
        finally:
            release()

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys, and lock them.

        The lock covers this process and others that take part in `Publisher.key_locks`. Everybody
        locks several keys in the same order, so that no two wait for each other.

        Args:
            topic: The topic.
            keys: The keys as Kafka has them.

        Returns:
            The function that releases the locks.
        """
        transforms = self._services.topics.get_settings(topic).transforms
        if any(transform.extract_key is not None for transform in transforms):
            keys = [ANY_KEY]
        releases: list[Callable[[], None]] = []

        def release() -> None:
            while releases:
                releases.pop()()

        try:
            for key in sorted(set(keys)):
                await self._acquire_key(topic, key, releases)
        except BaseException:  # also if cancelled: what was locked so far must not stay locked
            release()
            raise
        return release

    async def _acquire_key(
        self, topic: str, key: bytes, releases: list[Callable[[], None]]
    ) -> None:
        lock = self._key_locks.setdefault((topic, key), asyncio.Lock())
        await lock.acquire()
        releases.append(lock.release)
        key_locks = self._publisher.key_locks
        if key_locks is not None:
            name = IdempotencyKey(topic, CONDITION_SCOPE, key.decode("latin-1"))
            # Registered first, so that it is also released if the acquisition is cancelled.
            releases.append(lambda: key_locks.release(name))
            await key_locks.acquire(name)


def _sort_key(record: Record) -> tuple[int, int]:
    return record.timestamp, record.offset
