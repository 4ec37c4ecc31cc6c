"""Define what an event format is, what all formats share, and the format `envelope`.

Bytes become JSON by one rule that a client can undo without guessing. A string is the UTF-8 text of
the bytes, `{"base64": "..."}` stands for bytes that are not UTF-8, and null is null. Bytes that are
JSON text are not parsed, so an object always means base64.

For documents, the data of events is described as JSON Schema. The schemas are open: members that
are not named may be added, and clients must ignore them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson

from gateway.core.channel.exact_json import parse_json
from gateway.core.log.record import Record, TopicPartition

Schema: TypeAlias = dict[str, Any]
Payload: TypeAlias = tuple[str | None, bytes]
"""The name of an event (None for a plain `message`) and its data."""
Format: TypeAlias = Callable[[Record], Payload]
"""Encode a record as an event."""
Binary: TypeAlias = Literal["error", "base64"]
"""What the format `value` does with values that are not text."""

DELETE_EVENT = "delete"


@dataclass(frozen=True, slots=True)
class EventFormat:
    """An event format: how records become data, and how documents describe it.

    Attributes:
        schema: The JSON Schema of the data; None for `value`, whose data depends on more options.
        delete_schema: The JSON Schema of a tombstone's data; None if it is that of `encode_delete`.
    """

    create: Callable[[Binary], Format]
    schema: Schema | None
    delete_schema: Schema | None = None
    media_type: str = "application/json"


def decode_utf8(data: bytes) -> str | None:
    """Return the text of UTF-8 bytes; None if they are not (no surrogates or overlong forms)."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def bytes_to_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    text = decode_utf8(data)
    return {"base64": b64encode(data).decode()} if text is None else text


def json_to_bytes(value: str | Mapping[str, str] | None) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])


def create_json_encoder(format: Format) -> Callable[[bytes], bytes]:
    """Create the function that turns the payloads of a format into JSON on one line.

    A payload that is JSON stays as it is (its numbers, too), without a byte order mark; any other
    text becomes a string. If the format writes base64, which a sample shows, every payload becomes
    a string, because `1234` and `true` are base64 as well as JSON.
    """
    _, payload = format(Record(TopicPartition("", 0), 0, -1, -1, None, b"{}"))
    return _to_json if payload.startswith(b"{") else _to_json_string


def _to_json_string(payload: bytes) -> bytes:
    return orjson.dumps(payload.decode())


def _to_json(payload: bytes) -> bytes:
    try:
        parse_json(payload)
    except orjson.JSONDecodeError:
        return _to_json_string(payload)
    payload = payload.removeprefix(BOM_UTF8)
    if (
        b"\n" in payload or b"\r" in payload
    ):  # only whitespace: JSON strings have no raw line breaks
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")
    return payload


def encode_delete(record: Record) -> Payload:
    """Encode a tombstone as the event `delete`, with its key by the rule of this module."""
    return DELETE_EVENT, orjson.dumps({"key": bytes_to_json(record.key)})


TEXT_SCHEMA: Schema = {"type": "string"}
INTEGER_SCHEMA: Schema = {"type": "integer"}
COUNT_SCHEMA: Schema = {"type": "integer", "minimum": 0}
ANY_SCHEMA: Schema = {}


def build_object_schema(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def build_ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def make_nullable(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


POSITION_SCHEMA: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]+$",
    "description": "A resume token: give it back as Last-Event-ID or lastEventId.",
}
PARTITION_MEMBERS = {"topic": TEXT_SCHEMA, "partition": COUNT_SCHEMA}


def encode_envelope(record: Record) -> Payload:
    """Encode the whole record as one JSON object, exact to the byte.

    The timestamp is in milliseconds since 1970 (-1 for none), headers are a list of `[name,
    value]`. Keys and values, also those of headers, follow the rule of this module. A tombstone is
    the event `delete` with the same object, whose value is null.
    """
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
