"""Write the alerts, their runbooks and the doctor's causes, from the catalogue of faults."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML

from gateway.telemetry.faults import FAULTS, RULES, Alert, Fault

_RUNBOOKS = """\
# Runbooks

Each alert of `deploy/prometheus/alerts.yaml` has a section. `critical` alerts wake somebody up,
`warning` alerts wait until morning. `gateway doctor` finds the causes whose names stand in
parentheses.
"""

_ALERTS = """\
# Alerts for Prometheus. They need recording.yaml, and scrape jobs whose names begin with `gateway`.
# Written by `make docs` from gateway/telemetry/faults.py. Change that instead.
#
# severity: critical wakes somebody up; warning is for working hours.
# runbook_url: each leads to a section of docs/runbooks.md. Replace https://gateway.example/docs by
# where you serve the documentation (`make docs` builds it).
#
# Thresholds hold per instance, and per worker where the metric has that label. Metrics of Spark
# jobs have a label `job` of their own, which Prometheus renames to `exported_job`.
"""

_RUNBOOK_URL = "https://gateway.example/docs/runbooks/#"


def build_runbooks_page() -> str:
    """Return the page."""
    sections = [
        _build_runbook(alert, fault) for group in _group_alerts().values() for alert, fault in group
    ]
    return "\n".join([_RUNBOOKS, *sections])


def build_alerts() -> str:
    """Return the rules of Prometheus."""
    groups = [
        {"name": name, "rules": [_build_rule(alert) for alert, _ in group]}
        for name, group in _group_alerts().items()
    ]
    yaml = YAML()
    yaml.width = 100
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump({"groups": groups}, stream)
    return _ALERTS + re.sub(r" +\n", "\n", stream.getvalue())


def build_causes() -> str:
    """Return links to the runbooks of what the doctor reports, and a table of the other causes."""
    links = [
        f"[`{name}`](runbooks.md#{alert.lower()})"
        for name, fault in RULES.items()
        if (alert := _find_runbook(fault))
    ]
    rows = [
        f"| `{name}` | {_capitalize(fault.title)} | {fault.advice} |\n"
        for name, fault in RULES.items()
        if not _find_runbook(fault)
    ]
    head = "| Others | What is wrong | What to do |\n|---|---|---|\n"
    return f"In the runbooks: {', '.join(links)}.\n\n{head}{''.join(rows)}"


def _group_alerts() -> dict[str, list[tuple[Alert, Fault]]]:
    """Return all alerts by the first word of their names: gateway, sidecar, pipeline."""
    groups: dict[str, list[tuple[Alert, Fault]]] = {}
    for fault in FAULTS:
        if fault.alert is not None:
            name = re.findall(r"[A-Z][a-z]+", fault.alert.name)[0].lower()
            groups.setdefault(name, []).append((fault.alert, fault))
    return groups


def _build_rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **({"for": alert.hold} if alert.hold else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{_RUNBOOK_URL}{alert.name.lower()}",
        },
    }


def _build_runbook(alert: Alert, fault: Fault) -> str:
    rule = f" (`{fault.rule}`)" if fault.rule else ""
    parts = [
        f"## {alert.name}",
        f"{_capitalize(fault.title)}{rule}. {fault.meaning}".strip(),
        fault.advice.replace(" {causes}", f"\n\n{_build_table_of_partitions()}"),
        fault.details,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _build_table_of_partitions() -> str:
    rows = ["| `cause` | What to do |\n|---|---|"]
    for fault in FAULTS:
        if fault.causes:
            causes = ", ".join(f"`{cause}`" for cause in fault.causes)
            name = fault.alert.name if fault.alert is not None else ""
            advice = f"[{name}](#{name.lower()})" if name else fault.advice
            rows.append(f"| {causes} | {advice} |")
    return "\n".join(rows)


def _find_runbook(fault: Fault) -> str:
    """Return the alert whose runbook has a fault; empty if none has."""
    if fault.alert is not None:
        return fault.alert.name
    return "GatewayPartitionNotReady" if fault.causes else ""


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]
