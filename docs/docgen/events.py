"""Write the reference of events, from the classes that define them for all wires."""

from __future__ import annotations

import json
from typing import Any

from gateway.hub.wires.control_events import CONTROL_EVENTS, ControlEvent

from .markdown import escape_markdown

_INTRODUCTION = """\
# Events

A stream is made of records and of the control events below. Their names and data are the same on
every wire: an SSE event has the name in `event:` and the data in `data:`, a line of NDJSON is
`{"@NAME": DATA}`, and a WebSocket message has the name as its `type`, beside the members of the
data.

A record is an SSE event without a name (`message`), a line without `@`, and one of `records` in a
WebSocket message. A record without a value (a tombstone) is `delete`, with the data `{"key": KEY}`.

| Event | When |
|---|---|
"""

_CONDITIONS = {
    "snapshot": "Only routes with `mode: snapshot` send it.",
    "challenge": "Only routes with a guard that has a `challenge` send it.",
}
_POSITIONS = {
    "always": "A position always goes with it.",
    "data": "A position always goes with it.",
    "sometimes": "A position may go with it.",
    "never": "No position goes with it.",
}


def build_events_page() -> str:
    """Return the page."""
    rows = [
        f"| [`{n}`](#{n}) | {escape_markdown(event.summary)} |\n"
        for n, event in CONTROL_EVENTS.items()
    ]
    return "\n".join(["".join([_INTRODUCTION, *rows]), *map(_build_event, CONTROL_EVENTS.values())])


def _build_event(event: ControlEvent) -> str:
    schema = dict(event.schema or {})
    parts = [f"## `{event.name}` {{ #{event.name} }}\n", f"{escape_markdown(event.summary)}"]
    if "description" in schema:
        parts.append(f" {escape_markdown(schema['description'])}")
    condition = _CONDITIONS.get(event.condition or "", "")
    parts.append(f" {condition} {_POSITIONS[event.position]}".replace("  ", " ") + "\n\n")
    members = schema.get("properties", {})
    if members:
        parts.append("| Member | Value |\n|---|---|\n")
        required = schema.get("required", ())
        for name, member in members.items():
            optional = "" if name in required else ", optional"
            parts.append(f"| `{name}` | {_describe(member)}{optional} |\n")
    return "".join([parts[0], "\n", *parts[1:]])


def _describe(member: dict[str, Any]) -> str:
    if "const" in member:
        return f"`{json.dumps(member['const'])}`"
    if "enum" in member:
        return ", ".join(f"`{json.dumps(value)}`" for value in member["enum"])
    if "anyOf" in member:
        return " or ".join(_describe(each) for each in member["anyOf"])
    kind = member.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_describe(member.get('items', {}))}"
    if kind == "object" and member.get("properties"):
        inner = "; ".join(f"`{n}`: {_describe(each)}" for n, each in member["properties"].items())
        return f"object ({inner})"
    return "text" if kind == "string" else str(kind)
