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

SMALL_BUFFER_BYTES = 2 << 20
MAX_DECOMPRESSED_BYTES = 128 << 20
"""Bytes of one batch; producers make them of at most `max.request.size`, 1 MB by default."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
BATCH_HEADER = Struct(">qiibIhiqqqhii")
CODEC_MASK = 0x07  # in the attributes of a batch
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_OFFSET = 21
MAX_SPARE_BUFFERS = 4  # buffers of `SMALL` bytes that are kept

_DECOMPRESSORS: dict[int, Callable[[Any, Any], int]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
_BUFFER_FULL_MESSAGE = "failed to write whole buffer"  # how Rust's Write says that there is no room
_XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_SIZE = Struct(">i")
_spare_buffers: list[bytearray] = []


class BatchTooLarge(Exception):
    """There is more in it than there is room for."""


class DecompressionSlot:
    """The turn of those who decompress large batches of one cluster.

    Attributes:
        turn: Whoever decompresses or reads a large batch has it.
        held: Bytes of the batch that is being read.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.held_bytes = 0


def decompress(codec: int, data: memoryview, buffer: memoryview) -> int:
    """Decompress into `room`.

    Returns:
        How many bytes there are.

    Raises:
        TooLarge: There is no room for all of them.
        Exception: Whatever a codec raises for what is none of its own.
    """
    if codec == SNAPPY:
        return _decompress_snappy(data, buffer)
    try:
        return _DECOMPRESSORS[codec](data, buffer)
    except cramjam.DecompressionError as exc:
        if str(exc) == _BUFFER_FULL_MESSAGE:
            raise BatchTooLarge from None
        raise


def decompress_batch(batch: memoryview, codec: int, buffer: memoryview) -> memoryview:
    """Return a batch of magic 2 that is not compressed. Raises as `inflate`."""
    start = BATCH_HEADER.size
    end = start + decompress(codec, batch[start:], buffer[start:])
    buffer[:start] = batch[:start]
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_OFFSET)
    _ATTRIBUTES.pack_into(buffer, _ATTRIBUTES_OFFSET, attributes & ~CODEC_MASK)
    return buffer[:end]


def decompress_messages(message: memoryview, codec: int, buffer: memoryview) -> memoryview:
    """Return the messages in one of magic 0 or 1. Raises as `inflate`."""
    magic = message[old_messages.MAGIC_POS]
    if (magic, codec) == (0, LZ4):  # its frames are none (KAFKA-3160)
        raise ValueError("lz4 in a message of magic 0")
    return buffer[: decompress(codec, old_messages.read_value(message, magic), buffer)]


def take_small_buffer() -> bytearray:
    """Return a buffer of `SMALL` bytes, to be given back."""
    return _spare_buffers.pop() if _spare_buffers else bytearray(SMALL_BUFFER_BYTES)


def return_small_buffer(buffer: bytearray) -> None:
    """Keep a buffer for the next one who takes it."""
    if len(_spare_buffers) < MAX_SPARE_BUFFERS:
        _spare_buffers.append(buffer)


def map_large_buffer() -> mmap.mmap:
    """Return `MAX_INFLATED` bytes, none of which costs memory before it is written."""
    return mmap.mmap(-1, MAX_DECOMPRESSED_BYTES)


def _decompress_snappy(data: memoryview, buffer: memoryview) -> int:
    """Decompress a raw block or, as Java's clients write it, blocks behind their sizes."""
    if bytes(data[: len(_XERIAL_HEADER)]) != _XERIAL_HEADER:
        return _decompress_snappy_block(data, buffer)
    at, end = len(_XERIAL_HEADER), 0
    while at < len(data):
        (size,) = _XERIAL_BLOCK_SIZE.unpack_from(data, at)
        at += _XERIAL_BLOCK_SIZE.size
        if not 0 < size <= len(data) - at:
            raise ValueError(f"a block of {size} bytes")
        end += _decompress_snappy_block(data[at : at + size], buffer[end:])
        at += size
    return end


def _decompress_snappy_block(data: memoryview, buffer: memoryview) -> int:
    if cramjam.snappy.decompress_raw_len(data) > len(buffer):
        raise BatchTooLarge
    return int(cramjam.snappy.decompress_raw_into(data, buffer))
