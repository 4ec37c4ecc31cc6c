"""What can be saved of a batch in which something is broken though its CRC is right.

A producer wrote it so. Records carry their lengths, so that the others are read and each
broken one is a gap of its own. In plain Python: it runs only on such batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.core.log.record import Entry, Gap, GapReason, Record, TopicPartition
from gateway.kafka.protocol.codec import read_uvarint

_LOG_APPEND_TIME = 0x08


def iter_salvaged(
    tp: TopicPartition, header: Sequence[int], records: memoryview, start: int
) -> Iterator[Entry]:
    """Yield the entries of one batch of magic 2 from offset `start` on, in offset order.

    Args:
        tp: Its partition.
        header: Its fields, as they stand before the records.
        plain: Its records, not compressed.
        start: What comes before it is left out.
    """
    base, _, epoch, _, _, attributes, delta, first, most, *_, count = header
    after = base + delta + 1

    def gap(offset: int, to: int) -> Iterator[Entry]:
        if to > max(offset, start):
            yield Gap(tp, max(offset, start), to, epoch, GapReason.CORRUPT)

    pos, position, broken = 0, base, False
    for _ in range(count):
        try:
            size, pos = _read_varint(records, pos)
        except (IndexError, ValueError):
            break
        if size <= 0 or pos + size > len(records):
            break
        raw, pos = bytes(records[pos : pos + size]), pos + size
        try:
            stamp, offset, key, value, headers = _read_record(raw)
        except (IndexError, ValueError):
            broken = True
            continue
        offset += base
        if not position <= offset < after:
            broken = True
            continue
        if broken:
            yield from gap(position, offset)
        broken, position = False, offset + 1
        if offset >= start:
            timestamp = most if attributes & _LOG_APPEND_TIME else first + stamp
            yield Record(tp, offset, epoch, timestamp, key, value, headers)
    else:
        if not broken:
            return
    yield from gap(position, after)


def _read_varint(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    value, pos = read_uvarint(data, pos)
    return (value >> 1) ^ -(value & 1), pos


def _read_bytes(data: bytes, pos: int) -> tuple[bytes | None, int]:
    size, pos = _read_varint(data, pos)
    if size < 0:
        return None, pos
    if pos + size > len(data):
        raise ValueError("a field longer than its record")
    return data[pos : pos + size], pos + size


_RecordFields = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def _read_record(data: bytes) -> _RecordFields:
    """Timestamp delta, offset delta, key, value, headers of one record."""
    stamp, pos = _read_varint(data, 1)
    offset, pos = _read_varint(data, pos)
    key, pos = _read_bytes(data, pos)
    value, pos = _read_bytes(data, pos)
    count, pos = _read_varint(data, pos)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, pos = _read_bytes(data, pos)
        content, pos = _read_bytes(data, pos)
        # Java's client replaces as well what is not UTF-8 in the name of a header.
        headers.append(((name or b"").decode(errors="replace"), content))
    if pos != len(data):
        raise ValueError("a record longer than its fields")
    return stamp, offset, key, value, headers
