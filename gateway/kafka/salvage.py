"""What can be saved of a batch in which something is broken though its CRC is right.

A producer wrote it so. Records carry their lengths, so that the others are read and each
broken one is a gap of its own. In plain Python: it runs only on such batches.
"""

from __future__ import annotations

import struct

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from gateway.core.record import Entry, Gap, Reason, Record, TopicPartition

from .codec import read_uvarint

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
_LOG_APPEND_TIME = 0x08


def salvage(tp: TopicPartition, batch: bytes, start: int) -> list[Entry]:
    """The entries of one whole batch of magic 2 from offset `start` on, in offset order."""
    base, _, epoch, _, _, attributes, delta, first, most, *_, count = _HEADER.unpack_from(batch)
    after = base + delta + 1
    entries: list[Entry] = []

    def gap(offset: int, to: int) -> None:
        if to > max(offset, start):
            entries.append(Gap(tp, max(offset, start), to, epoch, Reason.CORRUPT))

    try:
        data = _plain(batch[_HEADER.size :], attributes & 0x07)
    except Exception:  # whatever a codec raises
        gap(base, after)
        return entries
    pos, position, broken = 0, base, False
    for _ in range(count):
        try:
            size, pos = _varint(data, pos)
        except (IndexError, ValueError):
            break
        if size <= 0 or pos + size > len(data):
            break
        raw, pos = data[pos : pos + size], pos + size
        try:
            stamp, offset, key, value, headers = _record(raw)
        except (IndexError, ValueError):
            broken = True
            continue
        offset += base
        if not position <= offset < after:
            broken = True
            continue
        if broken:
            gap(position, offset)
        broken, position = False, offset + 1
        if offset >= start:
            timestamp = most if attributes & _LOG_APPEND_TIME else first + stamp
            entries.append(Record(tp, offset, epoch, timestamp, key, value, headers))
    else:
        if not broken:
            return entries
    gap(position, after)
    return entries


def _plain(data: bytes, codec: int) -> bytes:
    return bytes(_CODECS[codec](data)) if codec else data


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value, pos = read_uvarint(data, pos)
    return (value >> 1) ^ -(value & 1), pos


def _bytes(data: bytes, pos: int) -> tuple[bytes | None, int]:
    size, pos = _varint(data, pos)
    if size < 0:
        return None, pos
    if pos + size > len(data):
        raise ValueError("a field longer than its record")
    return data[pos : pos + size], pos + size


_Fields = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def _record(data: bytes) -> _Fields:
    """Timestamp delta, offset delta, key, value, headers of one record."""
    stamp, pos = _varint(data, 1)
    offset, pos = _varint(data, pos)
    key, pos = _bytes(data, pos)
    value, pos = _bytes(data, pos)
    count, pos = _varint(data, pos)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, pos = _bytes(data, pos)
        content, pos = _bytes(data, pos)
        # Java's client replaces as well what is not UTF-8 in the name of a header.
        headers.append(((name or b"").decode(errors="replace"), content))
    if pos != len(data):
        raise ValueError("a record longer than its fields")
    return stamp, offset, key, value, headers
