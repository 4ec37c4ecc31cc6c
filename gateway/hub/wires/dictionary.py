"""Compress another wire against a dictionary of the view (RFC 9842), once for all of its clients.

Each chunk is a frame of its own, so that it can be sent to clients that came at different times. An
event that is sent alone, which gzip cannot shorten, mostly repeats what the dictionary has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.core.channel.chunk_ring import ByteSum
from gateway.core.client.terms import EndReason
from gateway.wire.zstd import CompressionDictionary

from .wrapping import WrappingWire


@dataclass(frozen=True, slots=True)
class DictionaryWire(WrappingWire):
    """Compress another wire. Wires are equal if they have the same dictionary object."""

    dictionary: CompressionDictionary

    def wrap(self, data: bytes) -> bytes:
        return self.dictionary.compress(data)

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        first = self.wrap(
            self.wire.encode_begin(
                data, token, position_refused=position_refused, is_continuation=is_continuation
            )
        )
        return first if is_continuation else self.dictionary.header + first

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        """Return the last block. A stream of frames needs nothing to end it."""
        return self.wrap(self.wire.encode_end(reason, token, delivered_sum))
