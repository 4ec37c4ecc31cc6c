"""What a client's bytes look like: server-sent events, lines, or WebSocket messages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.channel.channel import Encoder
from gateway.formats import Format


class Wire(Hashable, Protocol):
    """A kind of encoding, and what only one client of it hears. Clients of equal wires and
    views share their channel's chunks."""

    @property
    def name(self) -> str:
        """In metrics and logs."""

    def create_encoder(self, format: Format) -> Encoder: ...

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        """The first thing. refused: it came with a position that could not be used. again: the
        stream has begun before, and goes on as another view."""

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        """An event that no other client hears of."""

    def encode_heartbeat(self) -> bytes:
        """What keeps an idle stream alive; empty if something else does."""

    def encode_end(self, reason: str, token: bytes, delivered_sum: ByteSum | None = None) -> bytes:
        """The last thing. token: where it ended. got: the sum of what came before."""
