"""Keep the state of all replays, in a topic that every sidecar follows, and show it as JSON.

The topic is compacted and has one partition: the latest record of an id is the state of that
replay. Each is written in a transaction whose id is the replay's own, so that only its current
owner can write, and together with the copies whose progress it states.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from gateway.core.delivery.replay import Destination, Replay, Replays
from gateway.core.log.record import Record, TopicPartition
from gateway.core.times import format_time
from gateway.errors import BrokerUnavailable
from gateway.kafka.fetch.bounded_read import fetch_log_bounds
from gateway.kafka.fetch.topic_follower import TopicFollower
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import TransactionalProducer
from gateway.sidecar.context import Context
from gateway.sidecar.lookups import get_or_create_topic

log = logging.getLogger(__name__)

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
        self.tp = TopicPartition(topic, 0)
        self._context = context
        self._topic_id: UUID | None = None  # of the topic that is read
        self._initial_end: int | None = None  # the end of the topic when it was opened first
        self._follower = TopicFollower(
            context.cluster, topic, self._open_topic,
            lambda: context.is_current(topic, self._topic_id), self._apply_records,
            ("replays", "can be read again"),
        )  # fmt: skip

    async def run(self) -> None:
        """Read the topic until cancelled; from its start if it was deleted or replaced."""
        await self._follower.run()

    @property
    def failure(self) -> str | None:
        """Return why the state is unknown or stale, if it is.

        Reads that fail for less than `STALE_AFTER_S` do not count.
        """
        failure, since = self._follower.failure, self._follower.failing_since
        if not self.loaded.is_set():
            return str(failure or "its topic is not read yet")
        now = asyncio.get_running_loop().time()
        return str(failure) if since is not None and now - since > STALE_AFTER_S else None

    async def _open_topic(self) -> dict[TopicPartition, int]:
        topic = await get_or_create_topic(
            self._context, self.tp.topic, "replays", partitions=1, configs=TOPIC_CONFIGS
        )
        start = self._follower.next_offsets.get(self.tp, 0)
        if topic.topic_id != self._topic_id:
            self._topic_id, start = topic.topic_id, 0
        if self._initial_end is None:
            self._initial_end = await self._fetch_end()
        return {self.tp: start}

    def _apply_records(
        self, tp: TopicPartition, records: Sequence[Record], next_offset: int
    ) -> None:
        now = asyncio.get_running_loop().time()
        for record in records:
            try:
                id = (record.key or b"").decode()
                fields: Any = None if record.value is None else orjson.loads(record.value)
                replay = None if fields is None else Replay.from_json(fields)
            except (ValueError, KeyError, TypeError, AttributeError):
                problem = "holds no replay; use a topic of its own for them"
                log.warning("%s at %d %s", tp, record.offset, problem)
            else:
                self.replays.apply_record(id, replay, now)
        if self._initial_end is not None and next_offset >= self._initial_end:
            self.loaded.set()

    async def _fetch_end(self) -> int:
        return (await fetch_log_bounds(self._context.cluster, [self.tp]))[self.tp].stop

    async def wait_until_read(self) -> None:
        """Wait until all records before the call are read; raises BrokerUnavailable."""
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                ends = {self.tp: await self._fetch_end()}
                await self._follower.wait_for(lambda: self._follower.is_read(ends))
        except TimeoutError:
            reason = self._follower.failure or "a transaction of another replay is open"
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
