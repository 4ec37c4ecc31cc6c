"""Define what clients' bytes look like: server-sent events, lines, or WebSocket messages."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from gateway.core.channel.channel import Encoder
from gateway.core.channel.chunk_ring import ByteSum
from gateway.core.client.terms import EndReason, ReconnectDelays
from gateway.formats import Format


class Beginning(NamedTuple):
    """What the first block of a stream says.

    Attributes:
        token: The resume token of where the client begins.
        position_refused: The client came with a token that could not be used.
        is_continuation: The stream has begun before, and goes on with another view.
    """

    data: dict[str, Any]
    token: bytes
    position_refused: bool = False
    is_continuation: bool = False


class Wire(Hashable, Protocol):
    """Define a kind of encoding, and what is encoded for one client only.

    A wire is an immutable value. Clients of equal wires and views share their channel's chunks,
    which the encoder that the wire creates encodes.
    """

    @property
    def name(self) -> str:
        """Return the name of the wire in metrics and logs."""

    def create_encoder(self, format: Format) -> Encoder: ...

    def encode_begin(self, beginning: Beginning) -> bytes:
        """Return the first block of a stream."""

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes: ...

    def encode_heartbeat(self) -> bytes:
        """Return what keeps an idle stream alive; empty if something else does."""

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        """Return the last block of a stream.

        `delivered_sum` is the sum of the bytes sent before, on wires that count bytes.
        """


END_RETRY_RANGE_S = (1.0, 15.0)
MAX_END_RETRY_S = 300.0
RECONNECTS_PER_SECOND = 2000  # clients that a replica takes back while it does other work as well


class EndRetries:
    """When the clients of streams that end are to reconnect.

    The range is longer than that of `retry:` at the beginning of a stream, since many streams end
    at once when the gateway drains, and longer still where they are very many.
    """

    def __init__(self) -> None:
        self._delays: ReconnectDelays | None = None

    def draw_ms(self) -> int:
        # Not at the import: processes that are forked after that would share their start.
        self._delays = self._delays or ReconnectDelays(*END_RETRY_RANGE_S, start=random.random())
        return self._delays.draw_ms()

    def spread(self, client_count: int) -> None:
        """Let the clients of this process, which drains, come back no faster than others take them.

        30,000 clients or more are sent away for longer than usual.
        """
        low_s, usual_s = END_RETRY_RANGE_S
        high_s = min(MAX_END_RETRY_S, low_s + client_count / RECONNECTS_PER_SECOND)
        if high_s > usual_s:
            self._delays = ReconnectDelays(low_s, high_s, start=random.random())


end_retries = EndRetries()
"""Of the clients of this process."""
