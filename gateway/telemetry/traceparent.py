"""W3C Trace Context: the trace that a request or a record is part of.

https://www.w3.org/TR/trace-context/ 3.2; Kafka's headers hold the same text under the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

HEADER_NAME = "traceparent"
_PATTERN = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class Traceparent(NamedTuple):
    """trace, span: ids as numbers. sampled: it is recorded where it comes from."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def parse(text: bytes | None) -> Traceparent | None:
    """None for what is none; of a later version what this one knows of it."""
    match = _PATTERN.fullmatch(text) if text else None
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"00" and more is not None:
        return None
    return Traceparent(int(trace, 16), int(span, 16), bool(int(flags, 16) & 1))


def parse_headers(headers: Iterable[tuple[str, bytes | None]]) -> Traceparent | None:
    """Of a record's headers: the last one counts, as everywhere in Kafka."""
    found: bytes | None = None
    for name, value in headers:
        if name == HEADER_NAME:
            found = value
    return parse(found)
