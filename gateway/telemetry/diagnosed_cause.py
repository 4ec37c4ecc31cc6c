"""Define a cause of slow or missing records, as the doctors of gateways and of jobs report it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiagnosedCause:
    """A cause that makes records slow, or keeps them from arriving.

    `settings` are those of the YAML, or commands, and `advice` says why a change helps.
    """

    name: str
    title: str
    evidence: Sequence[str]
    settings: Sequence[str]
    advice: str


def iter_cause_lines(number: int, cause: DiagnosedCause, cost: str = "") -> Iterator[str]:
    """Yield a cause as lines of text. Its cost, if known, is appended to its title."""
    yield f"{number}. {cause.name}: {cause.title}{cost and f': {cost}'}"
    yield from (f"     {each}" for each in cause.evidence)
    yield f"   change {', '.join(cause.settings)}"
    yield f"     {cause.advice}"
