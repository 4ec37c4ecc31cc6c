"""Wrap another wire: what it encodes is passed through a function, once for all of its clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gateway.core.channel.channel import Encoder
from gateway.core.channel.chunk_ring import ByteSum, ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.formats import Format

from .wire import Wire


@dataclass(frozen=True, slots=True)
class WrappingWire(ABC):
    """A wire around another one, whose blocks are simply concatenated, such as `SseWire`."""

    wire: Wire

    @abstractmethod
    def wrap(self, data: bytes) -> bytes:
        """Return a block of the other wire as one of this wire; empty for no bytes."""

    @property
    def name(self) -> str:
        return self.wire.name

    def create_encoder(self, format: Format) -> WrappingEncoder:
        return WrappingEncoder(self.wire.create_encoder(format), self.wrap)

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        return self.wrap(
            self.wire.encode_begin(
                data, token, position_refused=position_refused, is_continuation=is_continuation
            )
        )

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return self.wrap(self.wire.encode_event(kind, data))

    def encode_heartbeat(self) -> bytes:
        return self.wrap(self.wire.encode_heartbeat())

    @abstractmethod
    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes: ...


class WrappingEncoder:
    def __init__(self, encoder: Encoder, wrap: Callable[[bytes], bytes]) -> None:
        # Heads stay as they are: only whole chunks are wrapped.
        self.encode_entry = encoder.encode_entry
        self.encode_position = encoder.encode_position
        self._encode_events = encoder.encode_events
        self._wrap = wrap

    def encode_events(self, events: Iterable[ChannelEvent], view_digest: bytes) -> bytes:
        return self._wrap(self._encode_events(events, view_digest))
