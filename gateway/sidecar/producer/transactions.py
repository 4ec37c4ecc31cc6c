"""Batches as transactions: all records of a request or none."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import (
    TransactionalProducer,
    TransactionRecord,
    WrittenOffsets,
)
from gateway.sidecar.context import Context

from .encoding import EncodedRecords
from .outcome import NotWritten

MAX_IDLE_S = (
    3600.0  # seconds after which a transactional id is not used again: Kafka forgets it in time
)

T = TypeVar("T")
BuildWrites = Callable[[WrittenOffsets], Sequence[TransactionRecord]]


class TransactionPool:
    """Transactional ids of this process, each used by one request at a time, and not again after
    anything went wrong. timeout: seconds after which Kafka aborts what nobody ends."""

    def __init__(self, context: Context, timeout: float) -> None:
        self._context = context
        self._timeout = timeout
        self._idle: list[tuple[float, TransactionalProducer]] = []
        self._background_tasks: set[asyncio.Task[Any]] = set()

    async def acquire(self) -> TransactionalProducer:
        """Raises BrokerUnavailable, AccessDenied."""
        while self._idle:
            since, found = self._idle.pop()
            if time.monotonic() - since < MAX_IDLE_S:
                return found
        name = f"{self._context.cluster.settings.client_id}-{uuid.uuid4()}"
        made = TransactionalProducer(self._context.cluster, name, timeout=self._timeout)
        await made.start()
        return made

    def release(self, transactions: TransactionalProducer) -> None:
        """Of who is done with it, and well."""
        if transactions.is_started:
            self._idle.append((time.monotonic(), transactions))

    def abort_in_background(self, transactions: TransactionalProducer) -> None:
        """What it left open holds up readers: have it ended in the background."""
        self.run_in_background(_abort(transactions))

    def run_in_background(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Whatever becomes of the request."""
        task = asyncio.create_task(coro)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def close(self) -> None:
        """What was begun is let be done, for a moment."""
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=1.0)
        for task in self._background_tasks:
            task.cancel()
        self._idle.clear()

    async def write(self, order: EncodedRecords, timeout_s: float) -> list[int | KafkaError]:
        """What became of each item: they are all written, or none is."""
        if order.failures or not order.items:
            return build_dependent_failures(order)
        try:
            async with asyncio.timeout(timeout_s):
                lent = await self.acquire()
        except (KafkaError, TimeoutError) as exc:
            return [to_kafka_error(exc)] * len(order.items)
        try:
            async with asyncio.timeout(timeout_s):
                placed = await lent.commit(build_writes(order.items))
        except (KafkaError, TimeoutError) as exc:
            self.abort_in_background(lent)
            return build_failures(order.items, exc)
        self.release(lent)
        return map_offsets(order.items, placed)


async def _abort(transactions: TransactionalProducer) -> None:
    try:
        await transactions.start()
    except KafkaError:
        return  # Kafka does so after the timeout


def build_writes(items: Sequence[ProducerRecord]) -> list[TransactionRecord]:
    now = time.time_ns() // 1_000_000
    return [
        TransactionRecord(tp, key, value, headers, now if stamp is None else stamp)
        for tp, key, value, headers, stamp in items
    ]


def map_offsets(items: Sequence[ProducerRecord], placed: WrittenOffsets) -> list[int | KafkaError]:
    """Of each item."""
    left: dict[TopicPartition, Any] = {tp: iter(found) for tp, found in placed.items()}
    return [next(left[item.tp]) for item in items]


def build_dependent_failures(order: EncodedRecords) -> list[int | KafkaError]:
    """Of the items of an order that has failures, and is written whole or not at all."""
    if not order.failures:
        return []
    first = min(order.failures)
    why = f"it is not written, as records[{first}] cannot be; correct that one"
    return [NotWritten(why)] * len(order.items)


def build_failures(items: Sequence[ProducerRecord], exc: Exception) -> list[int | KafkaError]:
    """Of each item of a transaction that failed."""
    if isinstance(exc, PartitionFailed):
        where = TopicPartition(exc.topic, exc.partition)
        other = NotWritten(f"it is not written, as {where} refuses others; correct those")
        return [exc if item.tp == where else other for item in items]
    return [to_kafka_error(exc)] * len(items)


def to_kafka_error(exc: Exception) -> KafkaError:
    if isinstance(exc, KafkaError):
        return exc
    return BrokerUnavailable("the transaction is not done in time", timeout=True, retry_after=1.0)
