"""The rules of deploy/prometheus, and what the expressions of rules and dashboards name.

It is no parser of PromQL: names of metrics and labels are found by their shape.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from gateway.telemetry.catalog import CLUSTER, METRICS, MetricKind

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus"
RULE_FILES = (RULES / "recording.yaml", RULES / "alerts.yaml")

SCRAPE_LABELS = frozenset({"job", "instance"})
"""The labels that Prometheus adds to every series."""

_NAME = re.compile(r"(?<![\w:\"=~$.])([a-zA-Z_][\w]*(?::[\w:]+)?)")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_MATCHERS = re.compile(r"\{([^{}]*)\}")
_MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^()]*)\)")
_METRIC = re.compile(r"^(?:gateway_\w+|process_\w+|up|ALERTS|\w+:\w+:\w+)$")


class Rule(NamedTuple):
    """A rule of a file; `alert` or `record` is its name."""

    name: str
    is_alert: bool
    expression: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def load_yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


@cache
def load_rules(path: Path) -> list[Rule]:
    """All rules of a file, in its order."""
    return [
        Rule(
            each.get("alert") or each["record"],
            "alert" in each,
            each["expr"],
            each.get("labels", {}),
            each.get("annotations", {}),
        )
        for group in load_yaml(path)["groups"]
        for each in group["rules"]
    ]


def find_metrics(expression: str) -> set[str]:
    """The metrics and recorded series that an expression names."""
    text = _GROUPING.sub(" ", _MATCHERS.sub(" ", _STRING.sub('""', expression)))
    return {name for name in _NAME.findall(text) if _METRIC.match(name)}


def find_labels(expression: str) -> set[str]:
    """The labels that it matches or groups by."""
    text = _STRING.sub('""', expression)
    matched = {name for part in _MATCHERS.findall(text) for name in _MATCHED.findall(part)}
    grouped = {
        name.strip() for part in _GROUPING.findall(text) for name in part.split(",") if name.strip()
    }
    return matched | grouped


@cache
def list_series() -> dict[str, set[str]]:
    """The labels of each series of a scrape, by its name, without those of Prometheus."""
    series: dict[str, set[str]] = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
    for metric in METRICS:
        # Spark jobs have the label `job`, which Prometheus renames.
        labels = {f"exported_{label}" if label == "job" else label for label in metric.labels}
        labels.add(CLUSTER)
        if metric.kind is MetricKind.HISTOGRAM:
            series[f"{metric.name}_bucket"] = labels | {"le"}
            series[f"{metric.name}_count"] = series[f"{metric.name}_sum"] = labels
        else:
            series[metric.exposed_name] = labels
    return series


@cache
def list_recorded() -> dict[str, set[str]]:
    """The labels of each recorded series, by its name."""
    return {
        rule.name: set.union(
            *(
                {name.strip() for name in part.split(",")}
                for part in re.findall(r"\bby\s*\(([^()]*)\)", rule.expression)
            )
        )
        - {"le"}
        for rule in load_rules(RULE_FILES[0])
    }


def find_faults(expression: str) -> list[str]:
    """What an expression names and the catalog and the recording rules do not have."""
    known = {**list_series(), **list_recorded()}
    names = find_metrics(expression)
    labels = {label for name in names if name in known for label in known[name]} | SCRAPE_LABELS
    faults = [f"no metric {name}" for name in sorted(names - known.keys())]
    faults += [f"no label {name}" for name in sorted(find_labels(expression) - labels)]
    return faults if names else ["names no metric"]


class RuleCase(NamedTuple):
    """Series that make an alert fire, and then resolve.

    Attributes:
        series: The values of each series, one per minute, as promtool writes them.
        fires_at: The minute at which it fires.
        resolved_at: The minute at which it does not any more.
    """

    series: Mapping[str, str]
    fires_at: int
    resolved_at: int


def build_rule_tests(cases: Mapping[str, RuleCase]) -> Mapping[str, Any]:
    """The input of `promtool test rules` for alerts by their names."""
    return {
        "rule_files": [str(path) for path in RULE_FILES],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": name,
                "interval": "1m",
                "input_series": [
                    {"series": series, "values": values} for series, values in case.series.items()
                ],
                "promql_expr_test": [
                    _expect_alert(name, 0, is_firing=False),
                    _expect_alert(name, case.fires_at, is_firing=True),
                    _expect_alert(name, case.resolved_at, is_firing=False),
                ],
            }
            for name, case in cases.items()
        ],
    }


def _expect_alert(name: str, minute: int, *, is_firing: bool) -> Mapping[str, Any]:
    return {
        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": 1}] if is_firing else [],
    }


def run_promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """What promtool prints; AssertionError with it if it does not succeed."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)], input=stdin, capture_output=True, timeout=120
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


def run_rule_tests(cases: Mapping[str, RuleCase], directory: Path) -> str:
    """Test rules by promtool; AssertionError says which alert did what."""
    path = directory / "rule-tests.yaml"
    path.write_text(json.dumps(build_rule_tests(cases)))
    return run_promtool("test", "rules", path)
