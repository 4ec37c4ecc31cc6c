"""Decode what is compressed with a dictionary (RFC 9842)."""

from __future__ import annotations

import base64
import hashlib
import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["FrameDecoder", "build_dictionary_headers", "zstd"]

HEADER_BYTES = 40


def build_dictionary_headers(content: bytes, id: str) -> dict[str, str]:
    """What Chromium sends with requests that the dictionary is for."""
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return {
        "Accept-Encoding": "gzip, deflate, br, zstd, dcb, dcz",
        "Available-Dictionary": f":{digest}:",
        "Dictionary-ID": f'"{id}"',
    }


class FrameDecoder:
    """Decodes a stream of coding `dcz`, which names this dictionary."""

    def __init__(self, dictionary: bytes) -> None:
        self._digest = hashlib.sha256(dictionary).digest()
        self._dictionary = zstd.ZstdDict(dictionary, is_raw=True)
        self._buffer = b""
        self._has_begun = False
        self._decoder = self._create_decoder()

    def feed(self, data: bytes) -> bytes:
        """What can be decoded by now."""
        self._buffer += data
        if not self._has_begun:
            if len(self._buffer) < HEADER_BYTES:
                return b""
            header, self._buffer = self._buffer[:HEADER_BYTES], self._buffer[HEADER_BYTES:]
            assert header == bytes.fromhex("5e2a4d1820000000") + self._digest
            self._has_begun = True
        found = b""
        while self._buffer:
            found += self._decoder.decompress(self._buffer)
            self._buffer = b""
            if self._decoder.eof:
                self._buffer, self._decoder = self._decoder.unused_data, self._create_decoder()
        return found

    def _create_decoder(self) -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(zstd_dict=self._dictionary)
