"""Wrap another wire in HTTP/1.1 chunks (RFC 9112 7.1), for outlets that are connections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.core.channel.byte_counts import ByteSum, CountedBytes
from gateway.core.channel.channel import Encoder
from gateway.core.channel.chunk import ChannelEvent
from gateway.formats import Format

from .wire import Wire

LAST_CHUNK = b"0\r\n\r\n"  # ends the body (RFC 9112 7.1)


def frame_chunk(data: bytes) -> bytes:
    """Return the bytes as one chunk; empty for no bytes, since an empty chunk ends the body."""
    if not data:
        return b""
    chunk = b"%x\r\n%b\r\n" % (len(data), data)
    # The sum is that of what the inner wire counts, without the framing.
    return CountedBytes.create(chunk, data.sum) if type(data) is CountedBytes else chunk


@dataclass(frozen=True, slots=True)
class ChunkedWire:
    """Frame what another wire encodes, once for all of its clients.

    Attributes:
        wire: The other wire.
    """

    wire: Wire

    @property
    def name(self) -> str:
        """Return the name of the other wire."""
        return self.wire.name

    def create_encoder(self, format: Format) -> ChunkedEncoder:
        """Return an encoder that frames what the other wire's encoder makes."""
        return ChunkedEncoder(self.wire.create_encoder(format))

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        """Return the first block of a stream; see `Wire`."""
        return frame_chunk(
            self.wire.encode_begin(
                data, token, position_refused=position_refused, is_continuation=is_continuation
            )
        )

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        """Return an event for one client; see `Wire`."""
        return frame_chunk(self.wire.encode_event(kind, data))

    def encode_heartbeat(self) -> bytes:
        """Return a heartbeat; see `Wire`."""
        return frame_chunk(self.wire.encode_heartbeat())

    def encode_end(self, reason: str, token: bytes, delivered_sum: ByteSum | None = None) -> bytes:
        """Return the last block and the end of the body; see `Wire`."""
        return frame_chunk(self.wire.encode_end(reason, token, delivered_sum)) + LAST_CHUNK


class ChunkedEncoder:
    """Frame what another encoder makes of a chunk of events; an `Encoder` of channels."""

    def __init__(self, encoder: Encoder) -> None:
        # Heads stay as they are: only whole chunks are framed.
        self.encode_entry = encoder.encode_entry
        self.encode_position = encoder.encode_position
        self._encode_events = encoder.encode_events

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        """Return events as one HTTP chunk; see `Encoder`."""
        return frame_chunk(self._encode_events(events, view))
