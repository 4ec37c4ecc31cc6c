"""Keep the state of all replays, in a topic that every sidecar follows, and show it as JSON.

The topic is compacted and has one partition: the latest record of an id is the state of that
replay. Each is written in a transaction whose id is the replay's own, so that only its current
owner can write, and together with the copies whose progress it states.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import UUID

import orjson

from gateway.core.delivery.replay import Destination, Replay, Replays
from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.log.record import Record, TopicPartition
from gateway.core.times import format_time
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.fetch.bounded_read import fetch_log_bounds, read_committed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import TransactionalProducer
from gateway.sidecar.context import Context
from gateway.sidecar.lookups import get_or_create_topic

log = logging.getLogger(__name__)

FETCH_MAX_WAIT_S = 1.0  # for Kafka to answer a fetch without new records
_OUTAGE_LABEL = "replays"
RETRY_DELAY_S = 0.5  # before what failed is tried again
STALE_AFTER_S = 10.0  # of failing reads, after which the state is not trusted
CATCH_UP_TIMEOUT_S = 20.0  # to read what others have written
# A running replay is written every second, so retention deletes only those that have ended.
TOPIC_CONFIGS = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}


class ReplayStore:
    """Follow the topic of replays, and build the records that are written to it.

    The component creates it and runs `run`. `loaded` is set once the topic has been read to the end
    that it had at the start.
    """

    def __init__(self, context: Context, topic: str) -> None:
        self.replays = Replays()
        self.loaded = asyncio.Event()
        self._failure = "its topic is not read yet"  # the last one; see `failure`
        self._failing_since: float | None = None  # in seconds of the event loop's clock
        self.tp = TopicPartition(topic, 0)
        self._context = context
        self._next_offset = 0
        self._topic_id: UUID | None = None  # of the topic that is read
        self._initial_end: int | None = None  # the end of the topic when it was opened first
        self._progress = asyncio.Condition()

    async def run(self) -> None:
        """Read the topic until cancelled; from its start if it was deleted or replaced."""
        while True:
            try:
                await self._open_topic()
                while self._context.is_current(self.tp.topic, self._topic_id):
                    await self._read_records()
            except KafkaError as error:
                self._context.cluster.outages.report_error(_OUTAGE_LABEL, error)
                if self._failing_since is None:
                    self._failing_since = asyncio.get_running_loop().time()
                self._failure = str(error)
                await asyncio.sleep(RETRY_DELAY_S)
                if code_from_error(error) == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._next_offset = 0

    @property
    def failure(self) -> str | None:
        """Return why the state is unknown or stale, if it is.

        Reads that fail for less than `STALE_AFTER_S` do not count.
        """
        now = asyncio.get_running_loop().time()
        if not self.loaded.is_set():
            return self._failure
        is_stale = self._failing_since is not None and now - self._failing_since > STALE_AFTER_S
        return self._failure if is_stale else None

    async def _open_topic(self) -> None:
        topic = await get_or_create_topic(
            self._context, self.tp.topic, "replays", partitions=1, configs=TOPIC_CONFIGS
        )
        if topic.topic_id != self._topic_id:
            self._topic_id, self._next_offset = topic.topic_id, 0
        if self._initial_end is None:
            self._initial_end = (await fetch_log_bounds(self._context.cluster, [self.tp]))[
                self.tp
            ].stop

    async def _read_records(self) -> None:
        batch = await read_committed(
            self._context.cluster, self.tp, self._next_offset, max_wait=FETCH_MAX_WAIT_S
        )
        now = asyncio.get_running_loop().time()
        for record in batch.records:
            self._apply_record(record, now)
        async with self._progress:
            self._next_offset = batch.next_offset
            self._progress.notify_all()
        self._context.cluster.outages.report_recovery(_OUTAGE_LABEL, "can be read again")
        self._failing_since = None
        if self._initial_end is not None and self._next_offset >= self._initial_end:
            self.loaded.set()

    def _apply_record(self, record: Record, now: float) -> None:
        try:
            id = (record.key or b"").decode()
            fields: Any = None if record.value is None else orjson.loads(record.value)
            self.replays.apply_record(id, None if fields is None else Replay.from_json(fields), now)
        except (ValueError, KeyError, TypeError, AttributeError):
            problem = "holds no replay; use a topic of its own for them"
            log.warning("%s at %d %s", self.tp, record.offset, problem)

    async def wait_until_read(self) -> None:
        """Wait until all records before the call are read; raises BrokerUnavailable."""
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                end = (await fetch_log_bounds(self._context.cluster, [self.tp]))[self.tp].stop
                async with self._progress:
                    await self._progress.wait_for(lambda: self._next_offset >= end)
        except TimeoutError:
            reason = (
                self._failure if self._failing_since else "a transaction of another replay is open"
            )
            raise BrokerUnavailable(f"replays cannot be read to their end: {reason}") from None

    def build_write(self, replay: Replay) -> ProducerRecord:
        now = time.time_ns() // 1_000_000
        return ProducerRecord(self.tp, replay.id.encode(), orjson.dumps(replay.to_json()), (), now)

    def create_transactions(self, id: str) -> TransactionalProducer:
        """Return the producer of one replay; starting it fences other producers of that replay."""
        return self._context.create_transactions(f"{self.tp.topic}-{id}")


DELIVERY_GUARANTEES = {
    Destination.TOPIC: "exactly-once",
    Destination.BACKEND: "at-least-once",
}


def render_replay(replay: Replay, rate: float) -> dict[str, Any]:
    """Render a replay; `rate` is in records per second."""
    return {
        "id": replay.id,
        "state": replay.state,
        "topic": replay.topic,
        "destination": replay.destination,
        "destinationTopic": replay.target or None,
        "consumerGroup": replay.group or None,
        "delivery": DELIVERY_GUARANTEES[replay.destination],
        "progress": round(replay.progress, 4),
        "records": replay.records,
        "bytes": replay.bytes,
        "deadLetters": replay.dead,
        "recordsPerSecond": round(rate, 1),
        "partitions": [
            {
                "partition": partition,
                "startOffset": span.start,
                "endOffset": span.end,
                "nextOffset": span.next_offset,
            }
            for partition, span in sorted(replay.spans.items())
        ],
        "gaps": [
            {
                "partition": missing.partition,
                "startOffset": missing.offset,
                "endOffset": missing.next_offset,
                "reason": missing.reason,
            }
            for missing in replay.lacks
        ],
        "owner": replay.owner or None,
        "error": replay.error or None,
        "createdBy": replay.by or None,
        "createdAt": format_time(replay.created),
        "updatedAt": format_time(replay.updated),
    }
