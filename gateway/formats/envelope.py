"""Encode the whole record as one JSON object, exact to the byte: the format `envelope`.

The timestamp is in milliseconds since 1970 (-1 for none), headers are a list of `[name, value]`.
Keys and values, also those of headers, follow the rule of `formats.event`. A tombstone is the event
`delete` with the same object, whose value is null.
"""

from __future__ import annotations

import orjson

from gateway.core.log.record import Record

from .event import DELETE_EVENT, EventFormat, Payload, bytes_to_json
from .event_schema import (
    COUNT_SCHEMA,
    PARTITION_MEMBERS,
    TEXT_SCHEMA,
    build_object_schema,
    build_ref,
)


def encode_envelope(record: Record) -> Payload:
    (topic, partition), offset, _, timestamp, key, value, headers = record
    data = orjson.dumps(
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": bytes_to_json(key),
            "value": bytes_to_json(value),
            "headers": [(name, bytes_to_json(content)) for name, content in headers],
        }
    )
    return (DELETE_EVENT if value is None else None), data


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
_SCHEMA = {
    **build_object_schema(_ENVELOPE_MEMBERS),
    "description": "The whole record, exact to the byte.",
}
ENVELOPE = EventFormat(
    lambda binary: encode_envelope,
    _SCHEMA,
    delete_schema={
        "allOf": [build_ref("envelope"), {"properties": {"value": {"type": "null"}}}],
        "description": "A tombstone: the record's key is gone.",
    },
)
