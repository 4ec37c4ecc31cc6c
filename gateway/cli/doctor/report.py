"""Format the diagnosis of a gateway as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gateway.telemetry.diagnosed_cause import iter_cause_lines

from .diagnosis import GatewayDiagnosis


def to_json(diagnosis: GatewayDiagnosis) -> dict[str, Any]:
    data = asdict(diagnosis)
    rate = data.pop("deliveries_per_second")
    return {
        **data,
        "seconds": round(diagnosis.seconds, 3),
        "deliveriesPerSecond": round(rate, 3),
    }


def render_text(diagnosis: GatewayDiagnosis) -> str:
    return "\n".join(_iter_lines(diagnosis))


def _iter_lines(diagnosis: GatewayDiagnosis) -> Iterator[str]:
    workers = f"{diagnosis.workers} worker{'' if diagnosis.workers == 1 else 's'}"
    streams = f"{diagnosis.clients:,} stream{'' if diagnosis.clients == 1 else 's'}"
    yield (
        f"{diagnosis.url}: {workers}, {streams}, {diagnosis.deliveries_per_second:,.0f} deliveries "
        f"per second, observed for {diagnosis.seconds:.0f} s"
    )
    if not diagnosis.causes:
        yield "  no cause found: the gateway is healthy, as far as its metrics show"
    for number, cause in enumerate(diagnosis.causes, 1):
        yield ""
        yield from iter_cause_lines(number, cause)
    if diagnosis.past or diagnosis.unseen:
        yield ""
    for loss in diagnosis.past:
        yield f"  earlier, since the start: {loss}"
    for name, reason in diagnosis.unseen.items():
        yield f"  not judged: {name}: {reason}"
