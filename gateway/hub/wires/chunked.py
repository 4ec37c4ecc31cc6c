"""A wire whose pieces are chunks of HTTP (RFC 9112 7.1), for outlets that are connections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.core.channel.byte_counts import ByteSum, CountedBytes
from gateway.core.channel.channel import ChannelEvent, Encoder
from gateway.formats import Format

from .wire import Wire

LAST_CHUNK = b"0\r\n\r\n"


def frame_chunk(data: bytes) -> bytes:
    """One chunk; none for no bytes, which would be the last."""
    if not data:
        return b""
    chunk = b"%x\r\n%b\r\n" % (len(data), data)
    return CountedBytes.create(chunk, data.sum) if type(data) is CountedBytes else chunk


@dataclass(frozen=True, slots=True)
class ChunkedWire:
    """Another wire, framed once for all of its clients."""

    wire: Wire

    @property
    def name(self) -> str:
        return self.wire.name

    def create_encoder(self, format: Format) -> ChunkedEncoder:
        return ChunkedEncoder(self.wire.create_encoder(format))

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        return frame_chunk(
            self.wire.encode_begin(
                data, token, position_refused=position_refused, is_continuation=is_continuation
            )
        )

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return frame_chunk(self.wire.encode_event(kind, data))

    def encode_heartbeat(self) -> bytes:
        return frame_chunk(self.wire.encode_heartbeat())

    def encode_end(self, reason: str, token: bytes, delivered_sum: ByteSum | None = None) -> bytes:
        return frame_chunk(self.wire.encode_end(reason, token, delivered_sum)) + LAST_CHUNK


class ChunkedEncoder:
    """An `Encoder` of core's channels."""

    def __init__(self, encoder: Encoder) -> None:
        self.encode_entry = encoder.encode_entry
        self.encode_position = encoder.encode_position
        self._encode_events = encoder.encode_events

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        return frame_chunk(self._encode_events(events, view))
