"""Decode messages of the formats before record batches (magic 0 and 1), which old logs still hold.

The value of a compressed message is a set of messages. With magic 1 the inner messages have offsets
relative to the first one, and the outer message has the offset of the last one. The layout is
described in "Old Message Format" of Kafka's documentation. aiokafka can read it too, but
decompresses without a bound.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gateway.core.log.record import Record, TopicPartition

# Positions are bytes from the start of a message. It begins with offset (8), size (4) and CRC (4).
ATTRIBUTES_POS = 17
MAGIC_POS = 16
CODEC_MASK = 0x03  # the bits of the attributes that are the codec; 0 is uncompressed
_LOG_APPEND_TIME_FLAG = 0x08  # of the attributes: the broker set the timestamp
_ENTRY = struct.Struct(">qi")  # offset, and size of what follows
_OFFSET = struct.Struct(">q")  # also a timestamp
_LENGTH = struct.Struct(">i")
_TIMESTAMP_POS = 18
_KEY_POS = {0: 18, 1: 26}  # by magic; magic 0 has no timestamp
_NULL = -1  # the size of a null field, an unknown timestamp, an unknown leader epoch
# The size that a message is estimated to have, since nothing says how many there are in a set.
AVERAGE_MESSAGE_BYTES = 100


def read_value(message: memoryview, magic: int) -> memoryview:
    """Return the value of a compressed message, still compressed.

    Args:
        magic: Its format, 0 or 1.

    Raises:
        ValueError: The message is malformed; struct.error means the same.
    """
    _, pos = _read_field(message, _KEY_POS[magic])
    value, _ = _read_field(message, pos)
    if value is None:
        raise ValueError("a compressed message without a value")
    return value


def iter_records(
    tp: TopicPartition, outer: memoryview, decompressed: memoryview
) -> Iterator[Record]:
    """Yield the records of a message: those in a compressed one, or the message itself.

    Args:
        decompressed: Its value, decompressed. It is not used if the message is not compressed.

    Raises:
        ValueError: A message is malformed; struct.error means the same.
    """
    magic = outer[MAGIC_POS]
    if not outer[ATTRIBUTES_POS] & CODEC_MASK:
        yield _decode_record(tp, outer, 0, None)
        return
    # The broker sets its append time in the outer message only.
    by_append = magic == 1 and outer[ATTRIBUTES_POS] & _LOG_APPEND_TIME_FLAG
    append_time: int | None = _OFFSET.unpack_from(outer, _TIMESTAMP_POS)[0] if by_append else None
    base_offset = 0
    if magic == 1:
        base_offset = _ENTRY.unpack_from(outer)[0] - _read_last_offset(decompressed)
    pos = 0
    while pos < len(decompressed):
        _, size = _ENTRY.unpack_from(decompressed, pos)
        end = pos + _ENTRY.size + size
        if size < 0 or end > len(decompressed):
            raise ValueError("a message that is cut")
        if decompressed[pos + ATTRIBUTES_POS] & CODEC_MASK:
            raise ValueError("a compressed message in another")
        yield _decode_record(tp, decompressed[pos:end], base_offset, append_time)
        pos = end


def _decode_record(
    tp: TopicPartition, data: memoryview, base_offset: int, timestamp: int | None
) -> Record:
    """Decode an uncompressed message.

    Args:
        base_offset: What is added to its offset.
        timestamp: Its timestamp in ms since 1970, in place of its own; None for its own.
    """
    magic = data[MAGIC_POS]
    key, pos = _read_field(data, _KEY_POS[magic])
    value, _ = _read_field(data, pos)
    (offset,) = _OFFSET.unpack_from(data)
    if magic == 0:
        timestamp = _NULL
    elif timestamp is None:
        (timestamp,) = _OFFSET.unpack_from(data, _TIMESTAMP_POS)
    return Record(
        tp,
        base_offset + offset,
        _NULL,
        timestamp,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
    )


def _read_last_offset(decompressed: memoryview) -> int:
    """Return the offset of the last message in a set, relative as it stands there."""
    pos, last = 0, 0
    while pos < len(decompressed):
        last, size = _ENTRY.unpack_from(decompressed, pos)
        if size < 0:
            raise ValueError("a message that is cut")
        pos += _ENTRY.size + size
    return last


def _read_field(message: memoryview, pos: int) -> tuple[memoryview | None, int]:
    """Return a key or value (None for null), and the position after it."""
    (size,) = _LENGTH.unpack_from(message, pos)
    pos += _LENGTH.size
    if size == _NULL:
        return None, pos
    if not 0 <= size <= len(message) - pos:
        raise ValueError("a field that is cut")
    return message[pos : pos + size], pos + size
