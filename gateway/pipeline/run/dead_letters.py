"""Dead letters of output rows: where rows go that their topic refuses, and with which headers."""

from __future__ import annotations

ORIGIN_HEADER, REASON_HEADER = "X-Origin-Topic", "X-Reason"


def get_dead_letter_topic(topic: str) -> str:
    """Return the topic for the rows that an output refuses.

    It is the topic itself where that already has dead letters or late records.
    """
    return topic if topic.endswith((".dlq", ".late")) else f"{topic}.dlq"


def build_dead_letter_headers(topic: str, reason: str) -> list[tuple[str, bytes]]:
    """Return the headers of a dead letter.

    Args:
        output: The topic that the row was for.
        reason: Why it is not there.
    """
    return [(ORIGIN_HEADER, topic.encode()), (REASON_HEADER, reason.encode("utf-8", "replace"))]
