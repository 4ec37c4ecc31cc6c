"""The latest of each key: as it was written, and as a client's events tell it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from support.records import RecordToSend


def build_written_table(records: Iterable[RecordToSend]) -> dict[str, str]:
    """Values by key once all of these were written, tombstones applied."""
    table: dict[str, str] = {}
    for sent in records:
        if sent.key is not None and sent.value is None:
            table.pop(sent.key.decode(), None)
        elif sent.key is not None and sent.value is not None:
            table[sent.key.decode()] = sent.value.decode()
    return table


def build_known_table(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What a client of an envelope knows by these events, on any wire."""
    table: dict[str, str] = {}
    for record in parse_envelopes(events):
        if record["key"] is not None and record["value"] is None:
            table.pop(record["key"], None)
        elif record["key"] is not None:
            table[record["key"]] = record["value"]
    return table


def parse_envelopes(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The envelopes."""
    found = (e for e in events if (e.get("event") or "message") in ("message", "delete"))
    return [json.loads(event["data"]) for event in found]


def get_event_data(events: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The data of the events of one name."""
    return [json.loads(event["data"]) for event in events if event["event"] == name]
