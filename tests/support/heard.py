"""What a client heard, in the terms of Kafka: records and gaps, in the order of its stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from gateway.core.log.record import TopicPartition

RECORD_EVENTS = ("message", "delete")


class Received(NamedTuple):
    """A record as a client got it. Format `value` tells neither place nor key: None."""

    tp: TopicPartition | None
    offset: int | None
    value: bytes | None
    key: bytes | None = None
    id: str = ""


class GapEvent(NamedTuple):
    """The offsets [start, end) told as missing; `end` below `start` when the log went back."""

    tp: TopicPartition
    start: int
    end: int
    reason: str


Heard: TypeAlias = Received | GapEvent


def heard(events: Iterable[Mapping[str, Any]], format: str = "envelope") -> list[Heard]:
    """Records and gaps of a stream's events, each `{"event", "id", "data"}`.

    format: envelope or value, that of the route. Other control events are passed over; an
    `error` event is an AssertionError, for nothing that follows it can be judged.
    """
    found: list[Heard] = []
    for event in events:
        name = event.get("event") or "message"
        if name == "error":
            raise AssertionError(f"the stream said error: {event['data']}")
        if name == "gap":
            found += gaps(event["data"])
        elif name in RECORD_EVENTS:
            read = received_envelope if format == "envelope" else received_value
            found.append(read(event))
    return found


def gaps(data: str) -> list[GapEvent]:
    """The gaps of one event: one object, or a list of them under `gaps`."""
    told = json.loads(data)
    return [
        GapEvent(
            TopicPartition(each["topic"], each["partition"]),
            each["from"],
            each["to"],
            each.get("reason", told.get("reason", "")),
        )
        for each in told.get("gaps", [told])
    ]


def received_envelope(event: Mapping[str, Any]) -> Received:
    told = json.loads(event["data"])
    return Received(
        TopicPartition(told["topic"], told["partition"]),
        told["offset"],
        bytes_of(told["value"]),
        bytes_of(told["key"]),
        event.get("id") or "",
    )


def received_value(event: Mapping[str, Any]) -> Received:
    """Format `value`: the value is all that is known; the oracle's values are unique."""
    if event.get("event") == "delete":
        raise ValueError("a tombstone of format value has no place; use envelope in this test")
    return Received(None, None, event["data"].encode(), None, event.get("id") or "")


def bytes_of(told: str | Mapping[str, str] | None) -> bytes | None:
    """The bytes that the envelope's rule for keys and values stands for."""
    if told is None:
        return None
    return told.encode() if isinstance(told, str) else base64.b64decode(told["base64"])
