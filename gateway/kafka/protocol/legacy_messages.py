"""Sets of messages of the formats before batches (magic 0 and 1), which old logs still hold.

A compressed message has a whole set of them as its value. Those of magic 1 have offsets relative
to the first, and the outer one has that of the last. Layout: Kafka's message format, "Old Message
Format"; aiokafka's reader of it decompresses without a bound.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gateway.core.log.record import Record, TopicPartition

ATTRIBUTES_POS = 17
MAGIC_POS = 16
CODEC_MASK = 0x03
_LOG_APPEND_TIME_FLAG = 0x08
_ENTRY = struct.Struct(">qi")  # offset, and size of the rest
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_TIMESTAMP_POS = 18
_KEY_POS = {0: 18, 1: 26}
_NULL = -1
AVERAGE_MESSAGE_BYTES = 100  # bytes that one is taken for: nothing says how many there are


def read_value(message: memoryview, magic: int) -> memoryview:
    """Return what a compressed message holds. Raises ValueError and struct.error."""
    _, at = _read_field(message, _KEY_POS[magic])
    value, _ = _read_field(message, at)
    if value is None:
        raise ValueError("a compressed message without a value")
    return value


def iter_records(
    tp: TopicPartition, outer: memoryview, decompressed: memoryview
) -> Iterator[Record]:
    """Yield what a compressed message holds.

    Args:
        tp: Their partition.
        outer: The message.
        plain: Its value, decompressed; of one that is not compressed, nothing is looked at.

    Raises:
        ValueError: A message is broken; so does struct.error.
    """
    magic = outer[MAGIC_POS]
    if not outer[ATTRIBUTES_POS] & CODEC_MASK:
        yield _decode_record(tp, outer, 0, None)
        return
    by_append = magic == 1 and outer[ATTRIBUTES_POS] & _LOG_APPEND_TIME_FLAG
    stamp: int | None = _OFFSET.unpack_from(outer, _TIMESTAMP_POS)[0] if by_append else None
    first = 0
    if magic == 1:
        first = _ENTRY.unpack_from(outer)[0] - _read_last_offset(decompressed)
    at = 0
    while at < len(decompressed):
        _, size = _ENTRY.unpack_from(decompressed, at)
        end = at + _ENTRY.size + size
        if size < 0 or end > len(decompressed):
            raise ValueError("a message that is cut")
        if decompressed[at + ATTRIBUTES_POS] & CODEC_MASK:
            raise ValueError("a compressed message in another")
        yield _decode_record(tp, decompressed[at:end], first, stamp)
        at = end


def _decode_record(
    tp: TopicPartition, data: memoryview, first: int, timestamp: int | None
) -> Record:
    """stamp: in place of its own."""
    magic = data[MAGIC_POS]
    key, at = _read_field(data, _KEY_POS[magic])
    value, _ = _read_field(data, at)
    (offset,) = _OFFSET.unpack_from(data)
    if magic == 0:
        timestamp = _NULL
    elif timestamp is None:
        (timestamp,) = _OFFSET.unpack_from(data, _TIMESTAMP_POS)
    return Record(
        tp,
        first + offset,
        _NULL,
        timestamp,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
    )


def _read_last_offset(decompressed: memoryview) -> int:
    at, last = 0, 0
    while at < len(decompressed):
        last, size = _ENTRY.unpack_from(decompressed, at)
        if size < 0:
            raise ValueError("a message that is cut")
        at += _ENTRY.size + size
    return last


def _read_field(message: memoryview, at: int) -> tuple[memoryview | None, int]:
    """Return a key or value, and where it ends."""
    (size,) = _LENGTH.unpack_from(message, at)
    at += _LENGTH.size
    if size == _NULL:
        return None, at
    if not 0 <= size <= len(message) - at:
        raise ValueError("a field that is cut")
    return message[at : at + size], at + size
