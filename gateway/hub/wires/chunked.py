"""A wire whose pieces are chunks of HTTP (RFC 9112 7.1), for outlets that are connections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.core.channel.byte_counts import Counted, Sum
from gateway.core.channel.channel import Encoder, Event
from gateway.formats import Format

from .wire import Wire

LAST = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One chunk; none for no bytes, which would be the last."""
    if not data:
        return b""
    chunk = b"%x\r\n%b\r\n" % (len(data), data)
    return Counted.of(chunk, data.sum) if type(data) is Counted else chunk


@dataclass(frozen=True, slots=True)
class Framed:
    """Another wire, framed once for all of its clients."""

    wire: Wire

    @property
    def name(self) -> str:
        return self.wire.name

    def encoder(self, format: Format) -> FramedEncoder:
        return FramedEncoder(self.wire.encoder(format))

    def begin(
        self, data: dict[str, Any], token: bytes, *, refused: bool, again: bool = False
    ) -> bytes:
        return framed(self.wire.begin(data, token, refused=refused, again=again))

    def tell(self, kind: str, data: dict[str, Any]) -> bytes:
        return framed(self.wire.tell(kind, data))

    def heartbeat(self) -> bytes:
        return framed(self.wire.heartbeat())

    def end(self, reason: str, token: bytes, got: Sum | None = None) -> bytes:
        return framed(self.wire.end(reason, token, got)) + LAST


class FramedEncoder:
    """An `Encoder` of core's channels."""

    def __init__(self, encoder: Encoder) -> None:
        self.head = encoder.head
        self.position = encoder.position
        self._render = encoder.render

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        return framed(self._render(events, view))
