"""Lock the keys of documents, so that a record that was compared with is not overwritten meanwhile.

Only one writer at a time compares a key's record and writes, and nobody else writes the key until
Kafka has the record: every writer of a topic of documents takes the lock, whether it compares or
not (`RecordWriter`, and the sidecar's producer). Kafka itself cannot compare: a client that writes
the key by other ways, or through a gateway on another host, may come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from gateway.config import FetchWith, Settings, Topic
from gateway.core.produce.idempotency import IdempotencyKey

from .publisher import Publisher

CONDITION_SCOPE = "\0if-match"  # no idempotency key has this scope
# A lock of the whole topic, where transforms give records other keys than they are written by.
ANY_KEY = b""


class DocumentKeyLocks:
    """Lock the keys of documents for writers.

    `Hub` creates one at each start. A lock exists while somebody holds it or waits for it.
    """

    def __init__(
        self,
        publisher: Publisher,
        get_topic_settings: Callable[[str], Topic],
        settings: Settings,
        cluster_name: str = "",
    ) -> None:
        self._publisher = publisher
        self._get_topic_settings = get_topic_settings
        self._settings = settings
        self._cluster_name = cluster_name
        self._key_locks: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._is_compared_by_topic: dict[str, bool] = {}

    def apply_settings(self, settings: Settings) -> None:
        self._settings = settings
        self._is_compared_by_topic.clear()

    def is_compared(self, topic: str) -> bool:
        """Return whether a route serves records of the topic as documents.

        A client that compares has the topic read whole, which is for the operator to allow.
        """
        compared = self._is_compared_by_topic.get(topic)
        if compared is None:
            compared = self._is_compared_by_topic[topic] = self._serves_documents(topic)
        return compared

    def _serves_documents(self, topic: str) -> bool:
        return any(
            isinstance(route.with_, FetchWith)
            and any(source.can_render(topic) for source in route.with_.topic_templates)
            and self._settings.get_cluster_name(route) == self._cluster_name
            for route in self._settings.routes
        )

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys, and lock them; return the releasing function.

        The keys are as Kafka has them. The lock covers this process and others that take part in
        `Publisher.key_locks`. Keys are locked in one order, so that no two wait for each other.
        """
        transforms = self._get_topic_settings(topic).transforms
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
            scope = f"{CONDITION_SCOPE}:{self._cluster_name}"
            name = IdempotencyKey(topic, scope, key.decode("latin-1"))
            # Registered first, so that it is also released if the acquisition is cancelled.
            releases.append(lambda: key_locks.release(name))
            await key_locks.acquire(name)
