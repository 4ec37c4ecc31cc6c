"""Dead letters of output rows: where rows go that their topic refuses, and with which headers."""

from __future__ import annotations

ORIGIN, REASON = "X-Origin-Topic", "X-Reason"


def dead_letters_of(output: str) -> str:
    """Return the topic for the rows that an output refuses.

    It is the topic itself where that already has dead letters or late records.
    """
    return output if output.endswith((".dlq", ".late")) else f"{output}.dlq"


def explain_refusal(output: str, reason: str) -> list[tuple[str, bytes]]:
    """Return the headers of a dead letter.

    Args:
        output: The topic that the row was for.
        reason: Why it is not there.
    """
    return [(ORIGIN, output.encode()), (REASON, reason.encode("utf-8", "replace"))]
