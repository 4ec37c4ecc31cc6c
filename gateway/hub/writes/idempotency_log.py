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
from gateway.core.log.recovery import Cause, cause_from_code
from gateway.core.produce.idempotency import (
    IdempotencyKey,
    IdempotencyWindow,
    RecordLocation,
    hash_record,
)
from gateway.errors import AccessDenied, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import EARLIEST, LATEST
from gateway.kafka.fetch.scan import fetch_offset, iter_scan
from gateway.telemetry import traceparent

KEY_HEADER = "idempotency-key"
SCOPE_HEADER = "idempotency-scope"
RESERVED_HEADERS = frozenset({KEY_HEADER, SCOPE_HEADER})

CLOCK_SKEW_S = 60.0  # seconds by which the clocks of two gateways may differ
MIN_SCANNED_RECORDS = (
    1000  # records that are read whatever their time says; brokers without times have only these
)
RETRY_DELAY_S = 0.1  # seconds until a partition that cannot be read is asked again

Headers = Sequence[tuple[str, bytes | None]]

_UNHASHED_HEADERS = RESERVED_HEADERS | {
    traceparent.HEADER_NAME
}  # what is not of the record itself: each attempt is traced anew


def digest_record(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """The digest of a record, whoever wrote it, and as whichever attempt."""
    return hash_record(
        key, value, [header for header in headers if header[0] not in _UNHASHED_HEADERS]
    )


class IdempotencyLog:
    """The keys of one partition. `once` learns them.

    window: seconds; records of this age are looked at the first time.
    doubts: how often a write here ended without anybody knowing how; who knew the keys before is
            to catch up again.
    """

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        known_keys: IdempotencyWindow[Any],
        window_s: float,
    ) -> None:
        self.uncertain_writes = 0
        self._cluster = cluster
        self._tp = tp
        self._known_keys = known_keys
        self._window_s = window_s
        self._next_offset: int | None = None
        self._topic_id: UUID | None = None
        self._read_up_to_at = float("-inf")
        self._lock = asyncio.Lock()

    async def catch_up(self) -> None:
        """Return when every key that is in the log at this instant is known.

        Takes as long as Kafka takes: put a timeout around it. What was read until then stays
        read, and the next call goes on from there. Raises AccessDenied.
        """
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        async with self._lock:
            while (
                self._read_up_to_at <= arrived
            ):  # else somebody asked while we waited for our turn
                asked = loop.time()
                try:
                    await self._read_log()
                    self._read_up_to_at = asked
                except AccessDenied:
                    raise
                except KafkaError as exc:
                    await self._recover(exc)

    async def _read_log(self) -> None:
        known = self._cluster.get_topic(self._tp.topic)
        topic_id = known.topic_id if known is not None else None
        if topic_id != self._topic_id:
            self._next_offset, self._topic_id = None, topic_id
        end = await fetch_offset(self._cluster, self._tp, LATEST)
        self._next_offset = start = await self._find_start(end)
        async for records, after in iter_scan(self._cluster, self._tp, start, end):
            for record in records:
                self._learn_key(record)
            self._next_offset = after

    async def _find_start(self, end: int) -> int:
        """Where to read from: what is not known yet, of the window."""
        known = self._next_offset
        if known is not None and end - MIN_SCANNED_RECORDS <= known <= end:
            return known
        since = round((time.time() - self._window_s - CLOCK_SKEW_S) * 1000)
        by_time = await fetch_offset(self._cluster, self._tp, since)
        start = (
            min(end - MIN_SCANNED_RECORDS, by_time) if by_time >= 0 else end - MIN_SCANNED_RECORDS
        )
        if known is not None and known <= end:  # else the log was cut back by an election
            return max(known, start)
        return max(start, await fetch_offset(self._cluster, self._tp, EARLIEST))

    def _learn_key(self, record: Record) -> None:
        own = {name: value for name, value in record.headers if name in RESERVED_HEADERS}
        text = own.get(KEY_HEADER)
        if text is None:
            return
        key = IdempotencyKey(
            record.tp.topic, _decode_text(own.get(SCOPE_HEADER)), _decode_text(text)
        )
        where = RecordLocation(record.tp.partition, record.offset)
        now = asyncio.get_running_loop().time()
        self._known_keys.add_written(
            key, digest_record(record.key, record.value, record.headers), where, now
        )

    async def _recover(self, exc: KafkaError) -> None:
        cause = cause_from_code(exc.code) if isinstance(exc, PartitionFailed) else None
        if cause is Cause.DENIED:
            raise AccessDenied(
                f"the gateway may not read {self._tp.topic}, where it looks for idempotency keys; "
                "allow it READ",
                topic=self._tp.topic,
            ) from exc
        if cause is Cause.OUT_OF_RANGE:
            self._next_offset = None
        await asyncio.sleep(min(1.0, max(RETRY_DELAY_S, exc.retry_after or 0.0)))
        try:
            await self._cluster.metadata.refresh(f"{self._tp} cannot be read: {exc}")
        except KafkaError:
            return  # asked again as long as the caller waits


def _decode_text(value: bytes | None) -> str:
    return (value or b"").decode(errors="surrogateescape")
