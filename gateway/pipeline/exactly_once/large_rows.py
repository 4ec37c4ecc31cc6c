"""Build the dead letters of rows that are too large for their topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.pipeline.run.dead_letter_format import build_dead_letter_headers

# How much of such a row its dead letter keeps: of the key, and of the headers and the value.
MAX_KEY_BYTES, MAX_SAMPLE_BYTES = 1_000, 16_384
# Upper bounds of what a batch of one record takes beside key, value and headers, and of what a
# header takes beside its name and value.
BATCH_OVERHEAD_BYTES = 100
HEADER_OVERHEAD_BYTES = 10

Headers = list[tuple[str, bytes | None]]


def parse_headers(column: Iterable[Mapping[str, Any]] | None) -> Headers:
    return [(header["key"], header["value"]) for header in column or ()]


def estimate_row_size(row: Mapping[str, Any]) -> int:
    """Return the most bytes that a row takes as a batch of its own, without compression."""
    headers = _estimate_headers_size(parse_headers(row.get("headers")))
    return BATCH_OVERHEAD_BYTES + len(row["key"] or b"") + len(row["value"] or b"") + headers


def build_dead_letter(
    topic: str, row: Mapping[str, Any], max_bytes: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a row's dead letter: the row's beginning and the reason."""
    # Key, value and headers are three quarters of the batch at most, the rest is for the reason.
    sample_bytes = min(MAX_SAMPLE_BYTES, max_bytes // 4)
    size = f"the row has {estimate_row_size(row):,} bytes, and topic {topic} takes {max_bytes:,}"
    advice = "raise its max.message.bytes, or make its rows smaller"
    headers = parse_headers(row.get("headers"))
    kept = headers if _estimate_headers_size(headers) <= sample_bytes else []
    added = build_dead_letter_headers(topic, f"{size}; {advice}")
    key, value = row["key"], row["value"]
    return (
        key and key[: min(MAX_KEY_BYTES, sample_bytes)],
        value and value[:sample_bytes],
        [*kept, *added],
    )


def _estimate_headers_size(headers: Headers) -> int:
    return sum(
        HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"") for name, value in headers
    )
