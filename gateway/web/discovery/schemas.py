"""Define the payloads of messages as JSON Schema: the contract that clients are written to.

Schemas are open: members that are not named here may be added, and clients must ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gateway.core.log.record import GapReason

Schema: TypeAlias = dict[str, Any]

TEXT_SCHEMA: Schema = {"type": "string"}
INTEGER_SCHEMA: Schema = {"type": "integer"}
COUNT_SCHEMA: Schema = {"type": "integer", "minimum": 0}
ANY_SCHEMA: Schema = {}


def build_object_schema(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    """Return the schema of an object.

    Args:
        required: The members that it always has.
        optional: The members that it may have.
    """
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def build_ref(name: str) -> Schema:
    """Return a reference to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def make_nullable(schema: Schema) -> Schema:
    """Return a schema that also allows null."""
    return {**schema, "type": [schema["type"], "null"]}


POSITION_SCHEMA: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]+$",
    "description": "A resume token: give it back as Last-Event-ID or lastEventId.",
}
PARTITION_MEMBERS = {"topic": TEXT_SCHEMA, "partition": COUNT_SCHEMA}
_KEY_MEMBERS = {"key": build_ref("bytes")}
_ENVELOPE_MEMBERS = {
    **PARTITION_MEMBERS,
    "offset": COUNT_SCHEMA,
    "timestamp": {"type": "integer", "description": "Milliseconds since 1970, -1 for none."},
    "key": build_ref("bytes"),
    "value": build_ref("bytes"),
    "headers": {
        "type": "array",
        "items": {"type": "array", "minItems": 2, "items": [TEXT_SCHEMA, build_ref("bytes")]},
    },
}

SCHEMAS: Mapping[str, Schema] = {
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
    "envelope": {
        **build_object_schema(_ENVELOPE_MEMBERS),
        "description": "The whole record, exact to the byte.",
    },
    "cloudevents": {
        **build_object_schema(
            {name: {"type": "string", "minLength": 1} for name in ("id", "source", "type")}
            | {"specversion": TEXT_SCHEMA},
            {
                "time": {"type": "string", "format": "date-time"},
                "subject": TEXT_SCHEMA,
                "partitionkey": TEXT_SCHEMA,
                "datacontenttype": TEXT_SCHEMA,
                "data": ANY_SCHEMA,
                "data_base64": {"type": "string", "contentEncoding": "base64"},
            },
        ),
        "description": "CloudEvents 1.0, JSON format.",
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
    "delete-envelope": {
        "allOf": [build_ref("envelope"), {"properties": {"value": {"type": "null"}}}],
        "description": "A tombstone: the record's key is gone.",
    },
}
