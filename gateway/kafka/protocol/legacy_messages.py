"""Sets of messages of the formats before batches (magic 0 and 1), which old logs still hold.

A compressed message has a whole set of them as its value. Those of magic 1 have offsets relative
to the first, and the outer one has that of the last. Layout: Kafka's message format, "Old Message
Format"; aiokafka's reader of it decompresses without a bound.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gateway.core.log.record import Record, TopicPartition

ATTRIBUTES_AT = 17
MAGIC_AT = 16
CODEC = 0x03
_LOG_APPEND_TIME = 0x08
_ENTRY = struct.Struct(">qi")  # offset, and size of the rest
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_STAMP_AT = 18
_KEY_AT = {0: 18, 1: 26}
_ABSENT = -1
AVERAGE = 100  # bytes that one is taken for: nothing says how many there are


def value_of(message: memoryview, magic: int) -> memoryview:
    """Return what a compressed message holds. Raises ValueError and struct.error."""
    _, at = _field(message, _KEY_AT[magic])
    value, _ = _field(message, at)
    if value is None:
        raise ValueError("a compressed message without a value")
    return value


def messages(tp: TopicPartition, outer: memoryview, plain: memoryview) -> Iterator[Record]:
    """Yield what a compressed message holds.

    Args:
        tp: Their partition.
        outer: The message.
        plain: Its value, decompressed; of one that is not compressed, nothing is looked at.

    Raises:
        ValueError: A message is broken; so does struct.error.
    """
    magic = outer[MAGIC_AT]
    if not outer[ATTRIBUTES_AT] & CODEC:
        yield _message(tp, outer, 0, None)
        return
    by_append = magic == 1 and outer[ATTRIBUTES_AT] & _LOG_APPEND_TIME
    stamp: int | None = _OFFSET.unpack_from(outer, _STAMP_AT)[0] if by_append else None
    first = 0
    if magic == 1:
        first = _ENTRY.unpack_from(outer)[0] - _last_offset(plain)
    at = 0
    while at < len(plain):
        _, size = _ENTRY.unpack_from(plain, at)
        end = at + _ENTRY.size + size
        if size < 0 or end > len(plain):
            raise ValueError("a message that is cut")
        if plain[at + ATTRIBUTES_AT] & CODEC:
            raise ValueError("a compressed message in another")
        yield _message(tp, plain[at:end], first, stamp)
        at = end


def _message(tp: TopicPartition, data: memoryview, first: int, stamp: int | None) -> Record:
    """stamp: in place of its own."""
    magic = data[MAGIC_AT]
    key, at = _field(data, _KEY_AT[magic])
    value, _ = _field(data, at)
    (offset,) = _OFFSET.unpack_from(data)
    if magic == 0:
        stamp = _ABSENT
    elif stamp is None:
        (stamp,) = _OFFSET.unpack_from(data, _STAMP_AT)
    return Record(
        tp,
        first + offset,
        _ABSENT,
        stamp,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
    )


def _last_offset(plain: memoryview) -> int:
    at, last = 0, 0
    while at < len(plain):
        last, size = _ENTRY.unpack_from(plain, at)
        if size < 0:
            raise ValueError("a message that is cut")
        at += _ENTRY.size + size
    return last


def _field(message: memoryview, at: int) -> tuple[memoryview | None, int]:
    """Return a key or value, and where it ends."""
    (size,) = _LENGTH.unpack_from(message, at)
    at += _LENGTH.size
    if size == _ABSENT:
        return None, at
    if not 0 <= size <= len(message) - at:
        raise ValueError("a field that is cut")
    return message[at : at + size], at + size
