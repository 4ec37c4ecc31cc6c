"""Read and write the fields of Kafka's protocol.

There are two dialects: the old one with lengths of a fixed size, and the flexible one of KIP-482
with unsigned varints, compact arrays and tagged fields. In the flexible one a length is sent plus
one, and 0 means null. This module is for rare messages: `fetch_messages` reads and writes the
partitions of the frequent Fetch by `struct`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TypeVar
from uuid import UUID

from gateway.core.log.record import TopicPartition

T = TypeVar("T")

ZERO_UUID = UUID(int=0)

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint (KIP-482): 7 bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it; IndexError or ValueError for damage."""
    byte = data[pos]
    if byte < 0x80:  # most lengths and tags are a single byte
        return byte, pos + 1
    value, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos + 1
        shift += 7
        # Damaged bytes must not build an arbitrarily large int.
        if shift > 63:
            raise ValueError("a varint of more than nine bytes")


def read_tags(data: bytes, pos: int) -> tuple[dict[int, bytes], int]:
    """Return tagged fields (KIP-482) by tag, and the position after them."""
    tags: dict[int, bytes] = {}
    count, pos = read_uvarint(data, pos)
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        size, pos = read_uvarint(data, pos)
        tags[tag] = data[pos : pos + size]
        pos += size
    return tags, pos


class FieldWriter:
    """Append fields to a message in one of the two dialects.

    A request creates one for its body. Its methods are named after the types of Kafka's protocol;
    None is null, and an array is its length (-1 for null) before its elements.
    """

    __slots__ = ("data", "flexible")

    def __init__(self, flexible: bool) -> None:
        self.data = bytearray()
        self.flexible = flexible

    def i8(self, value: int) -> None:
        self.data += _I8.pack(value)

    def i16(self, value: int) -> None:
        self.data += _I16.pack(value)

    def i32(self, value: int) -> None:
        self.data += _I32.pack(value)

    def i64(self, value: int) -> None:
        self.data += _I64.pack(value)

    def uuid(self, value: UUID | None) -> None:
        """Write a UUID; None is the zero UUID."""
        self.data += (value or ZERO_UUID).bytes

    def array(self, length: int) -> None:
        self.data += encode_uvarint(length + 1) if self.flexible else _I32.pack(length)

    def string(self, value: str | None) -> None:
        if value is None:
            self.data += b"\0" if self.flexible else _I16.pack(-1)
            return
        raw = value.encode()
        self.data += encode_uvarint(len(raw) + 1) if self.flexible else _I16.pack(len(raw))
        self.data += raw

    def octets(self, value: bytes | None) -> None:
        if value is None:
            self.data += b"\0" if self.flexible else _I32.pack(-1)
            return
        self.data += encode_uvarint(len(value) + 1) if self.flexible else _I32.pack(len(value))
        self.data += value

    def tags(self) -> None:
        """Write that there are no tagged fields, which a flexible structure ends with."""
        if self.flexible:
            self.data += b"\0"


class FieldReader:
    """Read the fields of a message in one of the two dialects.

    A request creates one for its response. Its methods are named after the types of Kafka's
    protocol, with None for null (0 as the length of a null array); all raise ValueError, IndexError
    or struct.error for malformed bytes.
    """

    __slots__ = ("data", "flexible", "pos")

    def __init__(self, data: bytes, pos: int, flexible: bool) -> None:
        self.data = data
        self.pos = pos
        self.flexible = flexible

    def i8(self) -> int:
        return self._read_fixed(_I8)

    def i16(self) -> int:
        return self._read_fixed(_I16)

    def i32(self) -> int:
        return self._read_fixed(_I32)

    def i64(self) -> int:
        return self._read_fixed(_I64)

    def uuid(self) -> UUID | None:
        """Read a UUID; None for the zero UUID, which brokers send where there is none."""
        raw = self._read_bytes(16)
        return UUID(bytes=raw) if any(raw) else None

    def array(self) -> int:
        length = self._read_compact_length() if self.flexible else self.i32()
        return max(length, 0)  # so that callers can loop over a null array

    def string(self) -> str | None:
        length = self._read_compact_length() if self.flexible else self.i16()
        return None if length < 0 else self._read_bytes(length).decode()

    def octets(self) -> bytes | None:
        length = self._read_compact_length() if self.flexible else self.i32()
        return None if length < 0 else self._read_bytes(length)

    def ints(self) -> tuple[int, ...]:
        count = self.array()
        if count * 4 > len(self.data) - self.pos:
            raise ValueError("an array longer than its message")
        return self.unpack(struct.Struct(f">{count}i"))

    def unpack(self, kind: struct.Struct) -> tuple[int, ...]:
        """Read several fields of fixed size at once, in the layout of `kind`."""
        values = kind.unpack_from(self.data, self.pos)
        self.pos += kind.size
        return values

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields that a flexible structure ends with, as bytes by tag."""
        if not self.flexible:
            return {}
        tags, self.pos = read_tags(self.data, self.pos)
        return tags

    def _read_compact_length(self) -> int:
        value, self.pos = read_uvarint(self.data, self.pos)
        return value - 1

    def _read_fixed(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self.data, self.pos)
        self.pos += kind.size
        return int(value)

    def _read_bytes(self, size: int) -> bytes:
        end = self.pos + size
        # A slice beyond the end would be short without an error.
        if end > len(self.data):
            raise ValueError("a field longer than its message")
        raw = self.data[self.pos : end]
        self.pos = end
        return raw


def group_by_topic(values: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, []).append((partition, value))
    return topics


def write_partitions(out: FieldWriter, values: Mapping[TopicPartition, T]) -> Iterator[T]:
    """Write an array of topics, each with an array of its partitions.

    The value of each partition is yielded after its number was written: the body of the loop writes
    the partition's other fields.
    """
    topics = group_by_topic(values)
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.string(topic)
        out.array(len(partitions))
        for partition, value in partitions:
            out.i32(partition)
            yield value
            out.tags()
        out.tags()


def read_partition_errors(read: FieldReader) -> dict[TopicPartition, int]:
    errors: dict[TopicPartition, int] = {}
    for _ in range(read.array()):
        topic = read.string() or ""
        for _ in range(read.array()):
            tp = TopicPartition(topic, read.i32())
            errors[tp] = read.i16()
    return errors
