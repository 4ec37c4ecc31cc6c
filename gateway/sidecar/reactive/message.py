"""A dead letter: a record that could not be processed, as it lies in `<topic>.dlq`.

Key, value and headers are those of the record, byte for byte, headers that repeat included;
what became of it stands in headers behind them, so that whoever opens the letter has the record
as it was, also where its own headers have the names of ours. The names of the first three are
the peers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.log.record import Record, TopicPartition

DEFAULT_EXT = ".dlq"

# The headers behind the record's own, in this order; all are UTF-8 text.
ORIGIN_TOPIC_HEADER = "X-Origin-Topic"  # the first: what stands before its last one is the record's
ORIGIN_PARTITION_HEADER = "X-Origin-Partition"
ORIGIN_OFFSET_HEADER = "X-Origin-Offset"
ORIGIN_TIMESTAMP_HEADER = "X-Origin-Timestamp"  # milliseconds, of the record
GROUP_HEADER = "X-Consumer-Group"  # who gave it up
RETRIES_HEADER = "X-Dead-Letter-Retries"  # how often it was taken out of the dead letters again
CORRELATION_HEADER = "X-Correlation-Id"
TRACEABILITY_HEADER = "X-Traceability-Id"  # left out where the record has none
STACKTRACE_HEADER = "StackTrace"

MAX_STACKTRACE_CHARS = (
    8192  # characters of a stack trace: it must not make the record too large for Kafka
)

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """origin, offset, timestamp, key, value, headers: of the record. stacktrace: why it is here.

    timestamp in milliseconds. retries: how often it was tried after it had come here.
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

    @property
    def default_topic(self) -> str:
        """Where dead letters of its topic are by default."""
        return self.origin.topic + DEFAULT_EXT

    def to_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers that it lies in the dead letters with."""
        said = [
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
        return [*self.headers, *((name, text.encode(errors="replace")) for name, text in said)]


def parse_message(record: Record) -> DeadLetterMessage | None:
    """The letter in a record of a dead letter topic; None where it is none of ours."""
    names = [name for name, _ in record.headers]
    if ORIGIN_TOPIC_HEADER not in names:
        return None
    start = len(names) - 1 - names[::-1].index(ORIGIN_TOPIC_HEADER)
    said = {name: (text or b"").decode(errors="replace") for name, text in record.headers[start:]}
    try:
        origin = TopicPartition(said[ORIGIN_TOPIC_HEADER], int(said[ORIGIN_PARTITION_HEADER]))
        offset, timestamp = int(said[ORIGIN_OFFSET_HEADER]), int(said[ORIGIN_TIMESTAMP_HEADER])
        retries = int(said.get(RETRIES_HEADER, "0"))
    except (KeyError, ValueError):
        return None
    return DeadLetterMessage(
        origin,
        offset,
        timestamp,
        record.key,
        record.value,
        tuple(record.headers[:start]),
        said.get(GROUP_HEADER, ""),
        said.get(STACKTRACE_HEADER, ""),
        said.get(CORRELATION_HEADER, ""),
        said.get(TRACEABILITY_HEADER, ""),
        retries,
    )


def shorten_stacktrace(trace: str) -> str:
    """Its head and its end: a cause stands in the first line or in the last."""
    if len(trace) <= MAX_STACKTRACE_CHARS:
        return trace
    half = MAX_STACKTRACE_CHARS // 2 - 2
    return f"{trace[:half]}\n..\n{trace[-half:]}"
