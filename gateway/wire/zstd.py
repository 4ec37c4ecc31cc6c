"""Encode zstd (RFC 8878) in frames that refer to a shared dictionary (RFC 9842, `dcz`).

A stream is a header that names the dictionary, and then frames. Each frame refers to the dictionary
and to nothing else, so that it can be made once for all clients that have the dictionary, wherever
they join. A decoder hands a frame on when it ends, so that no flush is needed.
"""

from __future__ import annotations

import hashlib
import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

WINDOW_LOG = 15
"""How far back in a frame is searched: 32 KiB. The memory of a compressor grows with it."""

_MAGIC = b"\x5e\x2a\x4d\x18\x20\x00\x00\x00"  # a skippable frame of 32 bytes (RFC 9842 5)


class CompressionDictionary:
    """A dictionary with its compressor. It is identified by its content.

    A JSON event of 228 bytes takes 3.3 us and shrinks to 42 %, ten of them together 30 us and 16 %.
    Higher levels gain less than 1 %, and level 1 saves nothing. Once used it takes 0.1 MB. The
    content has at least eight bytes; those at its end are cheapest to refer to. `header` begins a
    stream.
    """

    __slots__ = ("__weakref__", "_compressor", "content", "digest", "header")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.digest = hashlib.sha256(content).digest()
        self.header = _MAGIC + self.digest
        parameters = zstd.CompressionParameter
        self._compressor = zstd.ZstdCompressor(
            options={
                parameters.compression_level: 3,
                parameters.window_log: WINDOW_LOG,
                parameters.dict_id_flag: 0,
            },
            zstd_dict=zstd.ZstdDict(content, is_raw=True).as_digested_dict,
        )

    def compress(self, data: bytes) -> bytes:
        return self._compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME) if data else b""
