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

CODE = "value-invalid"


class Raw(bytes):
    """Bytes that are not what others of the topic are."""


class Invalid(Raw):
    """The value of a record that cannot be shown. why: for people."""

    why: str

    @classmethod
    def of(cls, data: bytes | None, why: str) -> Invalid:
        made = cls(data or b"")
        made.why = why
        return made


def checked(format: Format, name: str) -> Format:
    """That format, of topics whose records may be no such. name: of the format."""

    def of(record: Record) -> Payload:
        value = record.value
        if type(value) is Invalid:
            return "error", orjson.dumps(invalid(record, value))
        if type(value) is Raw and name == "value":
            return None, orjson.dumps({"base64": b64encode(value).decode()})
        return format(record)

    return of


def invalid(record: Record, value: Invalid) -> dict[str, object]:
    """The data of the `error` event."""
    message = (
        f"the record at {record.tp} offset {record.offset} is not of its topic's model: "
        f"{value.why}; read it with onInvalid: raw, or correct who writes it"
    )
    topic, partition = record.tp
    where = {"topic": topic, "partition": partition, "offset": record.offset}
    return {"code": CODE, "message": message, **where}
