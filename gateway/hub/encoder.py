"""Entries as server-sent events: which event says what.

Records go out under the default name, so plain `onmessage` code sees records only;
everything else is a control event with JSON data. A new control event has its place here.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..core.record import Entry, Fault, Gap, Ready, Record, TopicPartition
from ..formats import Format
from ..wire import sse

_POSITION = sse.data_block(b"{}", "position")


class SseEncoder:
    """An `Encoder` of core's channels. An event without an id is ended by a blank line."""

    def __init__(self, format: Format) -> None:
        self._format = format

    def head(self, entry: Entry) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            return sse.data_block(payload, name)
        if type(entry) is Gap:
            return control("gap", gap(entry))
        if type(entry) is Ready:
            return control("ready", ready(entry))
        if type(entry) is Fault:
            return control("error", fault(entry))
        return None

    def position(self) -> bytes:
        return _POSITION

    def end(self, token: bytes | None) -> bytes:
        return b"\n" if token is None else sse.close_block(token)


def control(name: str, data: Any) -> bytes:
    """A control event without its end."""
    return sse.data_block(orjson.dumps(data), name)


def where(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def gap(entry: Gap) -> dict[str, Any]:
    """`from`: where the stream stood; `to`: the offset it goes on at."""
    return {**where(entry.tp), "from": entry.offset, "to": entry.next, "reason": entry.reason}


def ready(entry: Ready) -> dict[str, Any]:
    resolved = "approximate" if entry.approximate else "exact"
    return {**where(entry.tp), "offset": entry.next, "resolved": resolved}


def fault(entry: Fault) -> dict[str, Any]:
    message = f"{entry.tp} cannot be read for now ({entry.cause}); the stream goes on by itself"
    return {**where(entry.tp), "code": entry.cause, "message": message}
