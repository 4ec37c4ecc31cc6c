"""What a client heard, in the terms of Kafka: records and gaps, in the order of its stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from gateway.core.log.record import TopicPartition

RECORD_EVENTS = ("message", "delete")


class ReceivedRecord(NamedTuple):
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


ReceivedItem: TypeAlias = ReceivedRecord | GapEvent


def parse_events(
    events: Iterable[Mapping[str, Any]], format: str = "envelope"
) -> list[ReceivedItem]:
    """Records and gaps of a stream's events, each `{"event", "id", "data"}`.

    format: envelope or value, that of the route. Other control events are passed over,
    also that a partition cannot be read for now; any other `error` event is an AssertionError, for
    nothing that follows it can be judged.
    """
    found: list[ReceivedItem] = []
    for event in events:
        name = event.get("event") or "message"
        if name == "error" and "goes on by itself" not in event["data"]:
            raise AssertionError(f"the stream said error: {event['data']}")
        if name == "gap":
            found += parse_gaps(event["data"])
        elif name in RECORD_EVENTS:
            read = parse_envelope if format == "envelope" else parse_value
            found.append(read(event))
    return found


def parse_gaps(data: str) -> list[GapEvent]:
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


def parse_envelope(event: Mapping[str, Any]) -> ReceivedRecord:
    told = json.loads(event["data"])
    return ReceivedRecord(
        TopicPartition(told["topic"], told["partition"]),
        told["offset"],
        decode_bytes(told["value"]),
        decode_bytes(told["key"]),
        event.get("id") or "",
    )


def parse_value(event: Mapping[str, Any]) -> ReceivedRecord:
    """Format `value`: the value is all that is known; the oracle's values are unique."""
    if event.get("event") == "delete":
        raise ValueError("a tombstone of format value has no place; use envelope in this test")
    return ReceivedRecord(None, None, event["data"].encode(), None, event.get("id") or "")


def decode_bytes(envelope_value: str | Mapping[str, str] | None) -> bytes | None:
    """The bytes that the envelope's rule for keys and values stands for."""
    if envelope_value is None:
        return None
    return (
        envelope_value.encode()
        if isinstance(envelope_value, str)
        else base64.b64decode(envelope_value["base64"])
    )
