"""Represent dead letters, and write them to their topics, which are created where they are missing.

Key, value and headers are those of the record, byte for byte, including repeated headers. The
reason and the place are in further headers after them, so that a reader of the dead letter has the
record as it was, even if its own headers have the same names. The first three names are those that
other projects use.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.delivery_queue import DeadLetterRecord
from gateway.core.error_code import TOO_LARGE_ERRORS
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GatewayError, PartitionFailed, WritesFull
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.producer import Producer
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT
from gateway.sidecar.context import Context
from gateway.sidecar.http.requests import CORRELATION_HEADER, TRACEABILITY_HEADER
from gateway.sidecar.lookups import choose_partition, get_or_create_topic

from .backend import get_ids

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


@dataclass(frozen=True, slots=True)
class DeadLetterWriter:
    """Write the dead letters of one group. The names of their topics end in the given suffix."""

    _context: Context
    _group: str
    _ext: str
    _create: bool = True

    @classmethod
    def from_group(cls, context: Context, settings: Group) -> DeadLetterWriter:
        ext = settings.dead_letter_topic_ext
        return cls(context, settings.group, ext, settings.dead_letter_make)

    async def write(self, dead: Sequence[DeadLetterRecord]) -> DeadLetterResult:
        origins = {dead_letter.record.tp.topic for dead_letter in dead}
        topics = {origin: await self._resolve_topic(origin) for origin in origins}
        writes = [self._build_write(each, topics[each.record.tp.topic]) for each in dead]
        records = [write for write in writes if isinstance(write, ProducerRecord)]
        # By one call, so they keep their order in Kafka, but for those that are sent again smaller.
        first_results = await _send(self._context.producer, records)
        results = iter(await asyncio.gather(*map(self._send_smaller, records, first_results)))
        unwritten, refused, reason = [], [], ""
        for dead_letter, write in zip(dead, writes, strict=True):
            result = next(results) if isinstance(write, ProducerRecord) else write
            record = dead_letter.record
            if _is_too_large(result):
                log.error(
                    "%s offset %d of group %s is given up without a dead letter: it is too large "
                    "for %s; raise max.message.bytes there, and replay it",
                    record.tp, record.offset, self._group, record.tp.topic + self._ext,
                )  # fmt: skip
                refused.append(dead_letter)
            elif isinstance(result, GatewayError):
                unwritten.append(dead_letter)
                reason = reason or f"dead letters of {record.tp} cannot be written: {result}"
        return DeadLetterResult(unwritten, reason, refused)

    async def _resolve_topic(self, origin: str) -> TopicMetadata | GatewayError:
        try:
            return await self._get_or_create_topic(origin)
        except GatewayError as error:
            return error

    def _build_write(
        self, dead: DeadLetterRecord, topic: TopicMetadata | GatewayError
    ) -> ProducerRecord | GatewayError:
        if isinstance(topic, GatewayError):
            return topic
        record, (correlation, traceability) = dead.record, get_ids(dead.record)
        message = DeadLetterMessage(
            record.tp, record.offset, record.timestamp, record.key, record.value,
            tuple(record.headers), self._group, dead.reason,
            dead.correlation or correlation, dead.traceability or traceability,
        )  # fmt: skip
        tp = choose_partition(topic, record.tp.partition, record.key)
        return ProducerRecord(tp, message.key, message.value, message.to_headers())

    async def _send_smaller(
        self, write: ProducerRecord, result: int | GatewayError
    ) -> int | GatewayError:
        """Send a dead letter again that is too large: compressed, then with shorter headers.

        It is compressed only if need be: the record may be from a compressed batch.
        """
        producers = [self._context.gzip_producer]
        headers: Headers | None = write.headers
        while headers is not None:
            for producer in producers:
                if _is_too_large(result):
                    [result] = await _send(producer, [write._replace(headers=headers)])
            producers = [self._context.producer, self._context.gzip_producer]
            headers = shorten_headers(headers) if _is_too_large(result) else None
        return result

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


async def _send(
    producer: Producer, writes: Sequence[ProducerRecord]
) -> Sequence[int | GatewayError]:
    try:
        return await producer.send_many(writes, timeout_s=WRITE_TIMEOUT_S)
    except WritesFull as error:
        return [error] * len(writes)


def _is_too_large(result: int | GatewayError) -> bool:
    return isinstance(result, PartitionFailed) and result.code in TOO_LARGE_ERRORS


# The headers after the record's own, in this order; all are UTF-8 text.
# The last header of this name is the first of ours: all before it are the record's.
ORIGIN_TOPIC_HEADER = "X-Origin-Topic"
ORIGIN_PARTITION_HEADER = "X-Origin-Partition"
ORIGIN_OFFSET_HEADER = "X-Origin-Offset"
ORIGIN_TIMESTAMP_HEADER = "X-Origin-Timestamp"  # of the record, in milliseconds since 1970
GROUP_HEADER = "X-Consumer-Group"  # the group that could not process it
RETRIES_HEADER = "X-Dead-Letter-Retries"  # how often it was retried as a dead letter
STACKTRACE_HEADER = "StackTrace"

# What is left of them where more would be too large for the topic.
ESSENTIAL_HEADERS = frozenset(
    {
        ORIGIN_TOPIC_HEADER,
        ORIGIN_PARTITION_HEADER,
        ORIGIN_OFFSET_HEADER,
        ORIGIN_TIMESTAMP_HEADER,
        GROUP_HEADER,
        RETRIES_HEADER,
    }
)
LEFT_OUT_STACKTRACE = b"(too long for the topic)"

MAX_STACKTRACE_CHARS = 8192  # it must not make the record too large for Kafka

# Partition, offset, timestamp and retries. Anybody may write the topic, and larger numbers cannot
# be written as JSON.
_NUMBERS = struct.Struct(">iqqi")

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """A dead letter apart from its place in Kafka.

    Attributes:
        timestamp: The timestamp of the record, in milliseconds since 1970.
        headers: The headers of the record, without those of the dead letter.
        group: The group that could not process it; empty if unknown.
        retries: How often it was retried as a dead letter.
    """

    origin: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    group: str
    stacktrace: str
    correlation_id: str = ""
    traceability_id: str = ""
    retries: int = 0

    def to_headers(self) -> list[tuple[str, bytes | None]]:
        fields = [
            (ORIGIN_TOPIC_HEADER, self.origin.topic),
            (ORIGIN_PARTITION_HEADER, str(self.origin.partition)),
            (ORIGIN_OFFSET_HEADER, str(self.offset)),
            (ORIGIN_TIMESTAMP_HEADER, str(self.timestamp)),
            (GROUP_HEADER, self.group),
            (RETRIES_HEADER, str(self.retries)),
            (CORRELATION_HEADER, self.correlation_id),
            *([(TRACEABILITY_HEADER, self.traceability_id)] if self.traceability_id else []),
            (STACKTRACE_HEADER, shorten_stacktrace(self.stacktrace)),
        ]
        return [*self.headers, *((name, text.encode(errors="replace")) for name, text in fields)]


def parse_message(record: Record) -> DeadLetterMessage | None:
    """Return the dead letter in a record; None for a record of another program."""
    start = _find_own_headers(record.headers)
    if start is None:
        return None
    fields = {name: (text or b"").decode(errors="replace") for name, text in record.headers[start:]}
    try:
        origin = TopicPartition(fields[ORIGIN_TOPIC_HEADER], int(fields[ORIGIN_PARTITION_HEADER]))
        offset, timestamp = int(fields[ORIGIN_OFFSET_HEADER]), int(fields[ORIGIN_TIMESTAMP_HEADER])
        retries = int(fields.get(RETRIES_HEADER, "0"))
        _NUMBERS.pack(origin.partition, offset, timestamp, retries)
    except (KeyError, ValueError, struct.error):
        return None
    return DeadLetterMessage(
        origin,
        offset,
        timestamp,
        record.key,
        record.value,
        tuple(record.headers[:start]),
        fields.get(GROUP_HEADER, ""),
        fields.get(STACKTRACE_HEADER, ""),
        fields.get(CORRELATION_HEADER, ""),
        fields.get(TRACEABILITY_HEADER, ""),
        retries,
    )


def shorten_headers(headers: Headers) -> Headers | None:
    """Return shorter own headers of a dead letter; None if only the required ones are left."""
    start = _find_own_headers(headers) or 0
    own = headers[start:]
    if dict(own).get(STACKTRACE_HEADER, LEFT_OUT_STACKTRACE) != LEFT_OUT_STACKTRACE:
        shorter = [
            (name, LEFT_OUT_STACKTRACE if name == STACKTRACE_HEADER else text) for name, text in own
        ]
    else:
        shorter = [(name, text) for name, text in own if name in ESSENTIAL_HEADERS]
    return None if shorter == list(own) else [*headers[:start], *shorter]


def _find_own_headers(headers: Headers) -> int | None:
    names = [name for name, _ in headers]
    if ORIGIN_TOPIC_HEADER not in names:
        return None
    return len(names) - 1 - names[::-1].index(ORIGIN_TOPIC_HEADER)


def shorten_stacktrace(trace: str) -> str:
    """Return the head and the end of a long stack trace: the cause is in its first or last line."""
    if len(trace) <= MAX_STACKTRACE_CHARS:
        return trace
    half = MAX_STACKTRACE_CHARS // 2 - 2
    return f"{trace[:half]}\n..\n{trace[-half:]}"
