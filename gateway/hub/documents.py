"""The latest record of a key, for those who want a document and no stream.

It is looked up in the tables that snapshots are made of, brought up to where the partition ends
at some time after the question: who wrote a record and was told so finds it. A topic is read
whole for the first document, and from where that ended for the others.

`alone` lets one writer of a key at a time compare and write. Kafka itself cannot compare: who
writes the key by other ways, or through a gateway on another host, may come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ..core.filters import Filter, Filters
from ..core.once import Key
from ..core.record import Record, TopicPartition
from ..errors import BrokerUnavailable, RequestError
from .tables import Spilled
from .view import View

if TYPE_CHECKING:
    from .hub import Hub

CONDITION = "\0if-match"  # no scope of an idempotency key


class Documents:
    """Of one hub. patience: seconds for all of it to be found."""

    def __init__(self, hub: Hub, patience: float = 10.0) -> None:
        self._hub = hub
        self._patience = patience
        self._writing: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = WeakValueDictionary()

    async def latest(self, topic: str, key: bytes) -> Record | None:
        """None if there is none, or it was deleted.

        Raises UnknownTopic, AccessDenied, AuthenticationFailed, BrokerUnavailable; RequestError 503
        for a topic whose latest records are more than its cache.
        """
        deadline = asyncio.get_running_loop().time() + self._patience
        view = View((topic,), Filters((Filter(key),)), "value", "error")
        with self._hub.topics.holding(view.topics):
            await self._hub.topics.open_by(deadline, view.topics, known=False)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._latest(view, key)
            except TimeoutError:
                why = self._hub.cluster.error or f"not all of {topic} can be read for now"
                raise BrokerUnavailable(f"{why}; try again", retry_after=1.0) from None
            except Spilled:
                what = (
                    f"the keys of {topic} are more than its cache; raise cache.bytes of the topic"
                )
                raise RequestError(503, "Too many keys", what) from None

    async def _latest(self, view: View, key: bytes) -> Record | None:
        """Where partitions of the key are not known, it may be in any of them, or in several."""
        shared = self._hub.keep(view)
        reads = self._hub.placing.known(view)
        tps = [tp for tp in shared.tail.logs if reads is None or reads(tp)]
        found = await asyncio.gather(*(self._among(tp, key) for tp in tps))
        return max(filter(None, found), key=_age, default=None)

    async def _among(self, tp: TopicPartition, key: bytes) -> Record | None:
        snapshots = self._hub.snapshots
        return await snapshots.tables.latest(tp, await snapshots.ends.of(tp), key)

    @asynccontextmanager
    async def alone(self, topic: str, key: bytes) -> AsyncIterator[None]:
        """See the module; of all processes that take turns (`Publisher.turns`)."""
        turns = self._hub.publisher.turns
        name = Key(topic, CONDITION, key.decode("latin-1"))
        async with self._writing.setdefault((topic, key), asyncio.Lock()):
            if turns is not None:
                await turns.take(name)
            try:
                yield
            finally:
                if turns is not None:
                    turns.give(name)


def _age(record: Record) -> tuple[int, int]:
    return record.timestamp, record.offset
