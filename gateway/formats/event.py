"""What the formats have in common: their type, bytes as JSON, and the tombstone.

Bytes become JSON by one rule that a client can undo without guessing: a string is the
UTF-8 text of the bytes, `{"base64": "..."}` is bytes that are no UTF-8, null is null. No
value is ever shown as the JSON it may hold, so an object always means base64.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Literal, TypeAlias

import orjson

from gateway.core.log.record import Record, TopicPartition

Payload: TypeAlias = tuple[str | None, bytes]
Format: TypeAlias = Callable[[Record], Payload]
Binary: TypeAlias = Literal["error", "base64"]

DELETE_EVENT = "delete"


def decode_utf8(data: bytes) -> str | None:
    """The text of UTF-8 bytes (strict: no surrogates, no overlong forms); None if it is not."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def bytes_to_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes by the rule above."""
    if data is None:
        return None
    text = decode_utf8(data)
    return {"base64": b64encode(data).decode()} if text is None else text


def create_json_encoder(format: Format) -> Callable[[bytes], bytes]:
    """How a format's payloads become JSON on one line, for wires that carry JSON only: what is
    strict JSON stays as it is (its numbers too), any other text becomes a string. So does
    base64, all of it: `1234` and `true` are base64 as well as JSON."""
    _, payload = format(Record(TopicPartition("", 0), 0, -1, -1, None, b"{}"))
    return _to_json if payload.startswith(b"{") else _to_json_string


def _to_json_string(payload: bytes) -> bytes:
    return orjson.dumps(payload.decode())


def _to_json(payload: bytes) -> bytes:
    """Text as `json_text` has it, but for base64."""
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return _to_json_string(payload)
    if b"\n" in payload or b"\r" in payload:  # whitespace: strings hold no raw line breaks
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")
    return payload


def encode_delete(record: Record) -> Payload:
    """A tombstone: the event `delete` with the key that is gone, by the rule above."""
    return DELETE_EVENT, orjson.dumps({"key": bytes_to_json(record.key)})
