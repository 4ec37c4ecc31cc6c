"""Compress another wire (RFC 1952), once for all clients that get the same.

Each chunk is deflated independently of the others, so that it can be sent to clients that came at
different times. The CRC at the end of a client's stream is put together from the sums of what it
was sent, so that strict readers accept the stream, too.

Text to 200 clients (`make bench WORK=deflate`, on a busy machine): with one record per write, 272
bytes become 212, and a CPU second has 190,000 deliveries instead of 216,000; with ten joined, 277
bytes per record become 79, and it has 1.67 M instead of 1.82 M. For a client with a view of its
own, each event costs 5 us more.
"""

from __future__ import annotations

from typing import Any

from gateway.core.channel.chunk_ring import CountedBytes
from gateway.core.client.terms import EndReason
from gateway.wire import gzip
from gateway.wire.crc import Crc32Sum

from .wrapping import WrappingWire


class GzipWire(WrappingWire):
    __slots__ = ()

    def wrap(self, data: bytes) -> bytes:
        return (
            CountedBytes.create(gzip.compress_block(data), Crc32Sum.from_bytes(data))
            if data
            else data
        )

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        """Return the first block, which has the gzip header unless it is a continuation."""
        first = self.wire.encode_begin(
            data, token, position_refused=position_refused, is_continuation=is_continuation
        )
        if is_continuation:
            return self.wrap(first)
        return CountedBytes.create(
            gzip.HEADER + gzip.compress_block(first), Crc32Sum.from_bytes(first)
        )

    def encode_end(self, reason: EndReason, token: bytes, delivered_sum: Any = None) -> bytes:
        last = self.wire.encode_end(reason, token)
        last_sum = Crc32Sum.from_bytes(last)
        return gzip.compress_block(last) + gzip.build_trailer(
            last_sum if delivered_sum is None else delivered_sum + last_sum
        )
