"""Entries as server-sent events: which event says what.

Records go out under the default name, so plain `onmessage` code sees records only;
everything else is a control event with JSON data. A new control event has its place here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from ..core.channel import Event
from ..core.counted import Sum
from ..core.record import (
    Fault,
    Gap,
    News,
    Ready,
    Reason,
    Record,
    SnapshotEnd,
    TopicPartition,
)
from ..core.token import seal
from ..formats import Format
from ..wire import sse

RETRY = (1.0, 3.0)  # seconds after which EventSource comes back; drawn, so that not all do at once
_POSITION = sse.data_block(b"{}", "position")


@dataclass(frozen=True, slots=True)
class Sse:
    """The wire of EventSource. A wire is a value: equal ones share the chunks of a view."""

    @property
    def name(self) -> str:
        return "sse"

    def encoder(self, format: Format) -> SseEncoder:
        return SseEncoder(format)

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

    def __init__(self, format: Format) -> None:
        self._format = format

    def head(self, entry: News) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            return sse.data_block(payload, name)
        told = tell(entry)
        return None if told is None else control(*told)

    def position(self) -> bytes:
        return _POSITION

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        parts: list[bytes] = []
        for _, head, text, _ in events:
            parts.append(head)
            parts.append(b"\n" if text is None else sse.close_block(seal(text, view)))
        return b"".join(parts)


def control(name: str, data: Any) -> bytes:
    """A control event without its end."""
    return sse.data_block(orjson.dumps(data), name)


REFUSED: dict[str, Any] = {
    "topic": None, "partition": None, "from": None, "to": None, "reason": Reason.POSITION_REFUSED
}  # fmt: skip


def tell(entry: News) -> tuple[str, dict[str, Any]] | None:
    """The name and the data of what is no record; None for what is not told."""
    if type(entry) is Gap:
        return "gap", gap(entry)
    if type(entry) is Ready:
        return "ready", ready(entry)
    if type(entry) is Fault:
        return "error", fault(entry)
    if type(entry) is SnapshotEnd:
        return "snapshot-end", snapshot_end(entry)
    return None


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


def snapshot_end(entry: SnapshotEnd) -> dict[str, Any]:
    """`pending`: partitions that could not be read; what they hold comes when they can."""
    told = {"topics": list(entry.topics), "records": entry.records}
    return {**told, "pending": list(map(where, entry.pending))} if entry.pending else told
