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

from gateway.core.channel.byte_counts import Sum
from gateway.core.channel.channel import Event
from gateway.core.log.record import News, Record
from gateway.core.token.resume_token import seal
from gateway.formats import Format
from gateway.wire import sse

from .control_events import REFUSED, tell
from .grouped import join_statuses, status_head

RETRY = (1.0, 3.0)  # seconds after which EventSource comes back; drawn, so that not all do at once
_POSITION = sse.data_block(b"{}", "position")


@dataclass(frozen=True, slots=True)
class Sse:
    """The wire of EventSource. A wire is a value: equal ones share the chunks of a view.

    grouped: The client takes events about many partitions.
    """

    grouped: bool = False

    @property
    def name(self) -> str:
        return "sse"

    def encoder(self, format: Format) -> SseEncoder:
        return SseEncoder(format, grouped=self.grouped)

    def begin(
        self, data: dict[str, Any], token: bytes, *, refused: bool, again: bool = False
    ) -> bytes:
        first = sse.retry(int(1000 * random.uniform(*RETRY))) + control("begin", data)
        if refused:  # the refused token stays with the client until the gap is told
            first += b"\n" + control("gap", REFUSED)
        return first + sse.close_block(token)

    def tell(self, kind: str, data: dict[str, Any]) -> bytes:
        return control(kind, data) + b"\n"

    def heartbeat(self) -> bytes:
        return sse.comment()

    def end(self, reason: str, token: bytes, got: Sum | None = None) -> bytes:
        spread = sse.retry(int(1000 * random.uniform(RETRY[0], 5 * RETRY[1])))
        return spread + self.tell("end", {"reason": reason})


class SseEncoder:
    """An `Encoder` of core's channels. An event without an id is ended by a blank line."""

    def __init__(self, format: Format, *, grouped: bool = False) -> None:
        self._format = format
        self._grouped = grouped

    def head(self, entry: News) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            return sse.data_block(payload, name)
        told = tell(entry)
        if told is None:
            return None
        return status_head(entry, control(*told)) if self._grouped else control(*told)

    def position(self) -> bytes:
        return _POSITION

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        if self._grouped:
            events = join_statuses(events, control)
        parts: list[bytes] = []
        for _, head, text, _ in events:
            parts.append(head)
            parts.append(b"\n" if text is None else sse.close_block(seal(text, view)))
        return b"".join(parts)


def control(name: str, data: Any) -> bytes:
    """A control event without its end."""
    return sse.data_block(orjson.dumps(data), name)
