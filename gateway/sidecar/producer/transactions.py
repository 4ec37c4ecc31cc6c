"""Batches as transactions: all records of a request or none."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import Item
from gateway.kafka.produce.transactions import Placed, Transactions, Write
from gateway.sidecar.context import Context

from .order import Order
from .outcome import NotWritten

IDLE = 3600.0  # seconds after which a transactional id is not used again: Kafka forgets it in time

T = TypeVar("T")
Then = Callable[[Placed], Sequence[Write]]


class Transactors:
    """Transactional ids of this process, each used by one request at a time, and not again after
    anything went wrong. timeout: seconds after which Kafka aborts what nobody ends."""

    def __init__(self, context: Context, timeout: float) -> None:
        self._context = context
        self._timeout = timeout
        self._idle: list[tuple[float, Transactions]] = []
        self._settling: set[asyncio.Task[Any]] = set()

    async def lend(self) -> Transactions:
        """Raises BrokerUnavailable, AccessDenied."""
        while self._idle:
            since, found = self._idle.pop()
            if time.monotonic() - since < IDLE:
                return found
        name = f"{self._context.cluster.settings.client_id}-{uuid.uuid4()}"
        made = Transactions(self._context.cluster, name, timeout=self._timeout)
        await made.start()
        return made

    def back(self, transactions: Transactions) -> None:
        """Of who is done with it, and well."""
        if transactions.started:
            self._idle.append((time.monotonic(), transactions))

    def settle(self, transactions: Transactions) -> None:
        """What it left open holds up readers: have it ended in the background."""
        self.beside(_settled(transactions))

    def beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Whatever becomes of the request."""
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def close(self) -> None:
        """What was begun is let be done, for a moment."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=1.0)
        for task in self._settling:
            task.cancel()
        self._idle.clear()

    async def write(self, order: Order, within: float) -> list[int | KafkaError]:
        """What became of each item: they are all written, or none is."""
        if order.failures or not order.items:
            return others(order)
        try:
            async with asyncio.timeout(within):
                lent = await self.lend()
        except (KafkaError, TimeoutError) as exc:
            return [unwritten(exc)] * len(order.items)
        try:
            async with asyncio.timeout(within):
                placed = await lent.commit(writes(order.items))
        except (KafkaError, TimeoutError) as exc:
            self.settle(lent)
            return refused(order.items, exc)
        self.back(lent)
        return offsets(order.items, placed)


async def _settled(transactions: Transactions) -> None:
    try:
        await transactions.start()
    except KafkaError:
        return  # Kafka does so after the timeout


def writes(items: Sequence[Item]) -> list[Write]:
    now = time.time_ns() // 1_000_000
    return [
        Write(tp, key, value, headers, now if stamp is None else stamp)
        for tp, key, value, headers, stamp in items
    ]


def offsets(items: Sequence[Item], placed: Placed) -> list[int | KafkaError]:
    """Of each item."""
    left: dict[TopicPartition, Any] = {tp: iter(found) for tp, found in placed.items()}
    return [next(left[item.tp]) for item in items]


def others(order: Order) -> list[int | KafkaError]:
    """Of the items of an order that has failures, and is written whole or not at all."""
    if not order.failures:
        return []
    first = min(order.failures)
    why = f"it is not written, as records[{first}] cannot be; correct that one"
    return [NotWritten(why)] * len(order.items)


def refused(items: Sequence[Item], exc: Exception) -> list[int | KafkaError]:
    """Of each item of a transaction that failed."""
    if isinstance(exc, PartitionFailed):
        where = TopicPartition(exc.topic, exc.partition)
        other = NotWritten(f"it is not written, as {where} refuses others; correct those")
        return [exc if item.tp == where else other for item in items]
    return [unwritten(exc)] * len(items)


def unwritten(exc: Exception) -> KafkaError:
    if isinstance(exc, KafkaError):
        return exc
    return BrokerUnavailable("the transaction is not done in time", timeout=True, retry_after=1.0)
