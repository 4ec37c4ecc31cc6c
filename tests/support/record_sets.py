"""Record batches written byte by byte, as brokers keep them; also broken ones."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import cramjam
from aiokafka.codec import snappy_encode
from aiokafka.record.util import calc_crc32c

from gateway.core.log.record import Entry, TopicPartition
from gateway.kafka.fetch.decoding import BULK_SLICE_RECORDS, DecodedSlice, RecordSetDecoder

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
COMPRESSORS = {
    0: bytes,
    1: gzip.compress,
    2: snappy_encode,
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}
TRANSACTIONAL_FLAG, CONTROL_FLAG, LOG_APPEND_TIME_FLAG = 0x10, 0x20, 0x08
ABORT_MARKER, COMMIT_MARKER = 0, 1


class BatchRecord(NamedTuple):
    """A record of a batch; `raw` in place of its encoded fields."""

    offset: int
    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    encoded_fields: bytes | None = None


ZSTD = 4
"""The codec id of zstd."""


def encode_varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_bytes(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def encode_record(record: BatchRecord, base_offset: int, first_timestamp: int) -> bytes:
    body = record.encoded_fields
    if body is None:
        body = (
            b"\0"
            + encode_varint(record.timestamp - first_timestamp)
            + encode_varint(record.offset - base_offset)
        )
        body += (
            encode_bytes(record.key)
            + encode_bytes(record.value)
            + encode_varint(len(record.headers))
        )
        body += b"".join(
            encode_bytes(name) + encode_bytes(content) for name, content in record.headers
        )
    return encode_varint(len(body)) + body


def build_batch(
    items: Sequence[BatchRecord | int],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = 0,
    codec: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    max_timestamp: int | None = None,
) -> bytes:
    """A batch of magic 2; `base` and `last` stay as they were when compaction took records."""
    records = [item if isinstance(item, BatchRecord) else BatchRecord(item) for item in items]
    start = base_offset if base_offset is not None else records[0].offset
    stop = last_offset if last_offset is not None else records[-1].offset
    stamps = [one.timestamp for one in records] or [0]
    payload = COMPRESSORS[codec](b"".join(encode_record(one, start, stamps[0]) for one in records))
    tail = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        stop - start,
        stamps[0],
        max(stamps) if max_timestamp is None else max_timestamp,
        producer_id,
        -1 if producer_id < 0 else 0,
        -1 if producer_id < 0 else 0,
        len(records),
    )
    checked = tail + payload
    crc = calc_crc32c(checked)
    return struct.pack(">qiibI", start, 9 + len(checked), leader_epoch, 2, crc) + checked


def build_marker(offset: int, producer_id: int, marker_type: int, leader_epoch: int = 0) -> bytes:
    """The control batch that ends a transaction."""
    item = BatchRecord(offset, key=struct.pack(">hh", 0, marker_type), value=b"\0" * 6)
    return build_batch(
        [item],
        producer_id=producer_id,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        leader_epoch=leader_epoch,
    )


def build_message(offset: int, value: bytes | None, *, magic: int) -> bytes:
    """A message of the formats before batches, which count as damage."""
    body = struct.pack(">bb", magic, 0) + bytes(8 if magic == 1 else 0)
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def flip_byte(data: bytes, position: int = -1) -> bytes:
    """The same with one byte changed."""
    out = bytearray(data)
    out[position] ^= 0xFF
    return bytes(out)


def decode_record_set(
    tp: TopicPartition, data: bytes, fetch_offset: int, **options: Any
) -> DecodedSlice:
    """All slices of a record set, joined.

    options: keyword arguments of `RecordSetDecoder`.
    """
    decoding = RecordSetDecoder(tp, data, fetch_offset, **options)
    entries: list[Entry] = []
    while True:
        if decoding.is_large:
            decoding.decompress()
        decoded = decoding.read_slice(BULK_SLICE_RECORDS)
        entries += decoded.entries
        if decoding.is_done:
            return decoded._replace(entries=entries)
