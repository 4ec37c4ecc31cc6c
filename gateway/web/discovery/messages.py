"""Every message of every transport: its name, what it holds, and when it comes.

In JSON Schema draft-07 whatever stands beside a `$ref` is ignored; hence the `allOf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.web.websocket.messages import MESSAGE_MODELS

from .schemas import (
    ANY_SCHEMA,
    INTEGER_SCHEMA,
    PARTITION_MEMBERS,
    SCHEMAS,
    TEXT_SCHEMA,
    Schema,
    build_object_schema,
    build_ref,
)


def build_message(
    name: str, payload: Schema, summary: str, content_type: str = "application/json"
) -> Schema:
    return {"name": name, "contentType": content_type, "summary": summary, "payload": payload}


def build_sse_messages() -> dict[str, Schema]:
    """Messages named by their event; the payload is what `data:` holds."""
    told = {
        "sse-begin": build_message(
            "begin", build_ref("begin"), "The first event; its id is the position."
        ),
        "sse-ready": build_message("ready", build_ref("ready"), "A partition can be read."),
        "sse-partitions-ready": build_message(
            "partitions-ready", build_ref("partitions-ready"), "Where ?grouped is asked for."
        ),
        "sse-partitions-error": build_message(
            "partitions-error", build_ref("partitions-error"), "Where ?grouped is asked for."
        ),
        "sse-gap": build_message("gap", build_ref("gap"), "Records that are not sent."),
        "sse-position": build_message(
            "position", build_object_schema({}), "The position moved: see the id."
        ),
        "sse-snapshot-end": build_message(
            "snapshot-end", build_ref("snapshot-end"), "What follows is live."
        ),
        "sse-error": build_message(
            "error", build_ref("error"), "Something could not be read or shown."
        ),
        "sse-challenge": build_message(
            "challenge", build_ref("challenge"), "A new token is wanted."
        ),
        "sse-end": build_message("end", build_ref("end"), "The last event."),
        "sse-value-text": build_message(
            "message", build_ref("value-text"), "A record.", "text/plain"
        ),
        "sse-value-base64": build_message(
            "message", build_ref("value-base64"), "A record.", "text/plain"
        ),
    }
    for form in ("value-json", "value-fields", "envelope"):
        told[f"sse-{form}"] = build_message("message", build_ref(form), "A record.")
    cloud = "application/cloudevents+json"
    told["sse-cloudevents"] = build_message("message", build_ref("cloudevents"), "A record.", cloud)
    for form in ("key", "envelope"):
        told[f"sse-delete-{form}"] = build_message(
            "delete", build_ref(f"delete-{form}"), "A tombstone."
        )
    return told


def build_ndjson_messages() -> dict[str, Schema]:
    """One line each. Lines of control have one member that begins with `@`."""
    at = {"@position": build_ref("position")}
    told = {
        f"ndjson-{form}": build_message("record", build_ref(form), "A record: a line as it is.")
        for form in RECORD_SCHEMAS
    }
    told["ndjson-record"] = build_message(
        "@record",
        build_object_schema({"@record": ANY_SCHEMA}, at),
        "A record, where ?positions is asked for.",
    )
    positioned = {
        "allOf": [build_ref("begin"), build_object_schema({"position": build_ref("position")})]
    }
    told["ndjson-begin"] = build_message(
        "@begin", build_object_schema({"@begin": positioned}), "With ?positions."
    )
    told["ndjson-position"] = build_message(
        "@position", build_object_schema(at), "With ?positions: it moved."
    )
    for name in ("ready", "partitions-ready", "gap", "snapshot-end", "error", "partitions-error"):
        line = build_object_schema({f"@{name}": build_ref(name)}, at)
        told[f"ndjson-{name}"] = build_message(f"@{name}", line, SCHEMAS[name]["description"])
    line = build_object_schema({"@challenge": build_ref("challenge")})
    told["ndjson-challenge"] = build_message("@challenge", line, "A new token is wanted.")
    for form in ("key", "envelope"):
        line = build_object_schema({"@delete": build_ref(f"delete-{form}")}, at)
        told[f"ndjson-delete-{form}"] = build_message("@delete", line, "A tombstone.")
    end = {"allOf": [build_ref("end"), build_object_schema({"position": build_ref("position")})]}
    told["ndjson-end"] = build_message(
        "@end", build_object_schema({"@end": end}), "Always the last line."
    )
    return told


RECORD_SCHEMAS = ("value-any", "value-fields", "value-base64", "envelope", "cloudevents")
"""Records as NDJSON and WebSocket have them: JSON, whatever the transport."""

_ID_SCHEMA: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The subscription; absent where the socket is one stream's own path.",
}


def _build_websocket_schema(
    message_type: str,
    required: Mapping[str, Schema] | None = None,
    optional: Mapping[str, Schema] | None = None,
    *,
    base_schema: str | None = None,
) -> Schema:
    """A message of a WebSocket; like: the schema that its members also follow."""
    framed = build_object_schema(
        {"type": {"const": message_type}, **(required or {})},
        {"id": _ID_SCHEMA, **(optional or {})},
    )
    return framed if base_schema is None else {"allOf": [framed, build_ref(base_schema)]}


def build_server_messages() -> dict[str, Schema]:
    at = {"position": build_ref("position")}
    told = {
        "begin": _build_websocket_schema("begin", at, base_schema="begin"),
        "ready": _build_websocket_schema("ready", None, at, base_schema="ready"),
        "partitions-ready": _build_websocket_schema(
            "partitions-ready", None, at, base_schema="partitions-ready"
        ),
        "partitions-error": _build_websocket_schema(
            "partitions-error", None, at, base_schema="partitions-error"
        ),
        "gap": _build_websocket_schema("gap", None, at, base_schema="gap"),
        "snapshot-end": _build_websocket_schema("snapshot-end", at, base_schema="snapshot-end"),
        "position": _build_websocket_schema("position", at),
        "error": _build_websocket_schema("error", None, at, base_schema="error"),
        "end": _build_websocket_schema("end", at, base_schema="end"),
        "produced": _build_websocket_schema(
            "produced",
            {"id": TEXT_SCHEMA, **PARTITION_MEMBERS, "offset": INTEGER_SCHEMA},
            {"repeated": {"const": True}},
        ),
        "challenge": _build_websocket_schema("challenge", base_schema="challenge"),
        "renewed": _build_websocket_schema("renewed"),
        "pong": _build_websocket_schema("pong"),
    }
    for form in RECORD_SCHEMAS:
        records = {"type": "array", "items": build_ref(form)}
        told[f"records-{form}"] = _build_websocket_schema("records", {"records": records}, at)
    for form in ("key", "envelope"):
        told[f"delete-{form}"] = _build_websocket_schema(
            "delete", {"record": build_ref(f"delete-{form}")}, at
        )
    return _build_websocket_messages(told)


def build_client_messages() -> dict[str, Schema]:
    """Those that are read: their own models say what they hold."""
    return _build_websocket_messages(
        {name: _remove_titles(kind.model_json_schema()) for name, kind in MESSAGE_MODELS.items()}
    )


def _remove_titles(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_remove_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _remove_titles(each) for name, each in schema.items() if name != "title"}


def _build_websocket_messages(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """By id; the name is the `type` that programs switch on."""
    told = {}
    for name, schema in schemas.items():
        framed = schema["allOf"][0] if "allOf" in schema else schema
        kind = framed["properties"]["type"]["const"]
        summary = _SUMMARIES.get(kind) or SCHEMAS[kind]["description"]
        told[f"websocket-{name}"] = build_message(kind, schema, summary)
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
