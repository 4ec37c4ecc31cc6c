"""Describe every message of every transport as JSON Schema, and name the guards' schemes.

The payloads are the contract that clients are written to. Schemas are open: members that are not
named here may be added, and clients must ignore them. In JSON Schema draft-07 the siblings of a
`$ref` are ignored, so that schemas with both use `allOf`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.config import Settings
from gateway.formats import FORMATS
from gateway.formats.event import (
    ANY_SCHEMA,
    INTEGER_SCHEMA,
    PARTITION_MEMBERS,
    POSITION_SCHEMA,
    TEXT_SCHEMA,
    Schema,
    build_object_schema,
    build_ref,
)
from gateway.hub.wires.control_events import CONTROL_EVENTS, ControlEvent
from gateway.web.access.admission import get_guard_class
from gateway.web.access.guard import SecurityScheme
from gateway.web.routing.messages import MESSAGE_MODELS

_KEY_MEMBERS = {"key": build_ref("bytes")}
_SCHEMAS: Mapping[str, Schema] = {
    "position": POSITION_SCHEMA,
    "bytes": {
        "description": "UTF-8 text, or an object with the base64 of bytes that are not UTF-8.",
        "oneOf": [
            {"type": "string"},
            {"type": "null"},
            build_object_schema({"base64": {"type": "string", "contentEncoding": "base64"}}),
        ],
    },
    "value-text": {"type": "string", "description": "The record's value, text as it is."},
    "value-base64": {"type": "string", "contentEncoding": "base64"},
    "value-json": {"description": "The record's value, which is JSON."},
    "value-any": {
        "description": "The record's value: JSON as it is, any other text as a JSON string."
    },
    "value-fields": {
        "type": ["object", "null"],
        "description": "The chosen members of the value; null if it is no JSON object.",
    },
    "delete-key": {
        **build_object_schema(_KEY_MEMBERS),
        "description": "A tombstone: this key is gone.",
    },
}


def build_schemas() -> dict[str, Schema]:
    schemas = dict(_SCHEMAS)
    for event in CONTROL_EVENTS.values():
        if event.schema is not None:
            schemas[event.name] = dict(event.schema)
    for name, format in FORMATS.items():
        if format.schema is not None:
            schemas[name] = dict(format.schema)
        if format.delete_schema is not None:
            schemas[f"delete-{name}"] = dict(format.delete_schema)
    return schemas


def list_record_schemas() -> tuple[str, ...]:
    """Return the names of schemas of records in NDJSON and WebSocket messages, which are JSON."""
    named = [name for name, format in FORMATS.items() if format.schema is not None]
    return ("value-any", "value-fields", "value-base64", *named)


def list_delete_schemas() -> tuple[str, ...]:
    named = [name for name, format in FORMATS.items() if format.delete_schema is not None]
    return ("delete-key", *[f"delete-{name}" for name in named])


def get_delete_schema(format: str) -> str:
    return "delete-key" if FORMATS[format].delete_schema is None else f"delete-{format}"


def build_message(
    name: str, payload: Schema, summary: str, content_type: str = "application/json"
) -> Schema:
    return {"name": name, "contentType": content_type, "summary": summary, "payload": payload}


def build_sse_messages() -> dict[str, Schema]:
    """Return the messages of server-sent events, by id; the payload is the content of `data:`."""
    events = {
        **{
            f"sse-{event.name}": build_message(event.name, _get_data_schema(event), event.summary)
            for event in CONTROL_EVENTS.values()
        },
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
    for event in CONTROL_EVENTS.values():
        lines[f"ndjson-{event.name}"] = build_message(
            f"@{event.name}", _build_line_schema(event), _get_line_summary(event)
        )
    for schema in list_delete_schemas():
        line = build_object_schema({"@delete": build_ref(schema)}, position)
        lines[f"ndjson-{schema}"] = build_message("@delete", line, "A tombstone.")
    return lines


def _get_data_schema(event: ControlEvent) -> Schema:
    return build_object_schema({}) if event.schema is None else build_ref(event.name)


def _build_line_schema(event: ControlEvent) -> Schema:
    position = {"@position": build_ref("position")}
    if event.schema is None:
        return build_object_schema(position)
    data = build_ref(event.name)
    if event.position == "data":
        data = {"allOf": [data, build_object_schema({"position": build_ref("position")})]}
    members = {f"@{event.name}": data}
    has_position = event.position in ("always", "sometimes")
    return build_object_schema(members, position if has_position else None)


def _get_line_summary(event: ControlEvent) -> str:
    summaries = {
        "begin": "With ?positions.",
        "position": "With ?positions: it moved.",
        "end": "Always the last line.",
        "challenge": event.summary,
    }
    return summaries.get(event.name) or _get_description(event)


def _get_description(event: ControlEvent) -> str:
    return event.summary if event.schema is None else str(event.schema["description"])


def _build_event_message(event: ControlEvent) -> Schema:
    position = {"position": build_ref("position")}
    return _build_websocket_schema(
        event.name,
        position if event.position in ("always", "data") else None,
        position if event.position == "sometimes" else None,
        base_schema=None if event.schema is None else event.name,
    )


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
    """Return the schema of a WebSocket message, which also follows `base_schema`."""
    own_schema = build_object_schema(
        {"type": {"const": message_type}, **(required or {})},
        {"id": _ID_SCHEMA, **(optional or {})},
    )
    return own_schema if base_schema is None else {"allOf": [own_schema, build_ref(base_schema)]}


def build_server_messages() -> dict[str, Schema]:
    position = {"position": build_ref("position")}
    schemas = {
        **{event.name: _build_event_message(event) for event in CONTROL_EVENTS.values()},
        "produced": _build_websocket_schema(
            "produced",
            {"id": TEXT_SCHEMA, **PARTITION_MEMBERS, "offset": INTEGER_SCHEMA},
            {"repeated": {"const": True}},
        ),
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
    if isinstance(schema, list):
        return [_remove_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _remove_titles(member) for name, member in schema.items() if name != "title"}


def _build_websocket_messages(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return messages by id; their name is the `type` that programs switch on."""
    websocket_messages = {}
    for name, schema in schemas.items():
        own_schema = schema["allOf"][0] if "allOf" in schema else schema
        message_type = own_schema["properties"]["type"]["const"]
        summary = _SUMMARIES.get(message_type) or _get_description(CONTROL_EVENTS[message_type])
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


def build_security_schemes(settings: Settings) -> Mapping[str, Mapping[str, SecurityScheme]]:
    """Return the schemes by guard, under names that are unique and allowed in a document."""
    guard_names = {name for route in settings.routes for name in route.guarded}
    taken: set[str] = set()
    return {
        name: {
            _choose_unique_name(name, taken): scheme
            for scheme in get_guard_class(settings.guards[name]).describe(settings.guards[name])
        }
        for name in sorted(guard_names)
    }


def _choose_unique_name(name: str, taken: set[str]) -> str:
    slug = unique_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    number = 1
    while unique_name in taken:
        number += 1
        unique_name = f"{slug}-{number}"
    taken.add(unique_name)
    return unique_name
