"""Write dead letters to their topics, and create these topics where they are missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.delivery_queue import DeadLetterRecord
from gateway.core.error_code import TOO_LARGE_ERRORS
from gateway.errors import GatewayError, PartitionFailed
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT
from gateway.sidecar.context import Context
from gateway.sidecar.topics import choose_partition, get_or_create_topic

from .batch_encoder import get_ids
from .message import DeadLetterMessage, Headers, shorten_headers

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 10.0  # for Kafka to acknowledge one; then it is tried again
# `max.message.bytes` of created topics. Dead letters are larger than the records, which may have
# been compressed, and have further headers.
MAX_MESSAGE_BYTES = 16 << 20


class DeadLetterResult(NamedTuple):
    """The dead letters that are not written.

    `unwritten` ones are not in Kafka, or perhaps, for this reason, and may be tried again.
    `refused` ones are too large for their topic.
    """

    unwritten: Sequence[DeadLetterRecord] = ()
    reason: str = ""
    refused: Sequence[DeadLetterRecord] = ()


class DeadLetterWriter:
    """Write the dead letters of one group. The names of their topics end in `ext`."""

    def __init__(self, context: Context, group: str, ext: str, *, create: bool = True) -> None:
        self._context = context
        self._group = group
        self._ext = ext
        self._create = create

    @classmethod
    def from_group(cls, context: Context, settings: Group) -> DeadLetterWriter:
        ext = settings.dead_letter_topic_ext
        return cls(context, settings.group, ext, create=settings.dead_letter_make)

    async def write(self, dead: Sequence[DeadLetterRecord]) -> DeadLetterResult:
        topics: dict[str, TopicMetadata | str] = {}
        for topic in {dead_letter.record.tp.topic for dead_letter in dead}:
            topics[topic] = await self._resolve_topic(topic)
        # They start in order, and none is suspended before the producer has it, so they keep their
        # order in Kafka, but for those that are sent again compressed.
        reasons = await asyncio.gather(
            *(
                self._write_one(dead_letter, topics[dead_letter.record.tp.topic])
                for dead_letter in dead
            )
        )
        unwritten, refused = [], []
        for dead_letter, reason in zip(dead, reasons, strict=True):
            if reason is None:
                refused.append(dead_letter)
            elif reason:
                unwritten.append(dead_letter)
        return DeadLetterResult(unwritten, next(filter(None, reasons), ""), refused)

    def build_message(self, dead: DeadLetterRecord) -> DeadLetterMessage:
        record = dead.record
        return DeadLetterMessage(
            record.tp, record.offset, record.timestamp, record.key, record.value,
            tuple(record.headers), self._group, dead.reason, *get_ids(record),
        )  # fmt: skip

    async def _resolve_topic(self, origin: str) -> TopicMetadata | str:
        try:
            return await self._get_or_create_topic(origin)
        except GatewayError as error:
            return str(error)

    async def _write_one(self, dead: DeadLetterRecord, topic: TopicMetadata | str) -> str | None:
        """Write a dead letter, and return why it is perhaps not written; None if it is refused."""
        record = dead.record
        if isinstance(topic, str):
            return f"dead letters of {record.tp} cannot be written: {topic}"
        message = self.build_message(dead)
        headers: Headers | None = message.to_headers()
        tp = choose_partition(topic, message.origin.partition, message.key)
        while headers is not None:
            # Compressed only if need be: the record may be from a compressed batch.
            for producer in (self._context.producer, self._context.gzip_producer):
                try:
                    await producer.send(
                        tp, message.key, message.value, headers, timeout_s=WRITE_TIMEOUT_S
                    )
                    return ""
                except GatewayError as error:
                    if not isinstance(error, PartitionFailed) or error.code not in TOO_LARGE_ERRORS:
                        return f"dead letters of {record.tp} cannot be written: {error}"
            headers = shorten_headers(headers)
        log.error(
            "%s offset %d of group %s is given up without a dead letter: it is too large for %s; "
            "raise max.message.bytes there, and replay it",
            record.tp, record.offset, self._group, topic.name,
        )  # fmt: skip
        return None

    async def _get_or_create_topic(self, origin: str) -> TopicMetadata:
        name = origin + self._ext
        if not self._create:
            return await self._context.get_topic(name)
        origin_topic = self._context.cluster.get_topic(origin)
        count = 0 if origin_topic is None else len(origin_topic.partitions)
        return await get_or_create_topic(
            self._context,
            name,
            "dead letters",
            partitions=count or BROKER_DEFAULT,
            configs={"max.message.bytes": str(MAX_MESSAGE_BYTES)},
        )
