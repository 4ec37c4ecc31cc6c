"""What all writers of a gateway share: the producer, the idempotency keys, the topics.

`gateway.hub.writes.writer` says what an idempotency key is good for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import Key, Once
from gateway.errors import AuthenticationFailed, BrokerUnavailable, RequestError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.produce.producer import Producer
from gateway.kafka.protocol.requests import TopicAnswer

from .idempotency_log import Seen
from .writer import Produced, Sending, Writer

if TYPE_CHECKING:
    from gateway.hub.wires.models import Models
    from gateway.telemetry.traces import Tracing

PATIENCE = 10.0  # seconds until a client hears what became of its record, or that nobody knows


class Turns(Protocol):
    """Whose turn it is to write the record of a key, among processes that hear of each other
    before Kafka hears of them."""

    async def take(self, key: Key) -> bool:
        """Return once it is our turn; True if it was another's until then."""

    def give(self, key: Key) -> None:
        """It is written, or given up."""


class Documents(Protocol):
    """Keys that a writer may ask to have for itself, since others compare before they write."""

    def is_compared(self, topic: str) -> bool:
        """Return whether a write to the topic may depend on what is there."""

    async def hold(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys; call what is returned once it is done."""


class Publisher:
    """What all writers of a gateway share. `close` it in the loop.

    turns:    with other processes; None where there are none.
    documents: of the topics whose records are shown as such; None where none are.
    patience: seconds that a client waits for the word on its record.
    window:   seconds for which idempotency keys are remembered, and looked for in the log.
    most:     of them.
    models:   of topics, by which clients' records are written; None for as they are.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        patience: float = PATIENCE,
        window: float = 600.0,
        most: int = 100_000,
        models: Models | None = None,
    ) -> None:
        self.cluster = cluster
        self.models = models
        self.patience = patience
        self.producer = Producer(cluster)
        self.once: Once[asyncio.Task[Produced]] = Once(most, window)
        self.turns: Turns | None = None
        self.documents: Documents | None = None
        self.tracing: Tracing | None = None
        self._window = window
        self._seen: dict[TopicPartition, Seen] = {}
        self._tasks: set[asyncio.Task[Produced]] = set()
        self._turn = 0

    def writer(self) -> Writer:
        """One for every connection of a client."""
        return Writer(self)

    async def close(self) -> None:
        """What was handed over is written, within some seconds; the rest fails."""
        await self.producer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, work: Coroutine[Any, Any, Produced]) -> asyncio.Task[Produced]:
        """Goes on whatever becomes of the client that waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Produced]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to who waits; where nobody does, no warning either

    def seen(self, tp: TopicPartition) -> Seen:
        found = self._seen.get(tp)
        if found is None:
            found = self._seen[tp] = Seen(self.cluster, tp, self.once, self._window)
        return found

    async def topic(self, name: str) -> TopicAnswer:
        """A topic that exists; it is watched from now on. Asked of the cluster's own metadata:
        who asks by producing may create it. Raises UnknownTopic, AccessDenied, BrokerUnavailable,
        AuthenticationFailed."""
        error = self.cluster.error
        if error is not None:  # do not take on what cannot be sent
            kind = AuthenticationFailed if isinstance(error, AuthenticationFailed) else None
            raise (kind or BrokerUnavailable)(str(error), retry_after=error.retry_after or 1.0)
        known = self.cluster.topic(name)
        if known is None or known.error or not known.partitions:
            known = await self.cluster.describe(name)
            self.cluster.metadata.watch(name, known)
        if not known.partitions:
            raise BrokerUnavailable(f"topic {name} has no partitions yet", retry_after=1.0)
        return known

    def partition(self, known: TopicAnswer, sending: Sending) -> TopicPartition:
        """Which one the record belongs to; the same at every repeat of one with a key."""
        count = len(known.partitions)
        if sending.partition is not None:
            if sending.partition not in known.partitions:
                detail = f"topic {known.name} has no partition {sending.partition}"
                raise RequestError(400, "Bad request", f"{detail}; it has 0 to {count - 1}")
            return TopicPartition(known.name, sending.partition)
        decides = sending.key
        if decides is None and sending.once is not None:
            decides = sending.once.text.encode()
        if decides is not None:
            return TopicPartition(known.name, partition_of(decides, count))
        led = [number for number, one in known.partitions.items() if one.leader >= 0]
        self._turn += 1
        return TopicPartition(known.name, led[self._turn % len(led)] if led else 0)
