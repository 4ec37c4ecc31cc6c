"""Media types of the dialect: `application/vnd.kafka[.FORMAT][.v2]+json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from starlette.datastructures import Headers

from gateway.formats.codec import Format

PLAIN = "application/vnd.kafka.v2+json"
JSON = "application/json"
ANYTHING = frozenset({JSON, "application/*", "*/*", "*/json"})
# Of a request: what old clients and curl send.
UNTOLD = frozenset({"", JSON, "application/octet-stream", "application/x-www-form-urlencoded"})

_TYPE = re.compile(
    r"application/vnd\.kafka(\.(binary|json|avro|jsonschema|protobuf|string|text))?(\.v2)?\+json"
)


class Media(NamedTuple):
    """format: None where nothing is embedded."""

    format: Format | None


def parsed(text: str) -> Media | None:
    """None for what is none of the dialect's."""
    found = _TYPE.fullmatch(text.partition(";")[0].strip().lower())
    if found is None:
        return None
    name = "string" if found[2] == "text" else found[2]
    return Media(None if name is None else Format.of(name))


def of_format(format: Format) -> str:
    return f"application/vnd.kafka.{format.name.lower()}.v2+json"


def speaks(headers: Headers) -> bool:
    """Does a request say that it is of the dialect?"""
    said = headers.get("content-type", ""), headers.get("accept", "")
    return any("vnd.kafka" in each for each in said)


def accepted(headers: Headers) -> Iterator[str]:
    """What a client takes, best first; nothing said is anything."""
    pieces = [piece.strip().lower() for piece in headers.get("accept", "").split(",")]
    some = [(_quality(piece), piece.partition(";")[0].strip()) for piece in pieces if piece]
    for quality, name in sorted(some, key=lambda one: -one[0]):
        if quality > 0:
            yield name


def _quality(piece: str) -> float:
    found = re.search(r";\s*q=([01](\.[0-9]{0,3})?)\s*(;|$)", piece)
    return float(found[1]) if found else 1.0
