"""What an `Accept` header prefers (RFC 9110 12.5.1), and others that are written like it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_RANGE_PATTERN = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_WEIGHT_PATTERN = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


class MediaPreference(NamedTuple):
    """How much a media type is wanted; of two, the larger one is.

    quality: 0 (not at all) to 1. named: by its name 2, by its kind (`application/*`) 1.
    """

    quality: float
    specificity: int


NOT_ACCEPTABLE = MediaPreference(0.0, 0)


def get_media_preference(header: str, media_type: str) -> MediaPreference:
    """What the most specific range that a media type falls under says of it; NO if none does.
    Without a header anything is welcome."""
    kind = media_type.partition("/")[0]
    names = {media_type: 2, f"{kind}/*": 1, "*/*": 0}
    found = [
        (names[name], weight) for name, weight in iter_ranges(header or "*/*") if name in names
    ]
    named, quality = max(found, default=(0, 0.0))
    return MediaPreference(quality, named) if quality else NOT_ACCEPTABLE


def iter_ranges(header: str) -> Iterator[tuple[str, float]]:
    """Ranges and weights; one with a malformed weight is passed over."""
    for part in _RANGE_PATTERN.findall(header.lower()):
        name, *parameters = (each.strip() for each in part.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        if _WEIGHT_PATTERN.fullmatch(weight):
            yield name, float(weight)
