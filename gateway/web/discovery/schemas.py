"""Define the payloads of messages as JSON Schema: the contract that clients are written to.

Schemas are open: members that are not named here may be added, and clients must ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.log.record import GapReason
from gateway.formats import FORMATS
from gateway.formats.event_schema import (
    COUNT_SCHEMA,
    INTEGER_SCHEMA,
    PARTITION_MEMBERS,
    POSITION_SCHEMA,
    TEXT_SCHEMA,
    Schema,
    build_object_schema,
    build_ref,
    make_nullable,
)

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
    "begin": {
        **build_object_schema(
            {
                "topics": {"type": "array", "items": TEXT_SCHEMA},
                "partitions": {"type": "object", "additionalProperties": COUNT_SCHEMA},
                "pending": {"type": "array", "items": build_object_schema(PARTITION_MEMBERS)},
                "resume": {"enum": ["exact", "batch"]},
            },
            {"view": {"const": "changed"}, "changed": {"const": True}},
        ),
        "description": "The stream begins; `pending` partitions join with a `ready` each. "
        "`changed`: it goes on in place, and shows something else from here on.",
    },
    "ready": {
        **build_object_schema(
            {
                **PARTITION_MEMBERS,
                "offset": COUNT_SCHEMA,
                "resolved": {"enum": ["exact", "approximate"]},
            }
        ),
        "description": "A partition can be read (again), from `offset` on.",
    },
    "partitions-ready": {
        **build_object_schema(
            {
                "topics": {
                    "type": "array",
                    "items": build_object_schema(
                        {
                            "topic": TEXT_SCHEMA,
                            "resolved": {"enum": ["exact", "approximate"]},
                            "partitions": {"type": "array", "items": COUNT_SCHEMA},
                            "offsets": {"type": "array", "items": COUNT_SCHEMA},
                        }
                    ),
                }
            }
        ),
        "description": "Partitions can be read (again), each from its offset on; sent in place of "
        "`ready` with ?grouped.",
    },
    "partitions-error": {
        **build_object_schema(
            {
                "topics": {
                    "type": "array",
                    "items": build_object_schema(
                        {
                            "topic": TEXT_SCHEMA,
                            "code": TEXT_SCHEMA,
                            "partitions": {"type": "array", "items": COUNT_SCHEMA},
                        }
                    ),
                }
            }
        ),
        "description": "Partitions cannot be read for now; sent in place of `error` with "
        "?grouped. The stream goes on.",
    },
    "gap": {
        **build_object_schema(
            {
                "topic": make_nullable(TEXT_SCHEMA),
                "partition": make_nullable(COUNT_SCHEMA),
                "from": make_nullable(INTEGER_SCHEMA),
                "to": make_nullable(INTEGER_SCHEMA),
                "reason": {"enum": [str(reason) for reason in GapReason]},
            }
        ),
        "description": "Records from `from` up to `to` are not sent: Kafka no longer has them, or "
        "the reason says why. All null: the position of the request could not be used.",
    },
    "snapshot-end": {
        **build_object_schema(
            {"topics": {"type": "array", "items": TEXT_SCHEMA}, "records": COUNT_SCHEMA},
            {"pending": {"type": "array", "items": build_object_schema(PARTITION_MEMBERS)}},
        ),
        "description": "The latest record of each key was sent; what follows is live. `pending` "
        "partitions could not be read and come when they can.",
    },
    "error": {
        **build_object_schema(
            {"code": TEXT_SCHEMA, "message": TEXT_SCHEMA},
            {**PARTITION_MEMBERS, "offset": COUNT_SCHEMA, "retryAfter": COUNT_SCHEMA},
        ),
        "description": "The stream goes on; `code` is for programs, `message` for people. "
        "`retryAfter`: seconds until trying again makes sense.",
    },
    "end": {
        **build_object_schema({"reason": TEXT_SCHEMA}),
        "description": "The last event; connect again after the time of `retry:`, "
        "unless you are done.",
    },
    "challenge": {
        **build_object_schema(
            {
                "guard": TEXT_SCHEMA,
                "expires": {"type": "number", "description": "Seconds since 1970."},
            },
            {"url": {"type": "string", "format": "uri-reference"}},
        ),
        "description": "Your access expires at `expires`: POST to `url` with a new token, "
        "or send `token` over WebSocket, and the stream goes on.",
    },
    "delete-key": {
        **build_object_schema(_KEY_MEMBERS),
        "description": "A tombstone: this key is gone.",
    },
}


def build_schemas() -> dict[str, Schema]:
    """Return all schemas that messages refer to, by name."""
    schemas = dict(_SCHEMAS)
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
    """Return the names of schemas of tombstones."""
    named = [name for name, format in FORMATS.items() if format.delete_schema is not None]
    return ("delete-key", *[f"delete-{name}" for name in named])


def get_delete_schema(format: str) -> str:
    """Return the name of the schema of tombstones in a format."""
    return "delete-key" if FORMATS[format].delete_schema is None else f"delete-{format}"
