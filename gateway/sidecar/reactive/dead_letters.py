"""Write dead letters to their topics, and create these topics where they are missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from gateway.core.delivery.batch import DeadLetterRecord
from gateway.core.error_code import TOO_LARGE_ERRORS
from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError, KafkaError, PartitionFailed, UnknownTopic
from gateway.kafka.admin.topics import create_topic
from gateway.kafka.produce.partitioner import compute_partition
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context

from .batch_encoder import get_ids
from .message import DeadLetterMessage

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 10.0  # for Kafka to acknowledge one; then it is tried again
# `max.message.bytes` of created topics. Dead letters are larger than the records, which may have
# been compressed, and have further headers.
MAX_MESSAGE_BYTES = 16 << 20


class DeadLetterWriter:
    """Write the dead letters of one group.

    Args:
        context: What all components share.
        group: The name of the group.
        ext: What the names of its dead letter topics end in.
        create: Whether to create missing topics.
    """

    def __init__(self, context: Context, group: str, ext: str, *, create: bool = True) -> None:
        self._context = context
        self._group = group
        self._ext = ext
        self._create = create

    async def write(
        self, dead: Sequence[DeadLetterRecord]
    ) -> tuple[Sequence[DeadLetterRecord], str]:
        """Write dead letters.

        Returns:
            Those that Kafka does not have now, and why; it has all others.
        """
        topics: dict[str, TopicMetadata | str] = {}
        for topic in {dead_letter.record.tp.topic for dead_letter in dead}:
            topics[topic] = await self._resolve_topic(topic)
        # They start in order, and none is suspended before the producer has it, so they keep their
        # order in Kafka.
        reasons = await asyncio.gather(
            *(
                self._write_one(dead_letter, topics[dead_letter.record.tp.topic])
                for dead_letter in dead
            )
        )
        unwritten = [
            dead_letter for dead_letter, reason in zip(dead, reasons, strict=True) if reason
        ]
        return unwritten, next((reason for reason in reasons if reason), "")

    def build_message(self, dead: DeadLetterRecord) -> DeadLetterMessage:
        """Build the dead letter of a record that could not be processed."""
        record = dead.record
        return DeadLetterMessage(
            record.tp, record.offset, record.timestamp, record.key, record.value,
            tuple(record.headers), self._group, dead.reason, *get_ids(record),
        )  # fmt: skip

    async def _resolve_topic(self, origin: str) -> TopicMetadata | str:
        """Return the topic for dead letters of a topic, or why there is none."""
        try:
            return await self._get_or_create_topic(origin)
        except GatewayError as error:
            return str(error)

    async def _write_one(self, dead: DeadLetterRecord, topic: TopicMetadata | str) -> str:
        """Write a dead letter, and return why it is not written; empty if it is."""
        if isinstance(topic, str):
            return f"dead letters of {dead.record.tp} cannot be written: {topic}"
        message = self.build_message(dead)
        try:
            try:
                await self._produce(topic, message)
            except PartitionFailed as exc:
                if exc.code not in TOO_LARGE_ERRORS:
                    raise
                # The record itself fit into its topic; its stack trace may be too much here.
                await self._produce(topic, replace(message, stacktrace="(too long for the topic)"))
        except GatewayError as error:
            return f"dead letters of {dead.record.tp} cannot be written: {error}"
        return ""

    async def _produce(self, topic: TopicMetadata, message: DeadLetterMessage) -> None:
        tp = choose_partition(topic, message)
        await self._context.producer.send(
            tp, message.key, message.value, message.to_headers(), timeout_s=WRITE_TIMEOUT_S
        )

    async def _get_or_create_topic(self, origin: str) -> TopicMetadata:
        name = origin + self._ext
        try:
            return await self._context.get_topic(name)
        except UnknownTopic:
            if not self._create:
                raise
        origin_topic = self._context.cluster.get_topic(origin)
        count = len(origin_topic.partitions) if origin_topic is not None else -1
        configs = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
        if await create_topic(self._context.cluster, name, partitions=count or -1, configs=configs):
            log.info("created the topic %s for dead letters, %s partitions", name, count)
        for _ in range(20):
            try:
                return await self._context.get_topic(name)
            except KafkaError:  # brokers learn about a new topic at different times
                await asyncio.sleep(0.1)
        return await self._context.get_topic(name)


def choose_partition(topic: TopicMetadata, message: DeadLetterMessage) -> TopicPartition:
    """Choose the partition of a dead letter.

    It is the one with the number of the record's partition, if there is one, so that dead letters
    keep their order.
    """
    count, number = len(topic.partitions), message.origin.partition
    if number not in topic.partitions:
        number = number % count if message.key is None else compute_partition(message.key, count)
    return TopicPartition(topic.name, number)
