"""What messages hold, as JSON Schema: the contract that clients are written to.

Schemas are open: what is not named here may be added, and clients ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gateway.core.log.record import Reason

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {}


def members(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object; `required` are the members it always has."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


POSITION: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]+$",
    "description": "A resume token: give it back as Last-Event-ID or lastEventId.",
}
WHERE = {"topic": TEXT, "partition": COUNT}
_KEY = {"key": ref("bytes")}
_ENVELOPE = {
    **WHERE,
    "offset": COUNT,
    "timestamp": {"type": "integer", "description": "Milliseconds of the epoch, -1 for none."},
    "key": ref("bytes"),
    "value": ref("bytes"),
    "headers": {
        "type": "array",
        "items": {"type": "array", "minItems": 2, "items": [TEXT, ref("bytes")]},
    },
}

SCHEMAS: Mapping[str, Schema] = {
    "position": POSITION,
    "bytes": {
        "description": "UTF-8 text, or an object with the base64 of bytes that are no UTF-8.",
        "oneOf": [
            {"type": "string"},
            {"type": "null"},
            members({"base64": {"type": "string", "contentEncoding": "base64"}}),
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
    "envelope": {**members(_ENVELOPE), "description": "The whole record, exact to the byte."},
    "cloudevents": {
        **members(
            {each: {"type": "string", "minLength": 1} for each in ("id", "source", "type")}
            | {"specversion": TEXT},
            {
                "time": {"type": "string", "format": "date-time"},
                "subject": TEXT,
                "partitionkey": TEXT,
                "datacontenttype": TEXT,
                "data": ANY,
                "data_base64": {"type": "string", "contentEncoding": "base64"},
            },
        ),
        "description": "CloudEvents 1.0, JSON format.",
    },
    "begin": {
        **members(
            {
                "topics": {"type": "array", "items": TEXT},
                "partitions": {"type": "object", "additionalProperties": COUNT},
                "pending": {"type": "array", "items": members(WHERE)},
                "resume": {"enum": ["exact", "batch"]},
            },
            {"view": {"const": "changed"}, "changed": {"const": True}},
        ),
        "description": "The stream begins; `pending` partitions join with a `ready` each. "
        "`changed`: it goes on in place, and shows something else from here on.",
    },
    "ready": {
        **members({**WHERE, "offset": COUNT, "resolved": {"enum": ["exact", "approximate"]}}),
        "description": "A partition can be read (again), from `offset` on.",
    },
    "partitions-ready": {
        **members(
            {
                "topics": {
                    "type": "array",
                    "items": members(
                        {
                            "topic": TEXT,
                            "resolved": {"enum": ["exact", "approximate"]},
                            "partitions": {"type": "array", "items": COUNT},
                            "offsets": {"type": "array", "items": COUNT},
                        }
                    ),
                }
            }
        ),
        "description": "Partitions can be read (again), each from its offset on; sent in place of "
        "`ready` where ?grouped is asked for.",
    },
    "partitions-error": {
        **members(
            {
                "topics": {
                    "type": "array",
                    "items": members(
                        {
                            "topic": TEXT,
                            "code": TEXT,
                            "partitions": {"type": "array", "items": COUNT},
                        }
                    ),
                }
            }
        ),
        "description": "Partitions cannot be read for now; sent in place of `error` where ?grouped "
        "is asked for. The stream goes on.",
    },
    "gap": {
        **members(
            {
                "topic": or_null(TEXT),
                "partition": or_null(COUNT),
                "from": or_null(INTEGER),
                "to": or_null(INTEGER),
                "reason": {"enum": [str(reason) for reason in Reason]},
            }
        ),
        "description": "Records from `from` up to `to` are not sent: Kafka has them no more, or "
        "the reason says why. All null: the position that was given could not be used.",
    },
    "snapshot-end": {
        **members(
            {"topics": {"type": "array", "items": TEXT}, "records": COUNT},
            {"pending": {"type": "array", "items": members(WHERE)}},
        ),
        "description": "The latest record of each key was sent; what follows is live. `pending` "
        "partitions could not be read and come when they can.",
    },
    "error": {
        **members({"code": TEXT, "message": TEXT}, {**WHERE, "offset": COUNT, "retryAfter": COUNT}),
        "description": "The stream goes on; `code` is for programs, `message` for people. "
        "`retryAfter`: seconds until it is worth another try.",
    },
    "end": {
        **members({"reason": TEXT}),
        "description": "The last event; come back after the time of `retry:`, unless you are done.",
    },
    "challenge": {
        **members(
            {"guard": TEXT, "expires": {"type": "number", "description": "Seconds since 1970."}},
            {"url": {"type": "string", "format": "uri-reference"}},
        ),
        "description": "What lets you in is over at `expires`: POST to `url` with a new token, "
        "or send `token` over WebSocket, and the stream goes on.",
    },
    "delete-key": {**members(_KEY), "description": "A tombstone: this key is gone."},
    "delete-envelope": {
        "allOf": [ref("envelope"), {"properties": {"value": {"type": "null"}}}],
        "description": "A tombstone: the record's key is gone.",
    },
}
