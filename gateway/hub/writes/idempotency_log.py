"""Find the idempotency keys in a partition's log by reading what is new in it.

Only Kafka knows what another replica wrote, or this one before it was restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
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
from gateway.kafka.fetch.bounded_read import fetch_offset, iter_uncommitted
from gateway.telemetry import traceparent

KEY_HEADER = "idempotency-key"
SCOPE_HEADER = "idempotency-scope"
RESERVED_HEADERS = frozenset({KEY_HEADER, SCOPE_HEADER})

CLOCK_SKEW_S = 60.0  # seconds by which the clocks of two gateways may differ
# Records that are read whatever their timestamps say, which may be missing.
MIN_SCANNED_RECORDS = 1000
# Of a fetch in search of one key: about as much as a range of `list_dropped_ranges` takes.
SEARCH_FETCH_BYTES = 128 << 10
RETRY_DELAY_S = 0.1  # seconds until a partition that cannot be read is tried again

Headers = Sequence[tuple[str, bytes | None]]

# Not part of the record itself: each attempt to write it has its own trace context.
_UNHASHED_HEADERS = RESERVED_HEADERS | {traceparent.HEADER_NAME}


def digest_record(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Return the digest of a record, the same for every attempt and whoever writes it."""
    return hash_record(
        key, value, [header for header in headers if header[0] not in _UNHASHED_HEADERS]
    )


@dataclass(eq=False)
class IdempotencyLog:
    """The idempotency keys of one partition, learned from its log.

    All keys in the log from the start of the window up to `_next_offset` are in the idempotency
    window, which all partitions share. `uncertain_writes` counts the writes of this process that
    ended without a known result: if it changed, a writer has to catch up again.
    """

    _cluster: Cluster
    _tp: TopicPartition
    _known_keys: IdempotencyWindow[Any]
    _window_s: float
    uncertain_writes: int = 0
    _next_offset: int | None = None
    _topic_id: UUID | None = None
    # Every key is known that was in the log at this time, by the loop's clock.
    _read_up_to_at: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _search_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def catch_up(self) -> None:
        """Return when every key that is in the log at this instant is known.

        It takes as long as Kafka takes, so put a timeout around it; the next call goes on.

        Raises:
            AccessDenied: The brokers do not let the gateway read the topic.
        """
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        async with self._lock:
            # Another call may have read the log while this one waited for the lock: that is enough
            # if it started to read after this call was made.
            while self._read_up_to_at <= arrived:
                started_at = loop.time()
                if await self._try_to_read(self._read_log()):
                    self._read_up_to_at = started_at

    async def find_dropped(self, key: IdempotencyKey) -> None:
        """Return when the window has a key again that it has dropped, if the log has it.

        Writes with other keys go on meanwhile.
        """
        async with self._search_lock:
            while not await self._try_to_read(self._search_log(key)):
                pass

    async def _try_to_read(self, reading: Coroutine[Any, Any, None]) -> bool:
        """Return whether it succeeded; False after a while in which Kafka may have recovered."""
        try:
            await reading
        except AccessDenied:
            raise
        except KafkaError as exc:
            await self._recover(exc)
            return False
        return True

    async def _search_log(self, key: IdempotencyKey) -> None:
        end = await fetch_offset(self._cluster, self._tp, LATEST)
        start = max(
            await self._find_window_start(end),
            await fetch_offset(self._cluster, self._tp, EARLIEST),
        )
        now = asyncio.get_running_loop().time()
        for part in self._known_keys.list_dropped_ranges(key, range(start, end), now):
            async for read in iter_uncommitted(
                self._cluster, self._tp, part.start, part.stop, max_bytes=SEARCH_FETCH_BYTES
            ):
                for record in read.records:
                    if _read_key(record) == key:
                        self._learn_key(record)
                        return

    async def _read_log(self) -> None:
        metadata = self._cluster.get_topic(self._tp.topic)
        topic_id = metadata.topic_id if metadata is not None else None
        if topic_id != self._topic_id:  # the topic was created again: its offsets start at 0
            self._next_offset, self._topic_id = None, topic_id
        end = await fetch_offset(self._cluster, self._tp, LATEST)
        self._next_offset = start = await self._find_start(end)
        async for read in iter_uncommitted(self._cluster, self._tp, start, end):
            for record in read.records:
                self._learn_key(record)
            self._next_offset = read.next_offset

    async def _find_start(self, end: int) -> int:
        """Return the offset to read from: where the last read ended, or where the window starts."""
        next_offset = self._next_offset
        if next_offset is not None and end - MIN_SCANNED_RECORDS <= next_offset <= end:
            return next_offset  # little is new: no need to ask for the start of the window
        start = await self._find_window_start(end)
        # Beyond the end, the log was cut back by an unclean election: read the window again.
        if next_offset is not None and next_offset <= end:
            return max(next_offset, start)
        return max(start, await fetch_offset(self._cluster, self._tp, EARLIEST))

    async def _find_window_start(self, end: int) -> int:
        since = round((time.time() - self._window_s - CLOCK_SKEW_S) * 1000)
        # -1 if no record is as late as that; then the last records are read all the same.
        by_time = await fetch_offset(self._cluster, self._tp, since)
        last_records = end - MIN_SCANNED_RECORDS
        return min(last_records, by_time) if by_time >= 0 else last_records

    def _learn_key(self, record: Record) -> None:
        key = _read_key(record)
        if key is None:
            return
        location = RecordLocation(record.tp.partition, record.offset)
        now = asyncio.get_running_loop().time()
        self._known_keys.add_written(
            key, digest_record(record.key, record.value, record.headers), location, now
        )

    async def _recover(self, exc: KafkaError) -> None:
        """Wait before the next attempt to read, or raise if there is no use in one."""
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
            return  # `catch_up` tries again as long as its caller waits


def _read_key(record: Record) -> IdempotencyKey | None:
    reserved = {name: value for name, value in record.headers if name in RESERVED_HEADERS}
    text = reserved.get(KEY_HEADER)
    if text is None:
        return None
    scope = _decode_text(reserved.get(SCOPE_HEADER))
    return IdempotencyKey(record.tp.topic, scope, _decode_text(text))


def _decode_text(value: bytes | None) -> str:
    return (value or b"").decode(errors="surrogateescape")
