"""Encode gzip (RFC 1952) in blocks that are made once for all clients that get them.

After a header of their own, clients get blocks of deflate (RFC 1951) that end on a byte and refer
to nothing before them, so that a client can inflate them wherever it joins. At the end each client
gets the checksum of its own bytes.

Each piece ends with an empty stored block, as zlib's flushes do. Decoders differ in when they hand
their output on: zlib does so at once, Go's compress/flate only at such a block, at the end, or when
its window of 32 KiB is full.

The checksums of parts are combined without reading the parts again: a CRC-32 is a polynomial over
GF(2): appending n bytes multiplies the earlier part by x^(8n). So the checksums of parts give that
of the whole, and two totals give that of the bytes between them.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from zlib import crc32

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""A header without a file name, a time or an operating system (RFC 1952 2.3)."""

MIN_COMPRESS_BYTES = 256
"""Blocks of fewer bytes are stored: an event of 234 bytes, a quarter of them its id, takes 5 us to
shrink to 203 bytes, and fits in one segment anyway."""

FLUSH_BLOCK = b"\0\0\0\xff\xff"
"""An empty stored block, at which decoders hand on what came before it."""

_MAX_STORED_BYTES = 0xFFFF  # bytes in a stored block
_FINAL_BLOCK = b"\x03\x00"  # an empty block that is the final one


def compress_block(data: bytes) -> bytes:
    """Return data as blocks that may follow any other block, ended by a flush.

    The data is deflated if that makes it shorter, otherwise stored. JSON of 230 bytes takes 5.4 us;
    7 KB take 25 us and shrink to 38 %; 58 KB take 460 us. Windows above 8 KiB or memory levels
    above 7 cost 15 to 30 us more each, for 1 % less: their memory comes from the system and goes
    back to it each time. Level 6 takes half as long again for 5 % less.
    """
    if len(data) >= MIN_COMPRESS_BYTES:
        compressor = zlib.compressobj(3, zlib.DEFLATED, -13, 7)
        # A full flush ends with the same empty stored block.
        deflated = compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)
        if len(deflated) < len(data):
            return deflated
    pieces = [
        _store_block(data[start : start + _MAX_STORED_BYTES])
        for start in range(0, len(data), _MAX_STORED_BYTES)
    ]
    return b"".join(pieces) + FLUSH_BLOCK if data else b""


def build_trailer(total: Crc32Sum) -> bytes:
    size = total.size & 0xFFFFFFFF
    return _FINAL_BLOCK + total.crc.to_bytes(4, "little") + size.to_bytes(4, "little")


def compress(data: bytes) -> bytes:
    """Return a whole response as gzip; the same bytes for the same data."""
    return gzip.compress(data, 6, mtime=0)


def _store_block(data: bytes) -> bytes:
    size = len(data)
    return b"\0%b%b%b" % (size.to_bytes(2, "little"), (size ^ 0xFFFF).to_bytes(2, "little"), data)


_POLYNOMIAL = 0xEDB88320  # bits are reversed, here and everywhere: the highest power is bit 0
_ALL_ONES = 0xFFFFFFFF
_SHORT_BITS = 12  # sizes below 2 to the power of this go through zlib
_MAX_SHORT_BYTES = (1 << _SHORT_BITS) - 1
_ZEROS = memoryview(bytes(_MAX_SHORT_BYTES))


@dataclass(frozen=True, slots=True)
class Crc32Sum:
    """The CRC-32 and the number of some bytes, which can be added and subtracted."""

    crc: int = 0
    size: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> Crc32Sum:
        return cls(crc32(data), len(data))

    def __add__(self, other: Crc32Sum) -> Crc32Sum:
        return Crc32Sum(shift_crc(self.crc, other.size) ^ other.crc, self.size + other.size)

    def subtract(self, before: Crc32Sum) -> Crc32Sum:
        """Return the sum of the bytes that were appended to `before`, which must not be longer."""
        size = self.size - before.size
        if size < 0:
            raise ValueError(f"{before.size} bytes are not the beginning of {self.size}")
        return Crc32Sum(shift_crc(before.crc, size) ^ self.crc, size)


def shift_crc(crc: int, size: int) -> int:
    """Return the contribution of a CRC after `size` more bytes: crc * x^(8 * size).

    Up to 4 KiB, zeros are run through zlib, which inverts its input and output: 0.3 us for 300
    bytes, 1.0 us for 4,000. Each bit that is set in a larger size costs 3 us.
    """
    crc = crc32(_ZEROS[: size & _MAX_SHORT_BYTES], crc ^ _ALL_ONES) ^ _ALL_ONES
    size >>= _SHORT_BITS
    power = _SHORT_BITS + 3  # x^(8 * 2^12) is x^(2^15): 8 bits in a byte are the 3
    while size:
        if size & 1:
            crc = _multiply(crc, _POWERS[power % 32])
        size >>= 1
        power += 1
    return crc


def _multiply(a: int, b: int) -> int:
    product = 0
    bit = 1 << 31
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _compute_powers() -> list[int]:
    """Return x^(2^n) for n from 0 to 31; the 32nd is x again."""
    powers = [1 << 30]
    while len(powers) < 32:
        powers.append(_multiply(powers[-1], powers[-1]))
    return powers


_POWERS = _compute_powers()
