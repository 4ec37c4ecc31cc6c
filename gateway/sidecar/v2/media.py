"""Media types of the dialect: `application/vnd.kafka[.FORMAT][.v2]+json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from starlette.datastructures import Headers

from gateway.formats.codec import SerializationFormat

KAFKA_V2_TYPE = "application/vnd.kafka.v2+json"
JSON_TYPE = "application/json"
WILDCARD_TYPES = frozenset({JSON_TYPE, "application/*", "*/*", "*/json"})
# Of a request: what old clients and curl send.
UNSPECIFIED_TYPES = frozenset(
    {"", JSON_TYPE, "application/octet-stream", "application/x-www-form-urlencoded"}
)

_TYPE_PATTERN = re.compile(
    r"application/vnd\.kafka(\.(binary|json|avro|jsonschema|protobuf|string|text))?(\.v2)?\+json"
)


class MediaType(NamedTuple):
    """format: None where nothing is embedded."""

    format: SerializationFormat | None


def parse_media_type(text: str) -> MediaType | None:
    """None for what is none of the dialect's."""
    found = _TYPE_PATTERN.fullmatch(text.partition(";")[0].strip().lower())
    if found is None:
        return None
    name = "string" if found[2] == "text" else found[2]
    return MediaType(None if name is None else SerializationFormat.parse(name))


def build_media_type(format: SerializationFormat) -> str:
    return f"application/vnd.kafka.{format.name.lower()}.v2+json"


def is_confluent_request(headers: Headers) -> bool:
    """Does a request say that it is of the dialect?"""
    said = headers.get("content-type", ""), headers.get("accept", "")
    return any("vnd.kafka" in each for each in said)


def iter_accepted_types(headers: Headers) -> Iterator[str]:
    """What a client takes, best first; nothing said is anything."""
    pieces = [piece.strip().lower() for piece in headers.get("accept", "").split(",")]
    some = [(_parse_quality(piece), piece.partition(";")[0].strip()) for piece in pieces if piece]
    for quality, name in sorted(some, key=lambda one: -one[0]):
        if quality > 0:
            yield name


def _parse_quality(piece: str) -> float:
    found = re.search(r";\s*q=([01](\.[0-9]{0,3})?)\s*(;|$)", piece)
    return float(found[1]) if found else 1.0
