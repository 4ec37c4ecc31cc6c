"""Use the record's value as the event's data: the format `value`.

It is exact for UTF-8 text without CR (SSE turns CR and CRLF into LF). Bytes that are not UTF-8
cannot be sent as they are, and the route chooses what happens:

- `error`: an `error` event takes the place of the record and says where it is.
- `base64`: every value of the route is sent as base64, text as well. A binary value may happen to
  be valid UTF-8, so a client could otherwise not know which of the two it got.
"""

from __future__ import annotations

from base64 import b64encode

import orjson

from gateway.core.log.record import Record

from .event import Binary, EventFormat, Format, Payload, decode_utf8, encode_delete


def create_value_format(binary: Binary) -> Format:
    return _encode_base64 if binary == "base64" else _encode_text


def _encode_text(record: Record) -> Payload:
    value = record.value
    if value is None:
        return encode_delete(record)
    # isascii() first: 21 ns for 200 bytes, the decoding alone 54 ns.
    if value.isascii() or decode_utf8(value) is not None:
        return None, value
    return "error", _describe_not_text(record)


def _encode_base64(record: Record) -> Payload:
    if record.value is None:
        return encode_delete(record)
    return None, b64encode(record.value)


def _describe_not_text(record: Record) -> bytes:
    place = {"topic": record.tp.topic, "partition": record.tp.partition, "offset": record.offset}
    message = (
        f"the value at {record.tp} offset {record.offset} is not UTF-8 text; "
        "read it with format: envelope, or set binary: base64 on the route"
    )
    return orjson.dumps({"code": "value-not-text", "message": message, **place})


VALUE = EventFormat(create_value_format, None)
