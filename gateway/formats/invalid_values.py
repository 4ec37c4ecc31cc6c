"""Keys and values that are none of their topic's model.

A record keeps its bytes: `Invalid` is shown as an `error` event in its place, whatever the
format, and `Raw` as the bytes they are: by `envelope` and `cloudevents` as any others that are no
text, by `value` as `{"base64": "..."}`, for its other values are JSON.
"""

from __future__ import annotations

from base64 import b64encode

import orjson

from gateway.core.log.record import Record

from .event import Format, Payload

INVALID_CODE = "value-invalid"


class RawValue(bytes):
    """Bytes that are not what others of the topic are."""


class InvalidValue(RawValue):
    """The value of a record that cannot be shown. why: for people."""

    reason: str

    @classmethod
    def create(cls, data: bytes | None, reason: str) -> InvalidValue:
        made = cls(data or b"")
        made.reason = reason
        return made


def wrap_format(format: Format, format_name: str) -> Format:
    """That format, of topics whose records may be no such. name: of the format."""

    def of(record: Record) -> Payload:
        value = record.value
        if type(value) is InvalidValue:
            return "error", orjson.dumps(describe_invalid(record, value))
        if type(value) is RawValue and format_name == "value":
            return None, orjson.dumps({"base64": b64encode(value).decode()})
        return format(record)

    return of


def describe_invalid(record: Record, value: InvalidValue) -> dict[str, object]:
    """The data of the `error` event."""
    message = (
        f"the record at {record.tp} offset {record.offset} is not of its topic's model: "
        f"{value.reason}; read it with onInvalid: raw, or correct who writes it"
    )
    topic, partition = record.tp
    where = {"topic": topic, "partition": partition, "offset": record.offset}
    return {"code": INVALID_CODE, "message": message, **where}
