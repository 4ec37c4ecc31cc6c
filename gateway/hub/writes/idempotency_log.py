"""The idempotency keys in a partition's log, brought up to date by reading it.

What another replica wrote, or this one before it was started again, is known to nobody but Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.recovery import Cause, cause_of
from gateway.core.produce.idempotency import Key, Once, Written, digest
from gateway.errors import AccessDenied, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import EARLIEST, LATEST
from gateway.kafka.fetch.scan import offset, scan
from gateway.telemetry import traceparent

KEY = "idempotency-key"
SCOPE = "idempotency-scope"
OWN = frozenset({KEY, SCOPE})

SKEW = 60.0  # seconds by which the clocks of two gateways may differ
LAST = 1000  # records that are read whatever their time says; brokers without times have only these
AGAIN = 0.1  # seconds until a partition that cannot be read is asked again

Headers = Sequence[tuple[str, bytes | None]]

_BESIDE = OWN | {traceparent.NAME}  # what is not of the record itself: each attempt is traced anew


def said(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """The digest of a record, whoever wrote it, and as whichever attempt."""
    return digest(key, value, [header for header in headers if header[0] not in _BESIDE])


class Seen:
    """The keys of one partition. `once` learns them.

    window: seconds; records of this age are looked at the first time.
    doubts: how often a write here ended without anybody knowing how; who knew the keys before is
            to catch up again.
    """

    def __init__(
        self, cluster: Cluster, tp: TopicPartition, once: Once[Any], window: float
    ) -> None:
        self.doubts = 0
        self._cluster = cluster
        self._tp = tp
        self._once = once
        self._window = window
        self._next: int | None = None
        self._topic_id: UUID | None = None
        self._asked = float("-inf")
        self._reading = asyncio.Lock()

    async def catch_up(self) -> None:
        """Return when every key that is in the log at this instant is known.

        Takes as long as Kafka takes: put a timeout around it. What was read until then stays
        read, and the next call goes on from there. Raises AccessDenied.
        """
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        async with self._reading:
            while self._asked <= arrived:  # else somebody asked while we waited for our turn
                asked = loop.time()
                try:
                    await self._read()
                    self._asked = asked
                except AccessDenied:
                    raise
                except KafkaError as exc:
                    await self._recover(exc)

    async def _read(self) -> None:
        known = self._cluster.topic(self._tp.topic)
        topic_id = known.topic_id if known is not None else None
        if topic_id != self._topic_id:
            self._next, self._topic_id = None, topic_id
        end = await offset(self._cluster, self._tp, LATEST)
        self._next = start = await self._start(end)
        async for records, after in scan(self._cluster, self._tp, start, end):
            for record in records:
                self._learn(record)
            self._next = after

    async def _start(self, end: int) -> int:
        """Where to read from: what is not known yet, of the window."""
        known = self._next
        if known is not None and end - LAST <= known <= end:
            return known
        since = round((time.time() - self._window - SKEW) * 1000)
        by_time = await offset(self._cluster, self._tp, since)
        start = min(end - LAST, by_time) if by_time >= 0 else end - LAST
        if known is not None and known <= end:  # else the log was cut back by an election
            return max(known, start)
        return max(start, await offset(self._cluster, self._tp, EARLIEST))

    def _learn(self, record: Record) -> None:
        own = {name: value for name, value in record.headers if name in OWN}
        text = own.get(KEY)
        if text is None:
            return
        key = Key(record.tp.topic, _text(own.get(SCOPE)), _text(text))
        where = Written(record.tp.partition, record.offset)
        now = asyncio.get_running_loop().time()
        self._once.learn(key, said(record.key, record.value, record.headers), where, now)

    async def _recover(self, exc: KafkaError) -> None:
        cause = cause_of(exc.code) if isinstance(exc, PartitionFailed) else None
        if cause is Cause.DENIED:
            raise AccessDenied(
                f"the gateway may not read {self._tp.topic}, where it looks for idempotency keys; "
                "allow it READ",
                topic=self._tp.topic,
            ) from exc
        if cause is Cause.OUT_OF_RANGE:
            self._next = None
        await asyncio.sleep(min(1.0, max(AGAIN, exc.retry_after or 0.0)))
        try:
            await self._cluster.metadata.refresh(f"{self._tp} cannot be read: {exc}")
        except KafkaError:
            return  # asked again as long as the caller waits


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="surrogateescape")
