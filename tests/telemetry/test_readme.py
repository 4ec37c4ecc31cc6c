"""The README's list of metrics is the catalog."""

from __future__ import annotations

import re
from pathlib import Path

import gateway.telemetry
from gateway.telemetry.catalog import METRICS

README = (Path(gateway.telemetry.__file__).parent / "README.md").read_text()
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (\w+) \| (.*?) \| (.*) \|")


def test_every_metric_is_in_the_readme_with_its_type_unit_labels_and_meaning():
    said = {row[1]: row.groups()[1:] for row in map(ROW.fullmatch, README.splitlines()) if row}
    wanted = {
        metric.exposed_name: (
            str(metric.kind),
            metric.unit or "none",
            ", ".join(f"`{label}`" for label in metric.labels) or "none",
            metric.help,
        )
        for metric in METRICS
    }
    assert said == wanted


def test_what_is_merged_otherwise_than_by_sum_is_named_there():
    for metric in METRICS:
        if metric.merge != "sum" and metric.name != "gateway_info":
            assert README.count(f"`{metric.name}`") == 2, metric.name
