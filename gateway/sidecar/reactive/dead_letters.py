"""Dead letters on their way to their topics, which are made where they are missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from gateway.core.delivery.batch import DeadLetterRecord
from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError, KafkaError, PartitionFailed, UnknownTopic
from gateway.kafka.admin.topics import create_topic
from gateway.kafka.produce.partitioner import compute_partition
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context

from .batch_encoder import get_ids
from .message import DeadLetterMessage

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 10.0  # seconds until a letter that Kafka does not take is tried again
TOO_LARGE_CODES = frozenset({10, 18})
MAX_MESSAGE_BYTES = (
    16 << 20
)  # bytes: records that came compressed are larger here, and headers come to them


class DeadLetterWriter:
    """Of one group. suffix: of their topics. make: those that are missing."""

    def __init__(self, context: Context, group: str, ext: str, *, create: bool = True) -> None:
        self._context = context
        self._group = group
        self._ext = ext
        self._create = create

    async def write(
        self, dead: Sequence[DeadLetterRecord]
    ) -> tuple[Sequence[DeadLetterRecord], str]:
        """Those that Kafka does not have when this returns, and why; all others it has."""
        topics: dict[str, TopicMetadata | str] = {}
        for topic in {each.record.tp.topic for each in dead}:
            topics[topic] = await self._resolve_topic(topic)
        # all begin in their order, and none waits before it is handed over
        done = await asyncio.gather(
            *(self._write_one(each, topics[each.record.tp.topic]) for each in dead)
        )
        left = [each for each, why in zip(dead, done, strict=True) if why]
        return left, next((why for why in done if why), "")

    def build_message(self, dead: DeadLetterRecord) -> DeadLetterMessage:
        record = dead.record
        return DeadLetterMessage(
            record.tp, record.offset, record.timestamp, record.key, record.value,
            tuple(record.headers), self._group, dead.reason, *get_ids(record),
        )  # fmt: skip

    async def _resolve_topic(self, origin: str) -> TopicMetadata | str:
        """The topic of its dead letters, or why there is none."""
        try:
            return await self._get_or_create_topic(origin)
        except GatewayError as error:
            return str(error)

    async def _write_one(self, dead: DeadLetterRecord, known: TopicMetadata | str) -> str:
        """Why it is not written; empty when it is."""
        if isinstance(known, str):
            return f"dead letters of {dead.record.tp} cannot be written: {known}"
        letter = self.build_message(dead)
        try:
            try:
                await self._produce(known, letter)
            except PartitionFailed as refused:
                if refused.code not in TOO_LARGE_CODES:
                    raise
                await self._produce(known, replace(letter, stacktrace="(too long for the topic)"))
        except GatewayError as error:
            return f"dead letters of {dead.record.tp} cannot be written: {error}"
        return ""

    async def _produce(self, known: TopicMetadata, letter: DeadLetterMessage) -> None:
        tp = choose_partition(known, letter)
        await self._context.producer.send(
            tp, letter.key, letter.value, letter.to_headers(), timeout_s=WRITE_TIMEOUT_S
        )

    async def _get_or_create_topic(self, origin: str) -> TopicMetadata:
        name = origin + self._ext
        try:
            return await self._context.get_topic(name)
        except UnknownTopic:
            if not self._create:
                raise
        known = self._context.cluster.get_topic(origin)
        count = len(known.partitions) if known is not None else -1
        sizes = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
        if await create_topic(self._context.cluster, name, partitions=count or -1, configs=sizes):
            log.info("made the topic %s for dead letters, %s partitions", name, count)
        for _ in range(20):
            try:
                return await self._context.get_topic(name)
            except KafkaError:  # brokers hear of it one after the other
                await asyncio.sleep(0.1)
        return await self._context.get_topic(name)


def choose_partition(known: TopicMetadata, letter: DeadLetterMessage) -> TopicPartition:
    """The same number as the record's where there is one, so that they keep their order."""
    count, number = len(known.partitions), letter.origin.partition
    if number not in known.partitions:
        number = number % count if letter.key is None else compute_partition(letter.key, count)
    return TopicPartition(known.name, number)
