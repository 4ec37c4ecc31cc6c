"""The README says how the workers' values become one."""

from __future__ import annotations

from pathlib import Path

import gateway.telemetry
from gateway.telemetry.catalog import METRICS

README = (Path(gateway.telemetry.__file__).parent / "README.md").read_text()


def test_what_is_merged_otherwise_than_by_sum_is_named_there():
    for metric in METRICS:
        if metric.merge != "sum" and metric.name != "gateway_info":
            assert f"`{metric.name}`" in README, metric.name
