"""CRC-32 of what is put together from parts (RFC 1952 8), without reading them again.

A CRC is a polynomial over GF(2): to append n bytes is to multiply what came before by
x^(8n), so sums of parts give that of the whole, and two totals that of what lies between.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

_POLYNOMIAL = 0xEDB88320  # as all of these: the highest power is the lowest bit
_ALL_ONES = 0xFFFFFFFF
_SHORT_BITS = 12
_MAX_SHORT_BYTES = (1 << _SHORT_BITS) - 1
_ZEROS = memoryview(bytes(_MAX_SHORT_BYTES))


@dataclass(frozen=True, slots=True)
class Crc32Sum:
    """crc: CRC-32 of some bytes. size: how many they are, without a limit."""

    crc: int = 0
    size: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> Crc32Sum:
        return cls(crc32(data), len(data))

    def __add__(self, other: Crc32Sum) -> Crc32Sum:
        """That of both, one after the other."""
        return Crc32Sum(shift_crc(self.crc, other.size) ^ other.crc, self.size + other.size)

    def subtract(self, before: Crc32Sum) -> Crc32Sum:
        """That of what was added to `before` to come here. Raises ValueError if it is shorter."""
        size = self.size - before.size
        if size < 0:
            raise ValueError(f"{before.size} bytes are not the beginning of {self.size}")
        return Crc32Sum(shift_crc(before.crc, size) ^ self.crc, size)


def shift_crc(crc: int, size: int) -> int:
    """What a CRC is worth in one of `size` bytes more: crc * x^(8 * size).

    Up to 4 KiB zeros are run through zlib, which inverts what goes in and what comes out: 0.3 us
    for 300 bytes, 1.0 for 4,000. Each bit that is set in a larger size costs 3 us.
    """
    crc = crc32(_ZEROS[: size & _MAX_SHORT_BYTES], crc ^ _ALL_ONES) ^ _ALL_ONES
    size >>= _SHORT_BITS
    power = _SHORT_BITS + 3
    while size:
        if size & 1:
            crc = _multiply(crc, _POWERS[power % 32])
        size >>= 1
        power += 1
    return crc


def _multiply(a: int, b: int) -> int:
    """Two polynomials, modulo that of the CRC."""
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
    """x^(2^n); the 32nd is x again."""
    powers = [1 << 30]
    while len(powers) < 32:
        powers.append(_multiply(powers[-1], powers[-1]))
    return powers


_POWERS = _compute_powers()
