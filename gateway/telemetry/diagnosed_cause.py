"""Define a cause of slow or missing records, as the doctors of gateways and of jobs report it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiagnosedCause:
    """Something that makes records slow, or keeps them from arriving.

    Attributes:
        title: What it is, in a few words.
        evidence: What was seen, with figures.
        settings: What to change: settings of the YAML, or commands.
        advice: How to change it, and why that helps.
    """

    name: str
    title: str
    evidence: Sequence[str]
    settings: Sequence[str]
    advice: str


def iter_cause_lines(number: int, cause: DiagnosedCause, cost: str = "") -> Iterator[str]:
    """Yield a cause as lines of text.

    Args:
        number: Its place in the diagnosis, from 1.
        cost: What it costs, to be appended to its title; empty if that is not known.
    """
    yield f"{number}. {cause.name}: {cause.title}{cost and f': {cost}'}"
    yield from (f"     {each}" for each in cause.evidence)
    yield f"   change {', '.join(cause.settings)}"
    yield f"     {cause.advice}"
