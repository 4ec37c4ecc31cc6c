"""Define the topic and the headers of dead letters: rows that their output topic refuses."""

from __future__ import annotations

ORIGIN_HEADER, REASON_HEADER = "X-Origin-Topic", "X-Reason"
"""The headers with the topic that refused a row, and with the reason."""


def get_dead_letter_topic(topic: str) -> str:
    """Return the topic of refused rows: the output itself if it is one of dead letters."""
    return topic if topic.endswith((".dlq", ".late")) else f"{topic}.dlq"


def build_dead_letter_headers(topic: str, reason: str) -> list[tuple[str, bytes]]:
    return [(ORIGIN_HEADER, topic.encode()), (REASON_HEADER, reason.encode("utf-8", "replace"))]
