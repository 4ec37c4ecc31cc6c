"""Records put into topics by tests, with and without transactions."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer


@dataclass(frozen=True, slots=True)
class RecordToSend:
    """A record to write. partition None: by key, or any. timestamp: ms, None for now."""

    value: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


async def produce_records(
    bootstrap: Sequence[str], topic: str, records: Iterable[RecordToSend | bytes], **options: Any
) -> list[tuple[int, int]]:
    """Write them with acks=all; (partition, offset) of each. options: of AIOKafkaProducer."""
    async with AIOKafkaProducer(bootstrap_servers=list(bootstrap), acks="all", **options) as to:
        return await _send_records(to, topic, records)


@asynccontextmanager
async def open_transaction(
    bootstrap: Sequence[str], transactional_id: str | None = None, **options: Any
) -> AsyncIterator[KafkaTransaction]:
    """An open transaction; left open it is aborted at the end of the block."""
    name = transactional_id or f"tx-{uuid.uuid4().hex[:12]}"
    producer = AIOKafkaProducer(bootstrap_servers=list(bootstrap), transactional_id=name, **options)
    async with producer:
        await producer.begin_transaction()
        made = KafkaTransaction(producer)
        try:
            yield made
        finally:
            if made.is_open:
                await made.abort()


@dataclass
class KafkaTransaction:
    """Holds readers of read_committed back until it ends."""

    producer: AIOKafkaProducer
    is_open: bool = True

    async def write_records(
        self, topic: str, records: Iterable[RecordToSend | bytes]
    ) -> list[tuple[int, int]]:
        return await _send_records(self.producer, topic, records)

    async def commit(self) -> None:
        self.is_open = False
        await self.producer.commit_transaction()

    async def abort(self) -> None:
        self.is_open = False
        await self.producer.abort_transaction()


async def _send_records(
    producer: AIOKafkaProducer, topic: str, records: Iterable[RecordToSend | bytes]
) -> list[tuple[int, int]]:
    waiting = []
    for record in records:
        each = RecordToSend(record) if isinstance(record, bytes) else record
        waiting.append(
            await producer.send(
                topic,
                value=each.value,
                key=each.key,
                partition=each.partition,
                timestamp_ms=each.timestamp,
                headers=list(each.headers),
            )
        )
    await producer.flush()
    written = [await future for future in waiting]
    return [(each.partition, each.offset) for each in written]
