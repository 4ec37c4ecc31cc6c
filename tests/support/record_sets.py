"""Record batches written byte by byte, as brokers keep them; also broken ones."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import cramjam
from aiokafka.codec import snappy_encode
from aiokafka.record.util import calc_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = {
    0: bytes,
    1: gzip.compress,
    2: snappy_encode,
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08
ABORT, COMMIT = 0, 1


class Item(NamedTuple):
    """A record of a batch; `raw` in place of its encoded fields."""

    offset: int
    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    raw: bytes | None = None


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(item: Item, base: int, first: int) -> bytes:
    body = item.raw
    if body is None:
        body = b"\0" + varint(item.timestamp - first) + varint(item.offset - base)
        body += sized(item.key) + sized(item.value) + varint(len(item.headers))
        body += b"".join(sized(name) + sized(content) for name, content in item.headers)
    return varint(len(body)) + body


def batch(
    items: Sequence[Item | int],
    *,
    base: int | None = None,
    last: int | None = None,
    epoch: int = 0,
    codec: int = 0,
    attributes: int = 0,
    producer: int = -1,
    max_timestamp: int | None = None,
) -> bytes:
    """A batch of magic 2; `base` and `last` stay as they were when compaction took records."""
    records = [item if isinstance(item, Item) else Item(item) for item in items]
    start = base if base is not None else records[0].offset
    stop = last if last is not None else records[-1].offset
    stamps = [one.timestamp for one in records] or [0]
    payload = CODECS[codec](b"".join(record(one, start, stamps[0]) for one in records))
    tail = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        stop - start,
        stamps[0],
        max(stamps) if max_timestamp is None else max_timestamp,
        producer,
        -1 if producer < 0 else 0,
        -1 if producer < 0 else 0,
        len(records),
    )
    checked = tail + payload
    crc = calc_crc32c(checked)
    return struct.pack(">qiibI", start, 9 + len(checked), epoch, 2, crc) + checked


def marker(offset: int, producer: int, kind: int, epoch: int = 0) -> bytes:
    """The control batch that ends a transaction."""
    item = Item(offset, key=struct.pack(">hh", 0, kind), value=b"\0" * 6)
    return batch([item], producer=producer, attributes=TRANSACTIONAL | CONTROL, epoch=epoch)


def message(
    offset: int, value: bytes | None, *, magic: int = 1, attributes: int = 0, timestamp: int = 0
) -> bytes:
    """A message of the formats before batches."""
    body = struct.pack(">bb", magic, attributes)
    body += struct.pack(">q", timestamp) if magic == 1 else b""
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def damaged(data: bytes, at: int = -1) -> bytes:
    """The same with one byte changed."""
    out = bytearray(data)
    out[at] ^= 0xFF
    return bytes(out)
