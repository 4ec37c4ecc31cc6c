"""Wrap another wire in HTTP/1.1 chunks (RFC 9112 7.1), for outlets that are connections."""

from __future__ import annotations

from gateway.core.channel.chunk_ring import ByteSum, CountedBytes
from gateway.core.client.terms import EndReason

from .wrapping import WrappingWire

LAST_CHUNK = b"0\r\n\r\n"  # ends the body (RFC 9112 7.1)


class ChunkedWire(WrappingWire):
    __slots__ = ()

    def wrap(self, data: bytes) -> bytes:
        """Return the bytes as one chunk; empty for no bytes, since an empty chunk ends the body."""
        if not data:
            return b""
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        # The sum is that of what the inner wire counts, without the framing.
        return CountedBytes.create(chunk, data.sum) if type(data) is CountedBytes else chunk

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        return self.wrap(self.wire.encode_end(reason, token, delivered_sum)) + LAST_CHUNK
