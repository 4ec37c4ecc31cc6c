"""Encode gzip (RFC 1952) in blocks that are made once for all clients that get them.

After a header of their own, clients get blocks of deflate (RFC 1951) that end on a byte and refer
to nothing before them, so that a client can inflate them wherever it joins. At the end each client
gets the checksum of its own bytes.

Each piece ends with an empty stored block, as zlib's flushes do. Decoders differ in when they hand
their output on: zlib does so at once, Go's compress/flate only at such a block, at the end, or when
its window of 32 KiB is full.
"""

from __future__ import annotations

import gzip
import zlib

from .crc import Crc32Sum

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
