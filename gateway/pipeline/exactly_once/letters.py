"""The dead letter of a row that its topic does not take, as it is too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.pipeline.run.dead_letters import explain_refusal

KEY, SAMPLE = 1_000, 16_384  # bytes at most of such a row's key, headers and value in its letter
FRAME = 100  # bytes of a batch of one record beside its key, value and headers, and more
HEADER = 10  # bytes of a header beside its name and value

Headers = list[tuple[str, bytes | None]]


def headers_of(column: Iterable[Mapping[str, Any]] | None) -> Headers:
    """Return the headers of a row, by its column `headers`."""
    return [(each["key"], each["value"]) for each in column or ()]


def size_of(row: Mapping[str, Any]) -> int:
    """Return how many bytes a row is as a batch of its own, without compression.

    Args:
        row: Its columns `key` and `value`, and `headers` where there are any.
    """
    headers = _size(headers_of(row.get("headers")))
    return FRAME + len(_bytes(row["key"]) or b"") + len(_bytes(row["value"]) or b"") + headers


def of_large(
    topic: str, row: Mapping[str, Any], limit: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of the letter: the beginning of the row, and why it is there.

    Args:
        topic: That the row is for.
        row: As of `size_of`.
        limit: Bytes that the topic takes.
    """
    said = f"the row has {size_of(row):,} bytes, and topic {topic} takes {limit:,}"
    advice = "raise its max.message.bytes, or make its rows smaller"
    headers = headers_of(row.get("headers"))
    kept = headers if _size(headers) <= SAMPLE else []
    added = explain_refusal(topic, f"{said}; {advice}")
    key, value = _bytes(row["key"]), _bytes(row["value"])
    return key and key[:KEY], value and value[: min(SAMPLE, limit // 2)], [*kept, *added]


def _size(headers: Headers) -> int:
    return sum(HEADER + len(name.encode()) + len(value or b"") for name, value in headers)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
