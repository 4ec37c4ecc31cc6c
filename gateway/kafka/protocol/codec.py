"""Reading and writing the fields of Kafka's protocol.

Two dialects: the old one with fixed lengths, and the flexible one of KIP-482 with
unsigned varints, compact arrays and tagged fields. For messages that are rare; Fetch,
which is not, reads and writes its partitions by `struct` in `fetch_messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
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
    """An unsigned varint, KIP-482."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    """An unsigned varint and the position after it. Raises IndexError at the end of data."""
    byte = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    value, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos + 1
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than nine bytes")


def read_tags(data: bytes, pos: int) -> tuple[dict[int, bytes], int]:
    """The tagged fields at `pos`, and the position after them."""
    tags: dict[int, bytes] = {}
    count, pos = read_uvarint(data, pos)
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        size, pos = read_uvarint(data, pos)
        tags[tag] = data[pos : pos + size]
        pos += size
    return tags, pos


class FieldWriter:
    """Appends fields in one of the two dialects."""

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
        """A field of bytes; None is null, which is not the same as none."""
        if value is None:
            self.data += b"\0" if self.flexible else _I32.pack(-1)
            return
        self.data += encode_uvarint(len(value) + 1) if self.flexible else _I32.pack(len(value))
        self.data += value

    def tags(self) -> None:
        """No tagged fields."""
        if self.flexible:
            self.data += b"\0"


class FieldReader:
    """Reads fields in one of the two dialects, from `pos` on."""

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
        """None for the zero id, which brokers send where there is none."""
        raw = self._read_bytes(16)
        return UUID(bytes=raw) if any(raw) else None

    def array(self) -> int:
        """The length; 0 for a null array."""
        length = self._read_compact_length() if self.flexible else self.i32()
        return max(length, 0)

    def string(self) -> str | None:
        length = self._read_compact_length() if self.flexible else self.i16()
        return None if length < 0 else self._read_bytes(length).decode()

    def octets(self) -> bytes | None:
        length = self._read_compact_length() if self.flexible else self.i32()
        return None if length < 0 else self._read_bytes(length)

    def ints(self) -> tuple[int, ...]:
        """An array of int32."""
        count = self.array()
        if count * 4 > len(self.data) - self.pos:
            raise ValueError("an array longer than its message")
        return self.unpack(struct.Struct(f">{count}i"))

    def unpack(self, kind: struct.Struct) -> tuple[int, ...]:
        """Several fixed fields at once."""
        values = kind.unpack_from(self.data, self.pos)
        self.pos += kind.size
        return values

    def tags(self) -> dict[int, bytes]:
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
        if end > len(self.data):
            raise ValueError("a field longer than its message")
        raw = self.data[self.pos : end]
        self.pos = end
        return raw


def group_by_topic(values: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    """As requests name them: each topic once, with its partitions."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), item in values.items():
        topics.setdefault(topic, []).append((partition, item))
    return topics


def read_partition_errors(read: FieldReader) -> dict[TopicPartition, int]:
    """Kafka's code of each partition, as answers have it that say no more (and no tags)."""
    errors: dict[TopicPartition, int] = {}
    for _ in range(read.array()):
        topic = read.string() or ""
        for _ in range(read.array()):
            tp = TopicPartition(topic, read.i32())
            errors[tp] = read.i16()
    return errors
