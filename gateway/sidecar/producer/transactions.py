"""Write all records of a request as one transaction, or none."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gateway.background_tasks import BackgroundTasks
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import OffsetResults, ProducerRecord
from gateway.kafka.produce.transactional_producer import (
    TransactionalProducer,
    WrittenOffsets,
)
from gateway.sidecar.context import Context

from .records import EncodedRecords, NotWritten

log = logging.getLogger(__name__)

# Kafka forgets a transactional id that is not used (transactional.id.expiration.ms, 7 days).
MAX_IDLE_S = 3600.0  # after which an id is not used again

T = TypeVar("T")


class TransactionPool:
    """Keep transactional ids of this process for use by one request at a time.

    The producer component creates and closes it. An id is kept for the next request only after
    success: acquiring a new one costs a round trip to its coordinator. Kafka aborts a transaction
    after `timeout` seconds.
    """

    def __init__(self, context: Context, timeout: float) -> None:
        self._context = context
        self._timeout = timeout
        # Since when each is idle, in seconds of the monotonic clock; the last one is used first.
        self._idle: list[tuple[float, TransactionalProducer]] = []
        self._background_tasks = BackgroundTasks(log)

    async def acquire(self) -> TransactionalProducer:
        """Return a started producer of our own; raises BrokerUnavailable or AccessDenied."""
        while self._idle:
            idle_since, producer = self._idle.pop()
            if time.monotonic() - idle_since < MAX_IDLE_S:
                return producer
        name = f"{self._context.cluster.settings.client_id}-{uuid.uuid4()}"
        producer = TransactionalProducer(self._context.cluster, name, timeout=self._timeout)
        await producer.start()
        return producer

    def release(self, transactions: TransactionalProducer) -> None:
        """Keep a producer for the next request, after a successful transaction."""
        if transactions.is_started:
            self._idle.append((time.monotonic(), transactions))

    def abort_in_background(self, transactions: TransactionalProducer) -> None:
        """Abort a producer's open transaction, which would hold up readers."""

        async def abort() -> None:
            # Initializing the id again does that (KIP-98). If that fails, Kafka aborts it after the
            # transaction's timeout.
            with suppress(KafkaError):
                await transactions.start()

        self.run_in_background(abort())

    def run_in_background(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine to its end, whatever happens to the request that started it."""
        return self._background_tasks.start(coro, "the end of a transaction")

    async def close(self) -> None:
        await self._background_tasks.close(1.0)
        self._idle.clear()

    async def write(self, encoded: EncodedRecords, timeout_s: float) -> OffsetResults:
        """Write all records in one transaction, or none, and return their offsets or errors.

        `timeout_s` is for acquiring an id, and again for the transaction.
        """
        if encoded.failures or not encoded.items:
            return build_dependent_failures(encoded)
        try:
            async with asyncio.timeout(timeout_s):
                producer = await self.acquire()
        except TimeoutError:
            return [_build_timeout_error(may_be_committed=False)] * len(encoded.items)
        except KafkaError as exc:
            return [exc] * len(encoded.items)
        try:
            async with asyncio.timeout(timeout_s):
                offsets = await producer.commit(encoded.items)
        except (Fenced, TimeoutError):
            # Nobody else uses these ids, so it was Kafka that fenced the producer: to end the
            # transaction, which took too long.
            self.abort_in_background(producer)
            failure = _build_timeout_error(may_be_committed=producer.may_be_committed)
            return [failure] * len(encoded.items)
        except KafkaError as exc:
            self.abort_in_background(producer)
            return build_failures(encoded.items, exc)
        self.release(producer)
        return map_offsets(encoded.items, offsets)


def map_offsets(items: Sequence[ProducerRecord], offsets: WrittenOffsets) -> OffsetResults:
    remaining: dict[TopicPartition, Any] = {
        tp: iter(partition_offsets) for tp, partition_offsets in offsets.items()
    }
    return [next(remaining[item.tp]) for item in items]


def build_dependent_failures(encoded: EncodedRecords) -> OffsetResults:
    """Return the outcome of the valid records of a request with an invalid one."""
    if not encoded.failures:
        return []
    first = min(encoded.failures)
    reason = f"it is not written, as records[{first}] cannot be; correct that one"
    return [NotWritten(reason)] * len(encoded.items)


def build_failures(items: Sequence[ProducerRecord], exc: KafkaError) -> OffsetResults:
    refused = TopicPartition(exc.topic, exc.partition) if isinstance(exc, PartitionFailed) else None
    # If none of the records is refused, that which is remembered of them was.
    if refused is None or all(item.tp != refused for item in items):
        return [exc] * len(items)
    # Records of other partitions failed only because they share the transaction.
    other = NotWritten(f"it is not written, as {refused} refuses others; correct those")
    return [exc if item.tp == refused else other for item in items]


def _build_timeout_error(*, may_be_committed: bool) -> BrokerUnavailable:
    """Return the error of a transaction that took too long; it is in doubt if its end was sent."""
    problem = "the transaction did not finish in time"
    advice = (
        "it may be written, and without an Idempotency-Key a repeat may write it twice"
        if may_be_committed
        else "it is not written; try again"
    )
    return BrokerUnavailable(f"{problem}; {advice}", timeout=may_be_committed, retry_after=1.0)
