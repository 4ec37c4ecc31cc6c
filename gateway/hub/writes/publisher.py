"""What all writers of a gateway share: the producer, the idempotency keys, the topics.

`gateway.hub.writes.writer` says what an idempotency key is good for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from gateway.core.log.record import TopicPartition
from gateway.core.produce.idempotency import IdempotencyKey, IdempotencyWindow
from gateway.errors import AuthenticationFailed, BrokerUnavailable, RequestError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.partitioner import compute_partition
from gateway.kafka.produce.producer import Producer
from gateway.kafka.protocol.requests import TopicMetadata

from .idempotency_log import IdempotencyLog
from .writer import PendingWrite, ProduceResult, RecordWriter

if TYPE_CHECKING:
    from gateway.hub.wires.models import Models
    from gateway.telemetry.traces import Tracing

WRITE_TIMEOUT_S = (
    10.0  # seconds until a client hears what became of its record, or that nobody knows
)


class KeyLocks(Protocol):
    """Whose turn it is to write the record of a key, among processes that hear of each other
    before Kafka hears of them."""

    async def acquire(self, key: IdempotencyKey) -> bool:
        """Return once it is our turn; True if it was another's until then."""

    def release(self, key: IdempotencyKey) -> None:
        """It is written, or given up."""


class DocumentLocks(Protocol):
    """Keys that a writer may ask to have for itself, since others compare before they write."""

    def is_compared(self, topic: str) -> bool:
        """Return whether a write to the topic may depend on what is there."""

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
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
        timeout_s: float = WRITE_TIMEOUT_S,
        window_s: float = 600.0,
        max_keys: int = 100_000,
        models: Models | None = None,
    ) -> None:
        self.cluster = cluster
        self.models = models
        self.timeout_s = timeout_s
        self.producer = Producer(cluster)
        self.idempotency_window: IdempotencyWindow[asyncio.Task[ProduceResult]] = IdempotencyWindow(
            max_keys, window_s
        )
        self.key_locks: KeyLocks | None = None
        self.document_locks: DocumentLocks | None = None
        self.tracing: Tracing | None = None
        self._window_s = window_s
        self._idempotency_logs: dict[TopicPartition, IdempotencyLog] = {}
        self._tasks: set[asyncio.Task[ProduceResult]] = set()
        self._rotation = 0

    def create_writer(self) -> RecordWriter:
        """One for every connection of a client."""
        return RecordWriter(self)

    async def close(self) -> None:
        """What was handed over is written, within some seconds; the rest fails."""
        await self.producer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start_write(self, work: Coroutine[Any, Any, ProduceResult]) -> asyncio.Task[ProduceResult]:
        """Goes on whatever becomes of the client that waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_write_done)
        return task

    def _on_write_done(self, task: asyncio.Task[ProduceResult]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to who waits; where nobody does, no warning either

    def get_idempotency_log(self, tp: TopicPartition) -> IdempotencyLog:
        found = self._idempotency_logs.get(tp)
        if found is None:
            found = self._idempotency_logs[tp] = IdempotencyLog(
                self.cluster, tp, self.idempotency_window, self._window_s
            )
        return found

    async def get_topic(self, name: str) -> TopicMetadata:
        """A topic that exists; it is watched from now on. Asked of the cluster's own metadata:
        who asks by producing may create it. Raises UnknownTopic, AccessDenied, BrokerUnavailable,
        AuthenticationFailed."""
        error = self.cluster.error
        if error is not None:  # do not take on what cannot be sent
            kind = AuthenticationFailed if isinstance(error, AuthenticationFailed) else None
            raise (kind or BrokerUnavailable)(str(error), retry_after=error.retry_after or 1.0)
        known = self.cluster.get_topic(name)
        if known is None or known.error or not known.partitions:
            known = await self.cluster.describe_topic(name)
            self.cluster.metadata.watch(name, known)
        if not known.partitions:
            raise BrokerUnavailable(f"topic {name} has no partitions yet", retry_after=1.0)
        return known

    def choose_partition(self, known: TopicMetadata, write: PendingWrite) -> TopicPartition:
        """Which one the record belongs to; the same at every repeat of one with a key."""
        count = len(known.partitions)
        if write.partition is not None:
            if write.partition not in known.partitions:
                detail = f"topic {known.name} has no partition {write.partition}"
                raise RequestError(400, "Bad request", f"{detail}; it has 0 to {count - 1}")
            return TopicPartition(known.name, write.partition)
        decides = write.key
        if decides is None and write.idempotency_key is not None:
            decides = write.idempotency_key.text.encode()
        if decides is not None:
            return TopicPartition(known.name, compute_partition(decides, count))
        led = [number for number, one in known.partitions.items() if one.leader >= 0]
        self._rotation += 1
        return TopicPartition(known.name, led[self._rotation % len(led)] if led else 0)
