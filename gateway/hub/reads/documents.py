"""The latest record of a key, for those who want a document and no stream.

It is looked up in the tables that snapshots are made of, brought up to where the partition ends
at some time after the question: who wrote a record and was told so finds it. A topic is read
whole for the first document, and from where that ended for the others.

One writer of a key at a time compares and writes (`alone`), and nobody else writes the key until
Kafka has the record: every writer of a topic of documents takes its turn, whether it compares or
not (`Writer`, and the sidecar's producer by `hold`). Kafka itself cannot compare: who writes the
key by other ways, or through a gateway on another host, may come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gateway.config import Settings
from gateway.core.channel.filters import MATCH_ALL, Filter, Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.core.produce.idempotency import IdempotencyKey
from gateway.errors import BrokerUnavailable, RequestError
from gateway.hub.fanout.view import View

from .tables import TableSpilled

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub

CONDITION_SCOPE = "\0if-match"  # no scope of an idempotency key
ANY_KEY = b""  # in place of the key, where records are shown by other keys than they are written by


class DocumentReader:
    """Of one hub. patience: seconds for all of it to be found."""

    def __init__(self, hub: Hub, timeout_s: float = 10.0) -> None:
        self._hub = hub
        self._timeout_s = timeout_s
        self._key_locks: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._is_compared_by_topic: dict[str, bool] = {}
        self._settings: Settings | None = None  # those that `_compared` is of

    async def get_latest(
        self, topic: str, key: bytes, filters: Filters = MATCH_ALL
    ) -> Record | None:
        """Return the latest record of the key among those that filters let through; None if there
        is none, or it was deleted.

        Raises UnknownTopic, AccessDenied, AuthenticationFailed, BrokerUnavailable; RequestError 503
        for a topic whose latest records are more than its cache.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        view = View((topic,), Filters((Filter(key),)), "value", "error")
        with self._hub.topics.hold(view.topics):
            await self._hub.topics.open_topics(deadline, view.topics, may_be_missing=False)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._find_latest(view, key, filters)
            except TimeoutError:
                why = self._hub.cluster.error or f"not all of {topic} can be read for now"
                raise BrokerUnavailable(f"{why}; try again", retry_after=1.0) from None
            except TableSpilled:
                what = (
                    f"the keys of {topic} are more than its cache, or than memory leaves for them; "
                    "raise cache.bytes of the topic, or memory"
                )
                raise RequestError(503, "Too many keys", what) from None

    async def _find_latest(self, view: View, key: bytes, filters: Filters) -> Record | None:
        """Where partitions of the key are not known, it may be in any of them, or in several."""
        shared = self._hub.keep_open(view)
        reads = self._hub.key_partitions.build_known_partition_predicate(view)
        tps = [tp for tp in shared.tail.logs if reads is None or reads(tp)]
        found = await asyncio.gather(*(self._read_latest(tp, key, filters) for tp in tps))
        return max(filter(None, found), key=_sort_key, default=None)

    async def _read_latest(self, tp: TopicPartition, key: bytes, filters: Filters) -> Record | None:
        snapshots = self._hub.snapshots
        return await snapshots.tables.get_latest(
            tp, await snapshots.ends.find_end(tp), key, filters
        )

    def is_compared(self, topic: str) -> bool:
        """Return whether a write to the topic may depend on what is there: a route shows its
        records as documents. Whoever compares has the topic read whole, which is the operator's to
        allow."""
        if self._settings is not self._hub.settings:
            self._settings = self._hub.settings
            self._is_compared_by_topic.clear()
        compared = self._is_compared_by_topic.get(topic)
        if compared is None:
            compared = self._is_compared_by_topic[topic] = self._serves_documents(
                topic, self._hub.settings
            )
        return compared

    def _serves_documents(self, topic: str, settings: Settings) -> bool:
        return any(
            route.with_.capability == "fetch"
            and any(source.can_render(topic) for source in route.with_.topic_templates)
            and settings.cluster_of(route) == self._hub.name
            for route in settings.routes
        )

    @asynccontextmanager
    async def lock_key(self, topic: str, key: bytes) -> AsyncIterator[None]:
        """Let nobody else write the key; see the module."""
        release = await self.lock_keys(topic, [key])
        try:
            yield
        finally:
            release()

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys, in any process that takes turns
        (`Publisher.turns`), and return what lets others go on. Keys are as Kafka has them.

        Everybody takes several in the same order, so that no two wait for each other.
        """
        transforms = self._hub.topics.get_settings(topic).transforms
        if any(each.extract_key is not None for each in transforms):
            keys = [ANY_KEY]
        held: list[Callable[[], None]] = []

        def release() -> None:
            while held:
                held.pop()()

        try:
            for key in sorted(set(keys)):
                await self._acquire_key(topic, key, held)
        except BaseException:
            release()
            raise
        return release

    async def _acquire_key(
        self, topic: str, key: bytes, releases: list[Callable[[], None]]
    ) -> None:
        lock = self._key_locks.setdefault((topic, key), asyncio.Lock())
        await lock.acquire()
        releases.append(lock.release)
        turns = self._hub.publisher.key_locks
        if turns is not None:
            name = IdempotencyKey(topic, CONDITION_SCOPE, key.decode("latin-1"))
            releases.append(
                lambda: turns.release(name)
            )  # also of one that is cancelled while it asks
            await turns.acquire(name)


def _sort_key(record: Record) -> tuple[int, int]:
    return record.timestamp, record.offset
