"""What the doctor found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from .ranking import Diagnosis


def as_json(found: Diagnosis) -> dict[str, Any]:
    """Seconds and shares with three places."""
    told = asdict(found)
    told["seconds"] = round(found.seconds, 3)
    told["parts"] = {name: round(value, 3) for name, value in found.parts.items()}
    for cause in told["causes"]:
        cause["seconds"], cause["share"] = round(cause["seconds"], 3), round(cause["share"], 3)
        cause["evidence"], cause["settings"] = list(cause["evidence"]), list(cause["settings"])
    return told


def as_text(found: Diagnosis) -> str:
    return "\n".join(_lines(found))


def _lines(found: Diagnosis) -> Iterator[str]:
    rate = found.rows / found.seconds if found.seconds else 0.0
    yield (
        f"{found.job}: {found.batches} batches of {found.rows:,.0f} rows in "
        f"{found.seconds:.2f} s ({rate:,.0f} rows/s)"
    )
    parts = [f"{name} {value:.2f} s" for name, value in found.parts.items() if value >= 0.005]
    if parts:
        yield f"  a batch: {', '.join(parts)}"
    if not found.causes and found.batches:
        yield "  no cause found: it is healthy, as far as can be told"
    for at, cause in enumerate(found.causes, 1):
        yield ""
        yield f"{at}. {cause.name}: {cause.title}: {cause.seconds:.1f} s ({cause.share:.0%})"
        yield from (f"     {each}" for each in cause.evidence)
        yield f"   change {', '.join(cause.settings)}"
        yield f"     {cause.advice}"
    if found.unseen:
        yield ""
        by_reason: dict[str, list[str]] = {}
        for name, why in found.unseen.items():
            by_reason.setdefault(why, []).append(name)
        for why, names in by_reason.items():
            yield f"  not judged: {', '.join(names)}: {why}"
