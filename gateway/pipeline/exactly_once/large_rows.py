"""The dead letter of a row that its topic does not take, as it is too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.pipeline.run.dead_letters import build_dead_letter_headers

MAX_KEY_BYTES, MAX_SAMPLE_BYTES = (
    1_000,
    16_384,
)  # bytes at most of such a row's key, headers and value in its letter
BATCH_OVERHEAD_BYTES = (
    100  # bytes of a batch of one record beside its key, value and headers, and more
)
HEADER_OVERHEAD_BYTES = 10  # bytes of a header beside its name and value

Headers = list[tuple[str, bytes | None]]


def parse_headers(column: Iterable[Mapping[str, Any]] | None) -> Headers:
    """Return the headers of a row, by its column `headers`."""
    return [(each["key"], each["value"]) for each in column or ()]


def estimate_row_size(row: Mapping[str, Any]) -> int:
    """Return how many bytes a row is as a batch of its own, without compression.

    Args:
        row: Its columns `key` and `value`, and `headers` where there are any.
    """
    headers = _estimate_headers_size(parse_headers(row.get("headers")))
    return (
        BATCH_OVERHEAD_BYTES
        + len(_encode_text(row["key"]) or b"")
        + len(_encode_text(row["value"]) or b"")
        + headers
    )


def build_dead_letter(
    topic: str, row: Mapping[str, Any], max_bytes: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of the letter: the beginning of the row, and why it is there.

    Args:
        topic: That the row is for.
        row: As of `size_of`.
        limit: Bytes that the topic takes.
    """
    said = f"the row has {estimate_row_size(row):,} bytes, and topic {topic} takes {max_bytes:,}"
    advice = "raise its max.message.bytes, or make its rows smaller"
    headers = parse_headers(row.get("headers"))
    kept = headers if _estimate_headers_size(headers) <= MAX_SAMPLE_BYTES else []
    added = build_dead_letter_headers(topic, f"{said}; {advice}")
    key, value = _encode_text(row["key"]), _encode_text(row["value"])
    return (
        key and key[:MAX_KEY_BYTES],
        value and value[: min(MAX_SAMPLE_BYTES, max_bytes // 2)],
        [*kept, *added],
    )


def _estimate_headers_size(headers: Headers) -> int:
    return sum(
        HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"") for name, value in headers
    )


def _encode_text(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
