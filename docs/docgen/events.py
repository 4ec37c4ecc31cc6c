"""Write the reference of events, from the classes that define them for all wires."""

from __future__ import annotations

import json
from typing import Any

from gateway.hub.wires.control_events import CONTROL_EVENTS, ControlEvent

from .markdown import escape_markdown

_INTRODUCTION = """\
# Events

A stream is made of records and of these control events; `begin` is the first, `end` the last. An
SSE event has the name in `event:` and the data in `data:`, a line of NDJSON is `{"@NAME": DATA}`,
and a WebSocket message has the name as its `type`, beside the members of the data.

A record is an SSE event without a name (`message`), a line without `@`, and one of `records` in a
WebSocket message. A record without a value (a tombstone) is `delete`, with the data `{"key": KEY}`.

"""

_CONDITIONS = {
    "snapshot": "Only routes with `mode: snapshot` send it.",
    "challenge": "Only routes with a guard that has a `challenge` send it.",
}


def build_events_page() -> str:
    """Return the page."""
    always, never = (
        ", ".join(f"`{e.name}`" for e in CONTROL_EVENTS.values() if e.position in positions)
        for positions in (("always", "data"), ("never",))
    )
    rule = f"A position goes with {always}, not with {never}, and may go with the others.\n"
    return "\n".join([_INTRODUCTION + rule, *map(_build_event, CONTROL_EVENTS.values())])


def _build_event(event: ControlEvent) -> str:
    schema = dict(event.schema or {})
    sentences = [
        escape_markdown(str(schema.get("description", event.summary))),
        _CONDITIONS.get(event.condition or "", ""),
    ]
    parts = [f"## `{event.name}`\n\n{' '.join(filter(None, sentences))}\n"]
    required = schema.get("required", ())
    members = [
        f"- `{name}`: {_describe(member)}{'' if name in required else ', optional'}\n"
        for name, member in schema.get("properties", {}).items()
    ]
    return "\n".join([*parts, "".join(members)]) if members else parts[0]


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
