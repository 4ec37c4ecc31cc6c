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
from gateway.kafka.admin.topics import make_topic
from gateway.kafka.fetch.piece import OUT_OF_RANGE, bounds, piece
from gateway.kafka.produce.transactions import Transactions, Write
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.context import Context

log = logging.getLogger(__name__)

WAIT = 1.0  # seconds that Kafka holds back a fetch without news
AGAIN = 0.5  # seconds until what failed is tried again
STALE = 10.0  # seconds without news from Kafka
WITHIN = 20.0  # seconds until this has heard what others have written
# A replay that runs is written every second, so only those that are over are deleted.
CONFIGS = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}


class States:
    """See the module; `run` it. loaded: set once the topic has been read to its end."""

    def __init__(self, context: Context, topic: str) -> None:
        self.replays = Replays()
        self.loaded = asyncio.Event()
        self._failure = "its topic is not read yet"
        self._failing: float | None = None
        self.tp = TopicPartition(topic, 0)
        self._context = context
        self._next = 0
        self._topic_id: UUID | None = None  # of the topic that is read
        self._end: int | None = None  # of the topic, when it was first looked at
        self._moved = asyncio.Condition()

    async def run(self) -> None:
        """Read for as long as it runs; from the start where the topic was deleted or replaced."""
        while True:
            try:
                await self._watched()
                while self._context.is_current(self.tp.topic, self._topic_id):
                    await self._read()
            except KafkaError as error:
                if self._failing is None:
                    log.warning("replays cannot be read: %s", error)
                    self._failing = asyncio.get_running_loop().time()
                self._failure = str(error)
                await asyncio.sleep(AGAIN)
                if isinstance(error, PartitionFailed) and error.code == OUT_OF_RANGE:
                    self._next = 0

    @property
    def failure(self) -> str | None:
        """Why nothing is known of replays, or not lately; a fetch that fails is no matter."""
        now = asyncio.get_running_loop().time()
        if not self.loaded.is_set():
            return self._failure
        stale = self._failing is not None and now - self._failing > STALE
        return self._failure if stale else None

    async def _watched(self) -> None:
        try:
            known = await self._context.topic(self.tp.topic)
        except UnknownTopic:
            if await make_topic(
                self._context.cluster, self.tp.topic, partitions=1, configs=CONFIGS
            ):
                log.info("made the topic %s for replays", self.tp.topic)
            known = await self._known()
        if known.topic_id != self._topic_id:
            self._topic_id, self._next = known.topic_id, 0
        if self._end is None:
            self._end = (await bounds(self._context.cluster, [self.tp]))[self.tp].stop

    async def _known(self) -> TopicAnswer:
        """Brokers hear of a new topic one after the other."""
        for _ in range(20):
            try:
                return await self._context.topic(self.tp.topic)
            except KafkaError:
                await asyncio.sleep(AGAIN / 5)
        return await self._context.topic(self.tp.topic)

    async def _read(self) -> None:
        got = await piece(self._context.cluster, self.tp, self._next, max_wait=WAIT)
        now = asyncio.get_running_loop().time()
        for record in got.records:
            self._learn(record, now)
        async with self._moved:
            self._next = got.next
            self._moved.notify_all()
        if self._failing is not None:
            log.info("replays can be read again")
        self._failing = None
        if self._end is not None and self._next >= self._end:
            self.loaded.set()

    def _learn(self, record: Record, now: float) -> None:
        try:
            id = (record.key or b"").decode()
            given: Any = None if record.value is None else orjson.loads(record.value)
            self.replays.learn(id, None if given is None else Replay.read(given), now)
        except (ValueError, KeyError, TypeError, AttributeError):
            what = "holds no replay; use a topic of its own for them"
            log.warning("%s at %d %s", self.tp, record.offset, what)

    async def caught_up(self) -> None:
        """Returns when all that was written before has been read. Raises BrokerUnavailable."""
        try:
            async with asyncio.timeout(WITHIN):
                end = (await bounds(self._context.cluster, [self.tp]))[self.tp].stop
                async with self._moved:
                    await self._moved.wait_for(lambda: self._next >= end)
        except TimeoutError:
            why = self._failure if self._failing else "a transaction of another replay is open"
            raise BrokerUnavailable(f"replays cannot be read to their end: {why}") from None

    def write(self, replay: Replay) -> Write:
        """It as a record."""
        now = time.time_ns() // 1_000_000
        return Write(self.tp, replay.id.encode(), orjson.dumps(replay.written()), (), now)

    def transactions(self, id: str) -> Transactions:
        """Those of one replay."""
        return Transactions(self._context.cluster, f"{self.tp.topic}-{id}")
