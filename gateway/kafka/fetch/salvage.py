"""Read the intact records of a batch in which some are broken although its CRC is right.

A faulty producer wrote such a batch. Each record begins with its length, so those after a broken
one can still be found, and only the broken ones become gaps. The code is plain Python, because it
runs on such batches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.core.log.record import Entry, Gap, GapReason, Record, TopicPartition
from gateway.kafka.protocol.codec import read_uvarint

_LOG_APPEND_TIME = 0x08  # attribute of a batch: the broker set the time of its records


def iter_salvaged(
    tp: TopicPartition, header: Sequence[int], records: memoryview, start: int
) -> Iterator[Entry]:
    """Yield the entries of one batch of magic 2 from offset `start` on, in offset order.

    Gaps cover the offsets of broken records. Offsets that are missing for another reason
    (compaction) lead to no gap.

    Args:
        header: The fields of its header, in order (`BATCH_HEADER`).
        records: The bytes of its records, not compressed.
    """
    base, _, epoch, _, _, attributes, delta, first_timestamp, max_timestamp, *_, count = header
    next_offset = base + delta + 1

    def iter_gap(offset: int, end: int) -> Iterator[Entry]:
        if end > max(offset, start):
            yield Gap(tp, max(offset, start), end, epoch, GapReason.CORRUPT)

    # A broken record does not say which offset it has, so a gap begins at `position`, after the
    # last intact record, and ends at the next intact one.
    pos, position, is_broken = 0, base, False
    for _ in range(count):
        try:
            size, pos = _read_varint(records, pos)
        except (IndexError, ValueError):
            break  # without a length the records after it cannot be found
        if size <= 0 or pos + size > len(records):
            break
        raw, pos = bytes(records[pos : pos + size]), pos + size
        try:
            timestamp_delta, offset, key, value, headers = _read_record(raw)
        except (IndexError, ValueError):
            is_broken = True
            continue
        offset += base
        if not position <= offset < next_offset:  # out of order, or not of this batch
            is_broken = True
            continue
        if is_broken:
            yield from iter_gap(position, offset)
        is_broken, position = False, offset + 1
        if offset >= start:
            timestamp = (
                max_timestamp
                if attributes & _LOG_APPEND_TIME
                else first_timestamp + timestamp_delta
            )
            yield Record(tp, offset, epoch, timestamp, key, value, headers)
    else:  # all records were found
        if not is_broken:
            return
    yield from iter_gap(position, next_offset)


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
    """Return timestamp delta, offset delta, key, value and headers of one record."""
    timestamp_delta, pos = _read_varint(data, 1)  # byte 0 is its attributes, which are not used
    offset, pos = _read_varint(data, pos)
    key, pos = _read_bytes(data, pos)
    value, pos = _read_bytes(data, pos)
    count, pos = _read_varint(data, pos)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, pos = _read_bytes(data, pos)
        content, pos = _read_bytes(data, pos)
        # Java's client, too, replaces what is not UTF-8 in the name of a header.
        headers.append(((name or b"").decode(errors="replace"), content))
    if pos != len(data):
        raise ValueError("a record longer than its fields")
    return timestamp_delta, offset, key, value, headers
