"""Parse `Accept` and the headers that share its syntax (RFC 9110 12.4.2, 12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# One list member. A comma inside a quoted string does not end it; the quote that closes may be
# missing, so that a malformed header is still split and not dropped.
_RANGE_PATTERN = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_WEIGHT_PATTERN = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # RFC 9110 12.4.2


class MediaPreference(NamedTuple):
    """How much a client wants a media type. The larger of two preferences wins.

    `specificity` is 2 for a type in full, 1 for `type/*`, 0 for `*/*`. It breaks the tie between
    equal weights, since tuples compare from the left.
    """

    quality: float
    specificity: int


NOT_ACCEPTABLE = MediaPreference(0.0, 0)


def get_media_preference(header: str, media_type: str) -> MediaPreference:
    """Return how much a client wants a media type, by the most specific range that matches it.

    An empty `Accept` accepts everything (RFC 9110 12.5.1).
    """
    kind = media_type.partition("/")[0]
    specificities = {media_type: 2, f"{kind}/*": 1, "*/*": 0}
    matching = [
        (specificities[name], weight)
        for name, weight in iter_ranges(header or "*/*")
        if name in specificities
    ]
    specificity, quality = max(matching, default=(0, 0.0))
    return MediaPreference(quality, specificity) if quality else NOT_ACCEPTABLE


def iter_ranges(header: str) -> Iterator[tuple[str, float]]:
    """Yield the ranges of a header in lower case with their weights, from 0 to 1.

    A range with a malformed weight is skipped.
    """
    for part in _RANGE_PATTERN.findall(header.lower()):
        name, *parameters = (field.strip() for field in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        if _WEIGHT_PATTERN.fullmatch(weight):
            yield name, float(weight)
