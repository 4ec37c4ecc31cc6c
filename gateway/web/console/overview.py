"""Merge the reports of all workers into what the page shows, and find out what is new in it.

A partition is shown as the worker that fares worst with it has it. Figures are rates between the
counters of two moments. Sans-I/O: callers pass reports and the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .partition_watch import SEVERITIES, PartitionKey, PartitionRow
from .worker_report import (
    MAX_INCIDENTS,
    MAX_SAMPLES,
    QUANTILES,
    Counters,
    Incident,
    Rates,
    Sample,
    add_rates,
    compute_rates,
    find_quantile,
)

RATES_INTERVAL_S = 0.9  # seconds at least between two figures
SAME_INCIDENT_S = 3.0  # seconds within which workers report the same incident

Report: TypeAlias = Mapping[str, Any]
"""What `WorkerReport.build_report` returns."""


@dataclass(slots=True)
class _KnownWorker:
    """The last report of a worker, and the figures and rates from it."""

    instance: str = ""
    version: int = 0
    incident_log: str = ""
    incident: int = 0
    sample: int = 0
    rows: dict[PartitionKey, PartitionRow] = field(default_factory=dict)
    report: Report = field(default_factory=dict)
    counters: Counters | None = None
    rates: Rates | None = None
    is_up: bool = False


class Overview:
    """The merged reports of all workers. Owned by `Feed`.

    Between calls, `_rows` has every partition that any worker reads.
    """

    def __init__(self, worker_count: int) -> None:
        self._workers = {number: _KnownWorker() for number in range(1, worker_count + 1)}
        self._rows: dict[PartitionKey, PartitionRow] = {}
        self._incidents: deque[dict[str, Any]] = deque(maxlen=MAX_INCIDENTS)
        self._seen_incidents: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._incident_count = 0
        self._history: dict[int, Sample] = {}  # by the number of their interval
        self._figures: dict[str, Any] = {}
        self._figures_at: float | None = None

    def describe_known(self) -> dict[str, tuple[str, int, str, int, int]]:
        """Return what is known of each worker, for the next request on the bus."""
        return {
            str(number): (
                worker.instance, worker.version, worker.incident_log, worker.incident, worker.sample
            )
            for number, worker in self._workers.items()
        }  # fmt: skip

    def apply(self, reports: Mapping[int, Report], now: float) -> dict[str, Any]:
        """Take the reports by worker, and return what changed as JSON."""
        changed: set[PartitionKey] = set()
        incidents: list[tuple[int, Incident]] = []
        sampled: set[int] = set()
        for number, worker in self._workers.items():
            report = reports.get(number)
            worker.is_up = report is not None
            if report is None:
                # What it read is read by nobody now; another one of this number reports anew. Its
                # incidents stay known: it may only have missed an answer.
                changed |= worker.rows.keys()
                worker.rows, worker.instance, worker.version = {}, "", 0
                worker.counters = worker.rates = None
                continue
            changed |= _apply_rows(worker, report)
            incidents += [(number, Incident(*each)) for each in report["incidents"]]
            worker.incident_log, worker.incident = report["incidentLog"], report["incident"]
            for sample in (Sample(*each) for each in report["samples"]):
                self._history[sample.number] = sample.add_worker(self._history.get(sample.number))
                worker.sample = sample.number
                sampled.add(sample.number)
            worker.report = report
        delta: dict[str, Any] = {}
        rows, removed = self._merge_rows(changed)
        if rows:
            delta["partitions"] = rows
        if removed:
            delta["removed"] = removed
        incidents.sort(key=lambda reported: reported[1].at)
        added = [each for each in map(self._add_incident, incidents) if each]
        if added:
            delta["incidents"] = added
        if sampled:
            delta["history"] = [self._history[number].to_json() for number in sorted(sampled)]
            for old in sorted(self._history)[:-MAX_SAMPLES]:
                del self._history[old]
        if self._figures_at is None or now - self._figures_at >= RATES_INTERVAL_S:
            self._figures_at = now
            self._figures = self._compute_figures()
            delta |= {"figures": self._figures, "workers": self._describe_workers()}
        return delta

    def build_snapshot(self) -> dict[str, Any]:
        return {
            "partitions": list(self._rows.values()),
            "incidents": list(self._incidents),
            "history": [sample.to_json() for _, sample in sorted(self._history.items())],
            "figures": self._figures,
            "workers": self._describe_workers(),
        }

    def _merge_rows(
        self, changed: Iterable[PartitionKey]
    ) -> tuple[list[PartitionRow], list[PartitionKey]]:
        rows, removed = list[PartitionRow](), list[PartitionKey]()
        for key in changed:
            found = [each.rows[key] for each in self._workers.values() if key in each.rows]
            merged = _merge_partition(found)
            if merged is None:
                if self._rows.pop(key, None) is not None:
                    removed.append(key)
            elif merged != self._rows.get(key):
                self._rows[key] = merged
                rows.append(merged)
        return rows, removed

    def _add_incident(self, reported: tuple[int, Incident]) -> dict[str, Any] | None:
        """Add an incident; return it as JSON, or None if another worker reported the same."""
        number, incident = reported
        key = incident.kind, incident.subject, incident.text
        seen_at, seen_by = self._seen_incidents.get(key, (float("-inf"), 0))
        if seen_by != number and incident.at - seen_at < SAME_INCIDENT_S:
            return None
        self._seen_incidents[key] = incident.at, number
        if len(self._seen_incidents) > MAX_INCIDENTS:
            del self._seen_incidents[next(iter(self._seen_incidents))]
        self._incident_count += 1
        described = {
            "number": self._incident_count,
            "at": incident.at,
            "kind": incident.kind,
            "subject": incident.subject,
            "text": incident.text,
            "worker": number,
        }
        self._incidents.append(described)
        return described

    def _compute_figures(self) -> dict[str, Any]:
        up = [worker for worker in self._workers.values() if worker.is_up]
        for worker in up:
            after = Counters(*worker.report["counters"])
            worker.rates = (
                None if worker.counters is None else compute_rates(worker.counters, after)
            )
            worker.counters = after
        totals = {
            name: sum(worker.report[name] for worker in up)
            for name in ("clients", "websockets", "behind", "rss", "memory", "memoryLimit")
        }
        reachable: dict[str, bool] = {}
        for worker in up:
            for cluster, is_reachable in worker.report["reachable"].items():
                reachable[cluster] = reachable.get(cluster, True) and is_reachable
        figures: dict[str, Any] = {**totals, "reachable": reachable}
        known_rates = [worker.rates for worker in up if worker.rates is not None]
        if known_rates:
            rates = add_rates(known_rates)
            median, high = (find_quantile(rates.latency, quantile) for quantile in QUANTILES)
            figures |= {
                "delivered": round(rates.delivered, 1),
                "sentBytes": round(rates.sent_bytes),
                "fetched": round(rates.fetched, 1),
                "latencyMedian": median,
                "latencyHigh": high,
            }
        return figures

    def _describe_workers(self) -> list[dict[str, Any]]:
        described = []
        for number, worker in self._workers.items():
            row: dict[str, Any] = {"worker": number, "up": worker.is_up}
            for name in ("pid", "started", "clients", "rss"):
                row[name] = worker.report.get(name)
            row["loopLag"] = (
                None
                if worker.rates is None
                else find_quantile(worker.rates.loop_lag, QUANTILES[-1])
            )
            described.append(row)
        return described


def _apply_rows(worker: _KnownWorker, report: Report) -> set[PartitionKey]:
    changed: set[PartitionKey] = set()
    if report["instance"] != worker.instance:
        changed |= worker.rows.keys()
        worker.rows, worker.instance = {}, report["instance"]
    worker.version = report["version"]
    for values in report["rows"]:
        row = PartitionRow(*values)
        worker.rows[row.key] = row
        changed.add(row.key)
    for cluster, topic, partition in report["removed"]:
        worker.rows.pop((cluster, topic, partition), None)
        changed.add((cluster, topic, partition))
    return changed


def _merge_partition(rows: list[PartitionRow]) -> PartitionRow | None:
    """Return a partition as the worker has it that fares worst with it; None without any."""
    if not rows:
        return None
    worst = min(rows, key=lambda row: (SEVERITIES.get(row.state, 0), row.since))
    same = [each for each in rows if each.state == worst.state]
    lags = [each.lag for each in rows if each.lag is not None]
    return worst._replace(since=min(each.since for each in same), lag=max(lags) if lags else None)
