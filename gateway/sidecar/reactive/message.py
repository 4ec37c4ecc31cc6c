"""Represent a dead letter: a record that could not be processed, as it is in `<topic>.dlq`.

Key, value and headers are those of the record, byte for byte, including repeated headers. The
reason and the place are in further headers after them, so that a reader of the dead letter has the
record as it was, even if its own headers have the same names. The first three names are those that
other projects use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.log.record import Record, TopicPartition
from gateway.sidecar.http.ids import CORRELATION_HEADER, TRACEABILITY_HEADER

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
    start = _find_own_headers(record.headers)
    if start is None:
        return None
    fields = {name: (text or b"").decode(errors="replace") for name, text in record.headers[start:]}
    try:
        origin = TopicPartition(fields[ORIGIN_TOPIC_HEADER], int(fields[ORIGIN_PARTITION_HEADER]))
        offset, timestamp = int(fields[ORIGIN_OFFSET_HEADER]), int(fields[ORIGIN_TIMESTAMP_HEADER])
        retries = int(fields.get(RETRIES_HEADER, "0"))
    except (KeyError, ValueError):
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
