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

import orjson

from ...core.record import Record, TopicPartition
from ...core.replay import Replay, Replays
from ...errors import BrokerUnavailable, KafkaError, UnknownTopic
from ...kafka.piece import bounds, piece
from ...kafka.topics import make_topic
from ...kafka.transaction import Transactions, Write
from ..context import Context

log = logging.getLogger(__name__)

WAIT = 1.0  # seconds that Kafka holds back a fetch without news
AGAIN = 0.5  # seconds until what failed is tried again
WITHIN = 20.0  # seconds until this has heard what others have written
# A replay that runs is written every second, so only those that are over are deleted.
CONFIGS = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}


class States:
    """See the module; `run` it. failure: why the topic cannot be read, None while it can."""

    def __init__(self, context: Context, topic: str) -> None:
        self.replays = Replays()
        self.failure: str | None = "it is not read yet"
        self.tp = TopicPartition(topic, 0)
        self._context = context
        self._next = 0
        self._moved = asyncio.Condition()

    async def run(self) -> None:
        while True:
            try:
                await self._watched()
                while True:
                    await self._read()
            except KafkaError as error:
                if self.failure != str(error):
                    log.warning("replays cannot be read: %s", error)
                self.failure = str(error)
                await asyncio.sleep(AGAIN)

    async def _watched(self) -> None:
        try:
            await self._context.topic(self.tp.topic)
        except UnknownTopic:
            if await make_topic(
                self._context.cluster, self.tp.topic, partitions=1, configs=CONFIGS
            ):
                log.info("made the topic %s for replays", self.tp.topic)
            await self._context.topic(self.tp.topic)

    async def _read(self) -> None:
        got = await piece(self._context.cluster, self.tp, self._next, max_wait=WAIT)
        now = asyncio.get_running_loop().time()
        for record in got.records:
            self._learn(record, now)
        async with self._moved:
            self._next = got.next
            self._moved.notify_all()
        if self.failure is not None and not got.records:
            self.failure = None  # its end is reached

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
            why = self.failure or "a transaction of another replay is open"
            raise BrokerUnavailable(f"replays cannot be read to their end: {why}") from None

    def write(self, replay: Replay) -> Write:
        """It as a record."""
        now = time.time_ns() // 1_000_000
        return Write(self.tp, replay.id.encode(), orjson.dumps(replay.written()), (), now)

    def transactions(self, id: str) -> Transactions:
        """Those of one replay."""
        return Transactions(self._context.cluster, f"{self.tp.topic}-{id}")
