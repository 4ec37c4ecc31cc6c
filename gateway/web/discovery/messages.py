"""Describe every message of every transport: its name, its payload, and when it is sent.

In JSON Schema draft-07 the siblings of a `$ref` are ignored, so that schemas with both use `allOf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.formats import FORMATS
from gateway.formats.event_schema import (
    ANY_SCHEMA,
    INTEGER_SCHEMA,
    PARTITION_MEMBERS,
    TEXT_SCHEMA,
    Schema,
    build_object_schema,
    build_ref,
)
from gateway.web.websocket.messages import MESSAGE_MODELS

from .schemas import build_schemas, list_delete_schemas, list_record_schemas


def build_message(
    name: str, payload: Schema, summary: str, content_type: str = "application/json"
) -> Schema:
    """Return a message object of AsyncAPI.

    Args:
        name: The name of the event or message.
        payload: The schema of its payload.
        summary: When it is sent.
        content_type: The content type of the payload.
    """
    return {"name": name, "contentType": content_type, "summary": summary, "payload": payload}


def build_sse_messages() -> dict[str, Schema]:
    """Return the messages of server-sent events, by id; the payload is the content of `data:`."""
    events = {
        "sse-begin": build_message(
            "begin", build_ref("begin"), "The first event; its id is the position."
        ),
        "sse-ready": build_message("ready", build_ref("ready"), "A partition can be read."),
        "sse-partitions-ready": build_message(
            "partitions-ready", build_ref("partitions-ready"), "Sent with ?grouped."
        ),
        "sse-partitions-error": build_message(
            "partitions-error", build_ref("partitions-error"), "Sent with ?grouped."
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
            "challenge", build_ref("challenge"), "A new token is needed."
        ),
        "sse-end": build_message("end", build_ref("end"), "The last event."),
        "sse-value-text": build_message(
            "message", build_ref("value-text"), "A record.", "text/plain"
        ),
        "sse-value-base64": build_message(
            "message", build_ref("value-base64"), "A record.", "text/plain"
        ),
    }
    for schema in ("value-json", "value-fields"):
        events[f"sse-{schema}"] = build_message("message", build_ref(schema), "A record.")
    for name, format in FORMATS.items():
        if format.schema is not None:
            events[f"sse-{name}"] = build_message(
                "message", build_ref(name), "A record.", format.media_type
            )
    for schema in list_delete_schemas():
        events[f"sse-{schema}"] = build_message("delete", build_ref(schema), "A tombstone.")
    return events


def build_ndjson_messages() -> dict[str, Schema]:
    """Return the messages of NDJSON, by id: one line each.

    A control line is an object with a member whose name begins with `@`.
    """
    position = {"@position": build_ref("position")}
    lines = {
        f"ndjson-{schema}": build_message("record", build_ref(schema), "A record: a line as it is.")
        for schema in list_record_schemas()
    }
    lines["ndjson-record"] = build_message(
        "@record",
        build_object_schema({"@record": ANY_SCHEMA}, position),
        "A record with its position, with ?positions.",
    )
    begin = {
        "allOf": [build_ref("begin"), build_object_schema({"position": build_ref("position")})]
    }
    lines["ndjson-begin"] = build_message(
        "@begin", build_object_schema({"@begin": begin}), "With ?positions."
    )
    lines["ndjson-position"] = build_message(
        "@position", build_object_schema(position), "With ?positions: it moved."
    )
    all_schemas = build_schemas()
    for name in ("ready", "partitions-ready", "gap", "snapshot-end", "error", "partitions-error"):
        line = build_object_schema({f"@{name}": build_ref(name)}, position)
        lines[f"ndjson-{name}"] = build_message(f"@{name}", line, all_schemas[name]["description"])
    line = build_object_schema({"@challenge": build_ref("challenge")})
    lines["ndjson-challenge"] = build_message("@challenge", line, "A new token is needed.")
    for schema in list_delete_schemas():
        line = build_object_schema({"@delete": build_ref(schema)}, position)
        lines[f"ndjson-{schema}"] = build_message("@delete", line, "A tombstone.")
    end = {"allOf": [build_ref("end"), build_object_schema({"position": build_ref("position")})]}
    lines["ndjson-end"] = build_message(
        "@end", build_object_schema({"@end": end}), "Always the last line."
    )
    return lines


_ID_SCHEMA: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The subscription; absent if the socket is the path of a single stream.",
}


def _build_websocket_schema(
    message_type: str,
    required: Mapping[str, Schema] | None = None,
    optional: Mapping[str, Schema] | None = None,
    *,
    base_schema: str | None = None,
) -> Schema:
    """Return the schema of a WebSocket message.

    Args:
        message_type: Its `type`.
        required: The members that it always has.
        optional: The members that it may have.
        base_schema: The name of a schema that its members also follow.
    """
    own_schema = build_object_schema(
        {"type": {"const": message_type}, **(required or {})},
        {"id": _ID_SCHEMA, **(optional or {})},
    )
    return own_schema if base_schema is None else {"allOf": [own_schema, build_ref(base_schema)]}


def build_server_messages() -> dict[str, Schema]:
    """Return the WebSocket messages that the gateway sends, by id."""
    position = {"position": build_ref("position")}
    schemas = {
        "begin": _build_websocket_schema("begin", position, base_schema="begin"),
        "ready": _build_websocket_schema("ready", None, position, base_schema="ready"),
        "partitions-ready": _build_websocket_schema(
            "partitions-ready", None, position, base_schema="partitions-ready"
        ),
        "partitions-error": _build_websocket_schema(
            "partitions-error", None, position, base_schema="partitions-error"
        ),
        "gap": _build_websocket_schema("gap", None, position, base_schema="gap"),
        "snapshot-end": _build_websocket_schema(
            "snapshot-end", position, base_schema="snapshot-end"
        ),
        "position": _build_websocket_schema("position", position),
        "error": _build_websocket_schema("error", None, position, base_schema="error"),
        "end": _build_websocket_schema("end", position, base_schema="end"),
        "produced": _build_websocket_schema(
            "produced",
            {"id": TEXT_SCHEMA, **PARTITION_MEMBERS, "offset": INTEGER_SCHEMA},
            {"repeated": {"const": True}},
        ),
        "challenge": _build_websocket_schema("challenge", base_schema="challenge"),
        "renewed": _build_websocket_schema("renewed"),
        "pong": _build_websocket_schema("pong"),
    }
    for schema in list_record_schemas():
        records = {"type": "array", "items": build_ref(schema)}
        schemas[f"records-{schema}"] = _build_websocket_schema(
            "records", {"records": records}, position
        )
    for schema in list_delete_schemas():
        schemas[schema] = _build_websocket_schema("delete", {"record": build_ref(schema)}, position)
    return _build_websocket_messages(schemas)


def build_client_messages() -> dict[str, Schema]:
    """Return the WebSocket messages that clients send, by id, from the models that parse them."""
    return _build_websocket_messages(
        {name: _remove_titles(model.model_json_schema()) for name, model in MESSAGE_MODELS.items()}
    )


def _remove_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_remove_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _remove_titles(member) for name, member in schema.items() if name != "title"}


def _build_websocket_messages(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return messages by id; their name is the `type` that programs switch on."""
    websocket_messages, all_schemas = {}, build_schemas()
    for name, schema in schemas.items():
        own_schema = schema["allOf"][0] if "allOf" in schema else schema
        message_type = own_schema["properties"]["type"]["const"]
        summary = _SUMMARIES.get(message_type) or all_schemas[message_type]["description"]
        websocket_messages[f"websocket-{name}"] = build_message(message_type, schema, summary)
    return websocket_messages


_SUMMARIES = {
    "records": "Records, and the position after the last of them.",
    "delete": "A tombstone.",
    "position": "The position of an idle stream moved.",
    "produced": "The record is in Kafka; `repeated`: it was there before.",
    "renewed": "The new token is accepted.",
    "pong": "The answer to `ping`.",
    "subscribe": "Begin a stream, by the path of a route.",
    "change": "Another path, filter or fields for a running stream; what is absent stays.",
    "unsubscribe": "End a stream.",
    "credit": "This many more records may be sent.",
    "produce": "Write a record; with an idempotency key it may be repeated.",
    "token": "A new token before the old one expires.",
    "ping": "Are you there? For browsers, which cannot see the pings of the protocol.",
}
