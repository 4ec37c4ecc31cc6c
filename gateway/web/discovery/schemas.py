"""Define the payloads of messages as JSON Schema: the contract that clients are written to.

Schemas are open: members that are not named here may be added, and clients must ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.formats import FORMATS
from gateway.formats.event_schema import (
    POSITION_SCHEMA,
    Schema,
    build_object_schema,
    build_ref,
)
from gateway.hub.wires.control_events import CONTROL_EVENTS

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
