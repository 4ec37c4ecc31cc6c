"""Encode each record as a CloudEvent 1.0 in the JSON format: the format `cloudevents`.

A record that is a CloudEvent already (Kafka protocol binding 1.0.2) keeps its identity. In
structured mode (`content-type: application/cloudevents+json`) its value is passed on unchanged, in
binary mode (`ce_specversion: 1.0`) its attributes come from the `ce_` headers. Any other record
becomes an event of type `org.apache.kafka.record`.

The value becomes `data` if it is JSON (with exactly its text) or text, else `data_base64`. A key
that is not UTF-8 fits no attribute and is left out; the format `envelope` keeps it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from gateway.core.channel.exact_json import parse_json
from gateway.core.log.record import Record

from .event import (
    ANY_SCHEMA,
    TEXT_SCHEMA,
    EventFormat,
    Payload,
    build_object_schema,
    decode_utf8,
    encode_delete,
)

EVENT_TYPE = "org.apache.kafka.record"

_STRUCTURED = "application/cloudevents+json"
_REQUIRED_ATTRIBUTES = ("specversion", "id", "source", "type")
_RESERVED_ATTRIBUTES = ("data", "datacontenttype")
_ATTRIBUTE = re.compile(r"ce_([a-z0-9]+)", re.ASCII)
_JSON = re.compile(r"\w+/(json|[\w.!#$&^+-]+\+json)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_cloudevents(record: Record) -> Payload:
    value = record.value
    if value is None:
        return encode_delete(record)
    headers = dict(_iter_text_headers(record))
    content_type = headers.get("content-type")
    if _parse_media_type(content_type) == _STRUCTURED and _is_event(value):
        return None, value.removeprefix(BOM_UTF8)
    event = _build_attributes(record, headers)
    return None, orjson.dumps(event | _build_data(value, content_type))


def drop_content_type(record: Record) -> Record:
    """Remove the content type of the bytes from a record whose value was decoded into JSON."""
    return record._replace(
        headers=tuple(
            (name, content)
            for name, content in record.headers
            if name.lower() != "content-type"
            or _JSON.fullmatch(_parse_media_type((content or b"").decode("latin-1")))
        )
    )


def _build_attributes(record: Record, headers: Mapping[str, str]) -> dict[str, Any]:
    (topic, partition), offset = record.tp, record.offset
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{topic}:{partition}:{offset}",
        "source": f"/kafka/{topic}",
        "type": EVENT_TYPE,
    }
    key = decode_utf8(record.key) if record.key else None
    if key:
        event["partitionkey"] = key
    if headers.get("ce_specversion") == "1.0":
        # Its own attributes take precedence over the ones above. Ours below are not added: they
        # would say something that the producer of the event did not.
        return event | _extract_attributes(headers)
    if time := _format_rfc3339(record.timestamp):
        event["time"] = time
    if key:
        event["subject"] = key
    return event


def _extract_attributes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes in `ce_` headers. Empty ones and invalid names are left out."""
    return {
        match[1]: text
        for name, text in headers.items()
        if text and (match := _ATTRIBUTE.fullmatch(name)) and match[1] not in _RESERVED_ATTRIBUTES
    }


def _build_data(value: bytes, content_type: str | None) -> dict[str, Any]:
    if content_type is None or _JSON.fullmatch(_parse_media_type(content_type)):
        if _parse_json(value) is not _NOT_JSON:
            return {
                "datacontenttype": content_type or "application/json",
                "data": orjson.Fragment(value.removeprefix(BOM_UTF8)),
            }
        if content_type is not None:
            return {"datacontenttype": content_type, "data_base64": b64encode(value).decode()}
    text = decode_utf8(value)
    if text is not None:
        return {"datacontenttype": content_type or "text/plain", "data": text}
    return {
        "datacontenttype": content_type or "application/octet-stream",
        "data_base64": b64encode(value).decode(),
    }


_NOT_JSON = object()


def _parse_json(value: bytes) -> Any:
    try:
        return parse_json(value)
    except orjson.JSONDecodeError:
        return _NOT_JSON


def _is_event(value: bytes) -> bool:
    event = _parse_json(value)
    return isinstance(event, dict) and all(
        isinstance(event.get(name), str) and event[name] for name in _REQUIRED_ATTRIBUTES
    )


def _iter_text_headers(record: Record) -> Iterator[tuple[str, str]]:
    for name, content in record.headers:
        if content is not None and (text := decode_utf8(content)) is not None:
            yield name.lower(), text


def _parse_media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def _format_rfc3339(timestamp_ms: int) -> str | None:
    """Return None for a record without a time, and after the year 9999 (the end of RFC 3339)."""
    if timestamp_ms < 0:
        return None
    try:
        time = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None
    return time.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


_SCHEMA = {
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
}
CLOUDEVENTS = EventFormat(
    lambda binary: encode_cloudevents, _SCHEMA, media_type="application/cloudevents+json"
)
