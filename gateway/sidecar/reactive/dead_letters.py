"""Dead letters on their way to their topics, which are made where they are missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from gateway.core.delivery.batch import Dead
from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError, KafkaError, PartitionFailed, UnknownTopic
from gateway.kafka.admin.topics import make_topic
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.context import Context

from .letter import Letter
from .written import ids_of

log = logging.getLogger(__name__)

WITHIN = 10.0  # seconds until a letter that Kafka does not take is tried again
TOO_LARGE = frozenset({10, 18})
LARGEST = 16 << 20  # bytes: records that came compressed are larger here, and headers come to them


class DeadLetters:
    """Of one group. suffix: of their topics. make: those that are missing."""

    def __init__(self, context: Context, group: str, suffix: str, *, make: bool = True) -> None:
        self._context = context
        self._group = group
        self._suffix = suffix
        self._make = make

    async def write(self, dead: Sequence[Dead]) -> tuple[Sequence[Dead], str]:
        """Those that Kafka does not have when this returns, and why; all others it has."""
        topics: dict[str, TopicAnswer | str] = {}
        for topic in {each.record.tp.topic for each in dead}:
            topics[topic] = await self._known(topic)
        # all begin in their order, and none waits before it is handed over
        done = await asyncio.gather(
            *(self._one(each, topics[each.record.tp.topic]) for each in dead)
        )
        left = [each for each, why in zip(dead, done, strict=True) if why]
        return left, next((why for why in done if why), "")

    def letter(self, dead: Dead) -> Letter:
        record = dead.record
        return Letter(
            record.tp, record.offset, record.timestamp, record.key, record.value,
            tuple(record.headers), self._group, dead.reason, *ids_of(record),
        )  # fmt: skip

    async def _known(self, origin: str) -> TopicAnswer | str:
        """The topic of its dead letters, or why there is none."""
        try:
            return await self._topic(origin)
        except GatewayError as error:
            return str(error)

    async def _one(self, dead: Dead, known: TopicAnswer | str) -> str:
        """Why it is not written; empty when it is."""
        if isinstance(known, str):
            return f"dead letters of {dead.record.tp} cannot be written: {known}"
        letter = self.letter(dead)
        try:
            try:
                await self._put(known, letter)
            except PartitionFailed as refused:
                if refused.code not in TOO_LARGE:
                    raise
                await self._put(known, replace(letter, stacktrace="(too long for the topic)"))
        except GatewayError as error:
            return f"dead letters of {dead.record.tp} cannot be written: {error}"
        return ""

    async def _put(self, known: TopicAnswer, letter: Letter) -> None:
        tp = partition(known, letter)
        await self._context.producer.put(
            tp, letter.key, letter.value, letter.sealed(), within=WITHIN
        )

    async def _topic(self, origin: str) -> TopicAnswer:
        name = origin + self._suffix
        try:
            return await self._context.topic(name)
        except UnknownTopic:
            if not self._make:
                raise
        known = self._context.cluster.topic(origin)
        count = len(known.partitions) if known is not None else -1
        sizes = {"max.message.bytes": str(LARGEST)}
        if await make_topic(self._context.cluster, name, partitions=count or -1, configs=sizes):
            log.info("made the topic %s for dead letters, %s partitions", name, count)
        for _ in range(20):
            try:
                return await self._context.topic(name)
            except KafkaError:  # brokers hear of it one after the other
                await asyncio.sleep(0.1)
        return await self._context.topic(name)


def partition(known: TopicAnswer, letter: Letter) -> TopicPartition:
    """The same number as the record's where there is one, so that they keep their order."""
    count, number = len(known.partitions), letter.origin.partition
    if number not in known.partitions:
        number = number % count if letter.key is None else partition_of(letter.key, count)
    return TopicPartition(known.name, number)
