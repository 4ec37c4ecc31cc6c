"""Define what clients' bytes look like: server-sent events, lines, or WebSocket messages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.channel.channel import Encoder
from gateway.core.client.end_reason import EndReason
from gateway.formats import Format


class Wire(Hashable, Protocol):
    """Define a kind of encoding, and what is encoded for one client only.

    A wire is an immutable value. Clients of equal wires and views share their channel's chunks,
    which the encoder that the wire creates encodes.
    """

    @property
    def name(self) -> str:
        """Return the name of the wire in metrics and logs."""

    def create_encoder(self, format: Format) -> Encoder: ...

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        """Return the first block of a stream.

        Args:
            token: The resume token of where the client begins.
            position_refused: The client came with a token that could not be used.
            is_continuation: The stream has begun before, and goes on with another view.
        """

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes: ...

    def encode_heartbeat(self) -> bytes:
        """Return what keeps an idle stream alive; empty if something else does."""

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        """Return the last block of a stream.

        `delivered_sum` is the sum of the bytes sent before, on wires that count bytes.
        """
