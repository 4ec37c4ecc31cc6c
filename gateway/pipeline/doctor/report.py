"""Format a diagnosis as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gateway.telemetry.diagnosed_cause import iter_cause_lines

from .diagnosis import Diagnosis


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as a JSON object; seconds and shares have three decimal places."""
    data = asdict(diagnosis)
    data["seconds"] = round(diagnosis.seconds, 3)
    data["parts"] = {name: round(value, 3) for name, value in diagnosis.parts.items()}
    for cause in data["causes"]:
        cause["seconds"], cause["share"] = round(cause["seconds"], 3), round(cause["share"], 3)
        cause["evidence"], cause["settings"] = list(cause["evidence"]), list(cause["settings"])
    return data


def render_text(diagnosis: Diagnosis) -> str:
    return "\n".join(_iter_lines(diagnosis))


def _iter_lines(diagnosis: Diagnosis) -> Iterator[str]:
    rate = diagnosis.rows / diagnosis.seconds if diagnosis.seconds else 0.0
    yield (
        f"{diagnosis.job}: {diagnosis.batches} batches of {diagnosis.rows:,.0f} rows in "
        f"{diagnosis.seconds:.2f} s ({rate:,.0f} rows/s)"
    )
    parts = [f"{name} {value:.2f} s" for name, value in diagnosis.parts.items() if value >= 0.005]
    if parts:
        yield f"  a batch: {', '.join(parts)}"
    if not diagnosis.causes and diagnosis.batches:
        yield "  no cause found: the job is healthy, as far as these records show"
    for number, cause in enumerate(diagnosis.causes, 1):
        yield ""
        yield from iter_cause_lines(number, cause, f"{cause.seconds:.1f} s ({cause.share:.0%})")
    if diagnosis.unseen:
        yield ""
        by_reason: dict[str, list[str]] = {}
        for name, reason in diagnosis.unseen.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            yield f"  not judged: {', '.join(names)}: {reason}"
