"""Diagnose a running gateway: apply all rules to an observation, root causes first.

The diagnosis is formatted as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.telemetry import catalog
from gateway.telemetry.diagnosed_cause import DiagnosedCause, iter_cause_lines

from .gateway_rules import (
    CARE_RULES,
    CHOICE_RULES,
    CLIENT_RULES,
    GUARD_RULES,
    LOAD_RULES,
    WORKER_RULES,
)
from .kafka_rules import KAFKA_FAULT_RULES, KAFKA_LOAD_RULES, READ_RULES
from .observation import Observation, Rule

RULES: Sequence[Rule] = (
    *WORKER_RULES,
    *KAFKA_FAULT_RULES,
    *GUARD_RULES,
    *KAFKA_LOAD_RULES,
    *LOAD_RULES,
    *CLIENT_RULES,
    *READ_RULES,
    *CHOICE_RULES,
    *CARE_RULES,
)
"""All rules, those first whose causes explain others: a broker that is away makes clients slow."""

CAUSE_NAMES = tuple(rule.name for rule in RULES)

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
    causes: list[DiagnosedCause] = []
    for rule in RULES:
        evidence = list(rule.find_evidence(observation))
        if evidence:
            causes.append(
                DiagnosedCause(rule.name, rule.title, evidence, rule.settings, rule.advice)
            )
    return GatewayDiagnosis(
        observation.url,
        observation.seconds,
        int(observation.after.sum(catalog.WORKERS)),
        int(observation.after.sum(catalog.CLIENTS)),
        observation.growth(catalog.DELIVERIES) / observation.seconds,
        causes,
        _explain_unseen(observation),
        list(_iter_past_losses(observation)),
    )


def _explain_unseen(observation: Observation) -> dict[str, str]:
    if observation.routes is None:
        reason = "needs the admin API (the section `admin`)"
        return dict.fromkeys(("route-paused", "filter-matches-none"), reason)
    return {}


def _iter_past_losses(observation: Observation) -> Iterator[str]:
    for metric, noun in _PAST_LOSSES.items():
        for labels, total in observation.after.iter_series(metric):
            if total and total == observation.before.get(metric, labels):
                yield f"{noun}: {total:,.0f} ({', '.join(labels.values())})"


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
