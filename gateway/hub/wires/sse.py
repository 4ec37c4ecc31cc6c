"""Encode entries as server-sent events (WHATWG HTML 9.2).

Records have the default event name, so that plain `onmessage` code sees records only; everything
else is a control event with JSON data (`control_events`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.chunk_ring import ByteSum, ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log.record import Record, StreamItem
from gateway.core.token.resume_token import seal_token
from gateway.formats import Format
from gateway.wire import sse

from .control_events import POSITION_REFUSED_GAP, create_status_head, describe_entry, join_statuses
from .wire import Beginning, end_retries

# Seconds after which EventSource reconnects; drawn at random, so that not all do so at once.
RETRY_RANGE_S = (1.0, 3.0)
_POSITION_HEAD = sse.encode_data(b"{}", "position")
# A page does not see comments: it would take a connection that died for an idle one.
_HEARTBEAT = _POSITION_HEAD + b"\n"


@dataclass(frozen=True, slots=True)
class SseWire:
    """Encode a stream for EventSource. A wire is a value: equal ones share the chunks of a view."""

    @property
    def name(self) -> str:
        return "sse"

    def create_encoder(self, format: Format) -> SseEncoder:
        return SseEncoder(format)

    def encode_begin(self, beginning: Beginning) -> bytes:
        first = sse.encode_retry(int(1000 * random.uniform(*RETRY_RANGE_S))) + encode_control(
            "begin", beginning.data
        )
        # The id goes with the last event: a client that is cut off before the gap comes back with
        # the refused token, and is sent the gap then.
        if beginning.position_refused:
            first += b"\n" + encode_control("gap", POSITION_REFUSED_GAP)
        return first + sse.encode_id(beginning.token)

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return encode_control(kind, data) + b"\n"

    def encode_heartbeat(self) -> bytes:
        """Return an event without an id."""
        return _HEARTBEAT

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        """Return the last block, without an id: the client keeps the one it has."""
        retry = sse.encode_retry(end_retries.draw_ms())
        return retry + self.encode_event("end", {"reason": reason})


class SseEncoder:
    """Encode entries as events. A head is an event to which `encode_events` adds the end."""

    def __init__(self, format: Format) -> None:
        self._format = format

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            return sse.encode_data(payload, name)
        description = describe_entry(entry)
        if description is None:
            return None
        return create_status_head(entry, encode_control(*description))

    def encode_position(self) -> bytes:
        return _POSITION_HEAD

    def encode_events(self, events: Sequence[ChannelEvent], view_digest: bytes) -> bytes:
        parts: list[bytes] = []
        for _, head, token_text, _ in join_statuses(events, encode_control):
            parts.append(head)
            parts.append(
                b"\n" if token_text is None else sse.encode_id(seal_token(token_text, view_digest))
            )
        return b"".join(parts)


def encode_control(name: str, data: Any) -> bytes:
    """Return a control event without its end."""
    return sse.encode_data(orjson.dumps(data), name)
