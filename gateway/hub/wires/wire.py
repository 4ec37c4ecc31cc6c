"""What a client's bytes look like: server-sent events, lines, or WebSocket messages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from gateway.core.channel.byte_counts import Sum
from gateway.core.channel.channel import Encoder
from gateway.formats import Format


class Wire(Hashable, Protocol):
    """A kind of encoding, and what only one client of it hears. Clients of equal wires and
    views share their channel's chunks."""

    @property
    def name(self) -> str:
        """In metrics and logs."""

    def encoder(self, format: Format) -> Encoder: ...

    def begin(
        self, data: dict[str, Any], token: bytes, *, refused: bool, again: bool = False
    ) -> bytes:
        """The first thing. refused: it came with a position that could not be used. again: the
        stream has begun before, and goes on as another view."""

    def tell(self, kind: str, data: dict[str, Any]) -> bytes:
        """An event that no other client hears of."""

    def heartbeat(self) -> bytes:
        """What keeps an idle stream alive; empty if something else does."""

    def end(self, reason: str, token: bytes, got: Sum | None = None) -> bytes:
        """The last thing. token: where it ended. got: the sum of what came before."""
