"""Every message of every transport: its name, what it holds, and when it comes.

In JSON Schema draft-07 whatever stands beside a `$ref` is ignored; hence the `allOf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.web.websocket.messages import KINDS

from .schemas import ANY, INTEGER, SCHEMAS, TEXT, WHERE, Schema, members, ref


def message(name: str, payload: Schema, summary: str, content: str = "application/json") -> Schema:
    return {"name": name, "contentType": content, "summary": summary, "payload": payload}


def sse() -> dict[str, Schema]:
    """Messages named by their event; the payload is what `data:` holds."""
    told = {
        "sse-begin": message("begin", ref("begin"), "The first event; its id is the position."),
        "sse-ready": message("ready", ref("ready"), "A partition can be read."),
        "sse-partitions-ready": message(
            "partitions-ready", ref("partitions-ready"), "Where ?grouped is asked for."
        ),
        "sse-partitions-error": message(
            "partitions-error", ref("partitions-error"), "Where ?grouped is asked for."
        ),
        "sse-gap": message("gap", ref("gap"), "Records that are not sent."),
        "sse-position": message("position", members({}), "The position moved: see the id."),
        "sse-snapshot-end": message("snapshot-end", ref("snapshot-end"), "What follows is live."),
        "sse-error": message("error", ref("error"), "Something could not be read or shown."),
        "sse-challenge": message("challenge", ref("challenge"), "A new token is wanted."),
        "sse-end": message("end", ref("end"), "The last event."),
        "sse-value-text": message("message", ref("value-text"), "A record.", "text/plain"),
        "sse-value-base64": message("message", ref("value-base64"), "A record.", "text/plain"),
    }
    for form in ("value-json", "value-fields", "envelope"):
        told[f"sse-{form}"] = message("message", ref(form), "A record.")
    cloud = "application/cloudevents+json"
    told["sse-cloudevents"] = message("message", ref("cloudevents"), "A record.", cloud)
    for form in ("key", "envelope"):
        told[f"sse-delete-{form}"] = message("delete", ref(f"delete-{form}"), "A tombstone.")
    return told


def ndjson() -> dict[str, Schema]:
    """One line each. Lines of control have one member that begins with `@`."""
    at = {"@position": ref("position")}
    told = {
        f"ndjson-{form}": message("record", ref(form), "A record: a line as it is.")
        for form in FORMS
    }
    told["ndjson-record"] = message(
        "@record", members({"@record": ANY}, at), "A record, where ?positions is asked for."
    )
    positioned = {"allOf": [ref("begin"), members({"position": ref("position")})]}
    told["ndjson-begin"] = message("@begin", members({"@begin": positioned}), "With ?positions.")
    told["ndjson-position"] = message("@position", members(at), "With ?positions: it moved.")
    for name in ("ready", "partitions-ready", "gap", "snapshot-end", "error", "partitions-error"):
        line = members({f"@{name}": ref(name)}, at)
        told[f"ndjson-{name}"] = message(f"@{name}", line, SCHEMAS[name]["description"])
    line = members({"@challenge": ref("challenge")})
    told["ndjson-challenge"] = message("@challenge", line, "A new token is wanted.")
    for form in ("key", "envelope"):
        line = members({"@delete": ref(f"delete-{form}")}, at)
        told[f"ndjson-delete-{form}"] = message("@delete", line, "A tombstone.")
    end = {"allOf": [ref("end"), members({"position": ref("position")})]}
    told["ndjson-end"] = message("@end", members({"@end": end}), "Always the last line.")
    return told


FORMS = ("value-any", "value-fields", "value-base64", "envelope", "cloudevents")
"""Records as NDJSON and WebSocket have them: JSON, whatever the transport."""

_ID: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The subscription; absent where the socket is one stream's own path.",
}


def _framed(
    kind: str,
    required: Mapping[str, Schema] | None = None,
    optional: Mapping[str, Schema] | None = None,
    *,
    like: str | None = None,
) -> Schema:
    """A message of a WebSocket; like: the schema that its members also follow."""
    framed = members({"type": {"const": kind}, **(required or {})}, {"id": _ID, **(optional or {})})
    return framed if like is None else {"allOf": [framed, ref(like)]}


def from_server() -> dict[str, Schema]:
    at = {"position": ref("position")}
    told = {
        "begin": _framed("begin", at, like="begin"),
        "ready": _framed("ready", None, at, like="ready"),
        "partitions-ready": _framed("partitions-ready", None, at, like="partitions-ready"),
        "partitions-error": _framed("partitions-error", None, at, like="partitions-error"),
        "gap": _framed("gap", None, at, like="gap"),
        "snapshot-end": _framed("snapshot-end", at, like="snapshot-end"),
        "position": _framed("position", at),
        "error": _framed("error", None, at, like="error"),
        "end": _framed("end", at, like="end"),
        "produced": _framed(
            "produced",
            {"id": TEXT, **WHERE, "offset": INTEGER},
            {"repeated": {"const": True}},
        ),
        "challenge": _framed("challenge", like="challenge"),
        "renewed": _framed("renewed"),
        "pong": _framed("pong"),
    }
    for form in FORMS:
        records = {"type": "array", "items": ref(form)}
        told[f"records-{form}"] = _framed("records", {"records": records}, at)
    for form in ("key", "envelope"):
        told[f"delete-{form}"] = _framed("delete", {"record": ref(f"delete-{form}")}, at)
    return _messages(told)


def to_server() -> dict[str, Schema]:
    """Those that are read: their own models say what they hold."""
    return _messages({name: _untitled(kind.model_json_schema()) for name, kind in KINDS.items()})


def _untitled(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _untitled(each) for name, each in schema.items() if name != "title"}


def _messages(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """By id; the name is the `type` that programs switch on."""
    told = {}
    for name, schema in schemas.items():
        framed = schema["allOf"][0] if "allOf" in schema else schema
        kind = framed["properties"]["type"]["const"]
        summary = _SUMMARIES.get(kind) or SCHEMAS[kind]["description"]
        told[f"websocket-{name}"] = message(kind, schema, summary)
    return told


_SUMMARIES = {
    "records": "Records, and the position after the last of them.",
    "delete": "A tombstone.",
    "position": "An idle stream's position moved.",
    "produced": "The record is in Kafka; `repeated`: it was before.",
    "renewed": "The new token is taken.",
    "pong": "The answer to `ping`.",
    "subscribe": "Begin a stream, by the path of a route.",
    "change": "Another path, filter or fields for a running stream; what is absent stays.",
    "unsubscribe": "End a stream.",
    "credit": "So many more records may be sent.",
    "produce": "Write a record; with an idempotency key it may be repeated.",
    "token": "A new token before the old one expires.",
    "ping": "Are you there? For browsers, which cannot see the pings of the protocol.",
}
