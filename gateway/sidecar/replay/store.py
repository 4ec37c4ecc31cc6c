"""Replays in their topic: read to its end all the time, written by whoever owns one.

The topic is compacted, with one partition: the latest record of an id is its replay. Each is
written in a transaction whose id is the replay's own, so that only its last owner's word counts,
and together with the records that it speaks of.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import UUID

import orjson

from gateway.core.delivery.replay import Replay, Replays
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, PartitionFailed, UnknownTopic
from gateway.kafka.admin.topics import create_topic
from gateway.kafka.fetch.committed_read import OUT_OF_RANGE, fetch_log_bounds, read_committed
from gateway.kafka.produce.transactional_producer import TransactionalProducer, TransactionRecord
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context

log = logging.getLogger(__name__)

FETCH_MAX_WAIT_S = 1.0  # seconds that Kafka holds back a fetch without news
RETRY_DELAY_S = 0.5  # seconds until what failed is tried again
STALE_AFTER_S = 10.0  # seconds without news from Kafka
CATCH_UP_TIMEOUT_S = 20.0  # seconds until this has heard what others have written
# A replay that runs is written every second, so only those that are over are deleted.
TOPIC_CONFIGS = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}


class ReplayStore:
    """See the module; `run` it. loaded: set once the topic has been read to its end."""

    def __init__(self, context: Context, topic: str) -> None:
        self.replays = Replays()
        self.loaded = asyncio.Event()
        self._failure = "its topic is not read yet"
        self._failing_since: float | None = None
        self.tp = TopicPartition(topic, 0)
        self._context = context
        self._next_offset = 0
        self._topic_id: UUID | None = None  # of the topic that is read
        self._initial_end: int | None = None  # of the topic, when it was first looked at
        self._progress = asyncio.Condition()

    async def run(self) -> None:
        """Read for as long as it runs; from the start where the topic was deleted or replaced."""
        while True:
            try:
                await self._open_topic()
                while self._context.is_current(self.tp.topic, self._topic_id):
                    await self._read_records()
            except KafkaError as error:
                if self._failing_since is None:
                    log.warning("replays cannot be read: %s", error)
                    self._failing_since = asyncio.get_running_loop().time()
                self._failure = str(error)
                await asyncio.sleep(RETRY_DELAY_S)
                if isinstance(error, PartitionFailed) and error.code == OUT_OF_RANGE:
                    self._next_offset = 0

    @property
    def failure(self) -> str | None:
        """Why nothing is known of replays, or not lately; a fetch that fails is no matter."""
        now = asyncio.get_running_loop().time()
        if not self.loaded.is_set():
            return self._failure
        stale = self._failing_since is not None and now - self._failing_since > STALE_AFTER_S
        return self._failure if stale else None

    async def _open_topic(self) -> None:
        try:
            known = await self._context.get_topic(self.tp.topic)
        except UnknownTopic:
            if await create_topic(
                self._context.cluster, self.tp.topic, partitions=1, configs=TOPIC_CONFIGS
            ):
                log.info("made the topic %s for replays", self.tp.topic)
            known = await self._wait_for_topic()
        if known.topic_id != self._topic_id:
            self._topic_id, self._next_offset = known.topic_id, 0
        if self._initial_end is None:
            self._initial_end = (await fetch_log_bounds(self._context.cluster, [self.tp]))[
                self.tp
            ].stop

    async def _wait_for_topic(self) -> TopicMetadata:
        """Brokers hear of a new topic one after the other."""
        for _ in range(20):
            try:
                return await self._context.get_topic(self.tp.topic)
            except KafkaError:
                await asyncio.sleep(RETRY_DELAY_S / 5)
        return await self._context.get_topic(self.tp.topic)

    async def _read_records(self) -> None:
        got = await read_committed(
            self._context.cluster, self.tp, self._next_offset, max_wait=FETCH_MAX_WAIT_S
        )
        now = asyncio.get_running_loop().time()
        for record in got.records:
            self._apply_record(record, now)
        async with self._progress:
            self._next_offset = got.next_offset
            self._progress.notify_all()
        if self._failing_since is not None:
            log.info("replays can be read again")
        self._failing_since = None
        if self._initial_end is not None and self._next_offset >= self._initial_end:
            self.loaded.set()

    def _apply_record(self, record: Record, now: float) -> None:
        try:
            id = (record.key or b"").decode()
            given: Any = None if record.value is None else orjson.loads(record.value)
            self.replays.apply_record(id, None if given is None else Replay.from_json(given), now)
        except (ValueError, KeyError, TypeError, AttributeError):
            what = "holds no replay; use a topic of its own for them"
            log.warning("%s at %d %s", self.tp, record.offset, what)

    async def wait_until_read(self) -> None:
        """Returns when all that was written before has been read. Raises BrokerUnavailable."""
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                end = (await fetch_log_bounds(self._context.cluster, [self.tp]))[self.tp].stop
                async with self._progress:
                    await self._progress.wait_for(lambda: self._next_offset >= end)
        except TimeoutError:
            why = (
                self._failure if self._failing_since else "a transaction of another replay is open"
            )
            raise BrokerUnavailable(f"replays cannot be read to their end: {why}") from None

    def build_write(self, replay: Replay) -> TransactionRecord:
        """It as a record."""
        now = time.time_ns() // 1_000_000
        return TransactionRecord(
            self.tp, replay.id.encode(), orjson.dumps(replay.to_json()), (), now
        )

    def create_transactions(self, id: str) -> TransactionalProducer:
        """Those of one replay."""
        return TransactionalProducer(self._context.cluster, f"{self.tp.topic}-{id}")
