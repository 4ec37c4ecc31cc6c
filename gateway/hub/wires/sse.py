"""Entries as server-sent events: which event says what.

Records go out under the default name, so plain `onmessage` code sees records only;
everything else is a control event with JSON data (`control_events`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.channel.channel import ChannelEvent
from gateway.core.log.record import Record, StreamItem
from gateway.core.token.resume_token import seal_token
from gateway.formats import Format
from gateway.wire import sse

from .control_events import POSITION_REFUSED_GAP, describe_entry
from .grouped import create_status_head, iter_joined_statuses

RETRY_RANGE_S = (
    1.0,
    3.0,
)  # seconds after which EventSource comes back; drawn, so that not all do at once
_POSITION_HEAD = sse.encode_data(b"{}", "position")


@dataclass(frozen=True, slots=True)
class SseWire:
    """The wire of EventSource. A wire is a value: equal ones share the chunks of a view.

    grouped: The client takes events about many partitions.
    """

    grouped: bool = False

    @property
    def name(self) -> str:
        return "sse"

    def create_encoder(self, format: Format) -> SseEncoder:
        return SseEncoder(format, grouped=self.grouped)

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        first = sse.encode_retry(int(1000 * random.uniform(*RETRY_RANGE_S))) + encode_control(
            "begin", data
        )
        if position_refused:  # the refused token stays with the client until the gap is told
            first += b"\n" + encode_control("gap", POSITION_REFUSED_GAP)
        return first + sse.encode_id(token)

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return encode_control(kind, data) + b"\n"

    def encode_heartbeat(self) -> bytes:
        return sse.encode_comment()

    def encode_end(self, reason: str, token: bytes, delivered_sum: ByteSum | None = None) -> bytes:
        spread = sse.encode_retry(
            int(1000 * random.uniform(RETRY_RANGE_S[0], 5 * RETRY_RANGE_S[1]))
        )
        return spread + self.encode_event("end", {"reason": reason})


class SseEncoder:
    """An `Encoder` of core's channels. An event without an id is ended by a blank line."""

    def __init__(self, format: Format, *, grouped: bool = False) -> None:
        self._format = format
        self._grouped = grouped

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            return sse.encode_data(payload, name)
        told = describe_entry(entry)
        if told is None:
            return None
        return (
            create_status_head(entry, encode_control(*told))
            if self._grouped
            else encode_control(*told)
        )

    def encode_position(self) -> bytes:
        return _POSITION_HEAD

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        if self._grouped:
            events = iter_joined_statuses(events, encode_control)
        parts: list[bytes] = []
        for _, head, text, _ in events:
            parts.append(head)
            parts.append(b"\n" if text is None else sse.encode_id(seal_token(text, view)))
        return b"".join(parts)


def encode_control(name: str, data: Any) -> bytes:
    """A control event without its end."""
    return sse.encode_data(orjson.dumps(data), name)
