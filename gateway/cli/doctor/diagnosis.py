"""Diagnose a running gateway: apply all rules to an observation, root causes first.

The diagnosis is formatted as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.cli.output import format_count
from gateway.telemetry import catalog
from gateway.telemetry.diagnosed_cause import DiagnosedCause, iter_cause_lines
from gateway.telemetry.faults import RULES

from .gateway_rules import GATEWAY_EVIDENCE
from .kafka_rules import KAFKA_EVIDENCE
from .observation import FindEvidence, Observation

EVIDENCE: Mapping[str, FindEvidence] = {**GATEWAY_EVIDENCE, **KAFKA_EVIDENCE}
_UNSEEN = dict.fromkeys(
    ("route-paused", "filter-matches-none"), "needs the admin API (the section `admin`)"
)
_PAST_LOSSES = {
    catalog.GAP_RECORDS: "records in gaps",
    catalog.INVALID_RECORDS: "invalid records",
    catalog.CONSUMER_MISSING_RECORDS: "records deleted before a group read them",
}


@dataclass(frozen=True, slots=True)
class GatewayDiagnosis:
    """The findings of the doctor in a gateway.

    Attributes:
        causes: The causes, the likeliest first.
        past: Losses since the start of the gateway that did not grow meanwhile.
    """

    url: str
    seconds: float
    workers: int
    clients: int
    deliveries_per_second: float
    causes: Sequence[DiagnosedCause]
    unseen: Mapping[str, str]
    past: Sequence[str]


def diagnose(observation: Observation) -> GatewayDiagnosis:
    causes = [
        DiagnosedCause(name, fault.title, evidence, fault.settings, fault.advice)
        for name, fault in RULES.items()
        if (evidence := list(EVIDENCE[name](observation)))
    ]
    return GatewayDiagnosis(
        observation.url,
        observation.seconds,
        int(observation.after.sum(catalog.WORKERS)),
        int(observation.after.sum(catalog.CLIENTS)),
        observation.growth(catalog.DELIVERIES) / observation.seconds,
        causes,
        {} if observation.routes is not None else _UNSEEN,
        [
            f"{noun}: {total:,.0f} ({', '.join(labels.values())})"
            for metric, noun in _PAST_LOSSES.items()
            for labels, total in observation.after.iter_series(metric)
            if total and total == observation.before.get(metric, labels)
        ],
    )


def to_json(diagnosis: GatewayDiagnosis) -> dict[str, Any]:
    data = asdict(diagnosis)
    rate = data.pop("deliveries_per_second")
    return {**data, "seconds": round(diagnosis.seconds, 3), "deliveriesPerSecond": round(rate, 3)}


def render_text(diagnosis: GatewayDiagnosis) -> str:
    return "\n".join(_iter_lines(diagnosis))


def _iter_lines(diagnosis: GatewayDiagnosis) -> Iterator[str]:
    yield (
        f"{diagnosis.url}: {format_count(diagnosis.workers, 'worker')}, "
        f"{format_count(diagnosis.clients, 'stream')}, {diagnosis.deliveries_per_second:,.0f} "
        f"deliveries per second, observed for {diagnosis.seconds:.0f} s"
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
