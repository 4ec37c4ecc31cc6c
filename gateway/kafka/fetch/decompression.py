"""Compressed batches: how they are decompressed within a bound, and who has his turn at it.

A producer needs 15 KB to write a batch of hundreds of MB, and brokers bound what is compressed.
So nothing is decompressed into memory that grows as it likes: at first into `SMALL` bytes that are
used again and again, in the loop; what does not fit is decompressed once more, into an anonymous
mapping of `MAX_INFLATED` bytes of which only those that are written cost memory, in a thread and
one at a time for each cluster. What does not fit there is not read.

Codecs are cramjam's, which release the interpreter lock. Measured beside aiokafka's functions,
which copy what they made: 5,000 records of 200 bytes decode 1.1 (zstd) to 2 times (gzip) as fast.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from struct import Struct
from typing import Any

import cramjam

from gateway.kafka.protocol import legacy_messages as old_messages

SMALL = 2 << 20
MAX_INFLATED = 128 << 20
"""Bytes of one batch; producers make them of at most `max.request.size`, 1 MB by default."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
BATCH_HEADER = Struct(">qiibIhiqqqhii")
CODEC = 0x07  # in the attributes of a batch
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
MAX_SPARE = 4  # buffers of `SMALL` bytes that are kept

_INTO: dict[int, Callable[[Any, Any], int]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
_FULL = "failed to write whole buffer"  # how Rust's Write says that there is no room
_XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_BLOCK = Struct(">i")
_spare: list[bytearray] = []


class TooLarge(Exception):
    """There is more in it than there is room for."""


class Inflation:
    """The turn of those who decompress large batches of one cluster.

    Attributes:
        turn: Whoever decompresses or reads a large batch has it.
        held: Bytes of the batch that is being read.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.held = 0


def inflate(codec: int, data: memoryview, room: memoryview) -> int:
    """Decompress into `room`.

    Returns:
        How many bytes there are.

    Raises:
        TooLarge: There is no room for all of them.
        Exception: Whatever a codec raises for what is none of its own.
    """
    if codec == SNAPPY:
        return _snappy(data, room)
    try:
        return _INTO[codec](data, room)
    except cramjam.DecompressionError as exc:
        if str(exc) == _FULL:
            raise TooLarge from None
        raise


def inflated_batch(batch: memoryview, codec: int, room: memoryview) -> memoryview:
    """Return a batch of magic 2 that is not compressed. Raises as `inflate`."""
    start = BATCH_HEADER.size
    end = start + inflate(codec, batch[start:], room[start:])
    room[:start] = batch[:start]
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(room, _ATTRIBUTES_AT, attributes & ~CODEC)
    return room[:end]


def inflated_messages(message: memoryview, codec: int, room: memoryview) -> memoryview:
    """Return the messages in one of magic 0 or 1. Raises as `inflate`."""
    magic = message[old_messages.MAGIC_AT]
    if (magic, codec) == (0, LZ4):  # its frames are none (KAFKA-3160)
        raise ValueError("lz4 in a message of magic 0")
    return room[: inflate(codec, old_messages.value_of(message, magic), room)]


def take_small() -> bytearray:
    """Return a buffer of `SMALL` bytes, to be given back."""
    return _spare.pop() if _spare else bytearray(SMALL)


def give_back(buffer: bytearray) -> None:
    """Keep a buffer for the next one who takes it."""
    if len(_spare) < MAX_SPARE:
        _spare.append(buffer)


def large() -> mmap.mmap:
    """Return `MAX_INFLATED` bytes, none of which costs memory before it is written."""
    return mmap.mmap(-1, MAX_INFLATED)


def _snappy(data: memoryview, room: memoryview) -> int:
    """Decompress a raw block or, as Java's clients write it, blocks behind their sizes."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _raw(data, room)
    at, end = len(_XERIAL), 0
    while at < len(data):
        (size,) = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        if not 0 < size <= len(data) - at:
            raise ValueError(f"a block of {size} bytes")
        end += _raw(data[at : at + size], room[end:])
        at += size
    return end


def _raw(data: memoryview, room: memoryview) -> int:
    if cramjam.snappy.decompress_raw_len(data) > len(room):
        raise TooLarge
    return int(cramjam.snappy.decompress_raw_into(data, room))
