"""Represent keys and values of topics that have a model, above all those that do not fit it.

The record keeps its bytes. An `InvalidValue` is shown as an `error` event in place of the record,
whatever the format. A `RawValue` is shown as bytes: by `envelope` and `cloudevents` like any other
bytes, by `value` as `{"base64": "..."}`, because its other values are JSON.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection

import orjson

from gateway.core.log.record import Record

from .cloudevents import drop_content_type
from .event import Format, Payload

INVALID_CODE = "value-invalid"


class RawValue(bytes):
    """The bytes of a value that does not fit the model and is shown as bytes."""


class InvalidValue(RawValue):
    """The bytes of a value that does not fit the model and is shown as an error."""

    reason: str

    @classmethod
    def create(cls, data: bytes | None, reason: str) -> InvalidValue:
        invalid = cls(data or b"")
        invalid.reason = reason
        return invalid


def wrap_format(format: Format, format_name: str, decoded_topics: Collection[str] = ()) -> Format:
    """Wrap a format for topics with a model. Values of `decoded_topics` are decoded into JSON."""

    def encode(record: Record) -> Payload:
        value = record.value
        if type(value) is InvalidValue:
            return "error", orjson.dumps(describe_invalid(record, value))
        if type(value) is RawValue and format_name == "value":
            return None, orjson.dumps({"base64": b64encode(value).decode()})
        if format_name == "cloudevents" and record.tp.topic in decoded_topics:
            return format(record if type(value) is RawValue else drop_content_type(record))
        return format(record)

    return encode


def describe_invalid(record: Record, value: InvalidValue) -> dict[str, object]:
    message = (
        f"the record at {record.tp} offset {record.offset} is not of its topic's model: "
        f"{value.reason}; read it with onInvalid: raw, or correct who writes it"
    )
    topic, partition = record.tp
    place = {"topic": topic, "partition": partition, "offset": record.offset}
    return {"code": INVALID_CODE, "message": message, **place}
