"""Parse and build the dialect's media types: `application/vnd.kafka[.FORMAT][.v2]+json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from starlette.datastructures import Headers

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.formats.codec import SerializationFormat

KAFKA_V2_TYPE = "application/vnd.kafka.v2+json"
JSON_TYPE = "application/json"
WILDCARD_TYPES = frozenset({JSON_TYPE, "application/*", "*/*", "*/json"})
# What old clients and curl send with a body in JSON.
UNSPECIFIED_TYPES = frozenset(
    {"", JSON_TYPE, "application/octet-stream", "application/x-www-form-urlencoded"}
)

_TYPE_PATTERN = re.compile(r"application/vnd\.kafka(\.(?!v2[.+])([a-z0-9]+))?(\.v2)?\+json")


class MediaType(NamedTuple):
    """A media type of the dialect, with the format of embedded keys and values if it names one."""

    format: SerializationFormat | None


def parse_media_type(text: str) -> MediaType | None:
    match = _TYPE_PATTERN.fullmatch(text.partition(";")[0].strip().lower())
    if match is None:
        return None
    if match[2] is None:
        return MediaType(None)
    format = SERIALIZATION_FORMATS.get("string" if match[2] == "text" else match[2])
    return None if format is None else MediaType(format)


def build_media_type(format: SerializationFormat) -> str:
    return f"application/vnd.kafka.{format.name}.v2+json"


def is_confluent_request(headers: Headers) -> bool:
    """Return whether the content types of a request select the dialect."""
    values = headers.get("content-type", ""), headers.get("accept", "")
    return any("vnd.kafka" in value for value in values)


def iter_accepted_types(headers: Headers) -> Iterator[str]:
    """Yield the media types that a client accepts, best first; none if it does not say."""
    ranges = [range_.strip().lower() for range_ in headers.get("accept", "").split(",")]
    weighted = [
        (_parse_quality(range_), range_.partition(";")[0].strip()) for range_ in ranges if range_
    ]
    for quality, name in sorted(weighted, key=lambda entry: -entry[0]):
        if quality > 0:
            yield name


def _parse_quality(range_: str) -> float:
    """Return the weight of a media range (RFC 9110 12.4.2), which is 1 if it has none."""
    match = re.search(r";\s*q=([01](\.[0-9]{0,3})?)\s*(;|$)", range_)
    return float(match[1]) if match else 1.0
