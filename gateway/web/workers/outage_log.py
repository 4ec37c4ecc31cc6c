"""Log the outages of Kafka once for all workers of a host.

Each worker has its own connections to Kafka, so all of them notice an outage. They send their
reports to the supervisor, which logs the first report of each outage, and its end when no worker
has it any more. An outage that only a worker had that leaves, whether it crashed or its connection
was lost, ends with other words: it is not known whether it lasts. If it does, it is reported anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.outages import (
    CLUSTER_LABEL,
    REPEAT_INTERVAL_S,
    OutageReport,
    Outages,
    is_broker_label,
)

from .bus import Bus
from .relay import Relay, WorkerCounts

BUS_TOPIC = "outages"
# The reminders of the workers arrive a little sooner or later than those before.
_REPEAT_INTERVAL_S = 0.9 * REPEAT_INTERVAL_S


def forward_outages(clusters: Mapping[str, Cluster], bus: Bus) -> None:
    """Let the supervisor log the outages of this worker's clusters."""

    def forward(name: str, report: OutageReport) -> None:
        bus.notify_supervisor(BUS_TOPIC, [name, *report])

    def repeat_all() -> None:
        # What was reported while the supervisor was away did not arrive.
        for name, cluster in clusters.items():
            for report in cluster.outages.iter_reports():
                forward(name, report)

    for name, cluster in clusters.items():
        cluster.outages.forward_to(partial(forward, name))
    bus.join_callbacks.append(repeat_all)


def serve_outages(relay: Relay, now: Callable[[], float] = time.monotonic) -> None:
    """Let a supervisor log the outages of its workers."""
    outage_log = _OutageLog(now)
    relay.add_handler(BUS_TOPIC, outage_log.handle_report)
    relay.leave_callbacks.append(outage_log.on_worker_left)


class _OutageLog:
    """The outages of all workers.

    An outage is here while a connected worker reports it. A worker that is gone would keep it for
    ever: it cannot report that it is over, and its next process knows nothing of it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._outages: dict[str, Outages] = {}  # by the name of the cluster
        self._reports = WorkerCounts[tuple[str, str]]()  # by cluster and what fails there
        self._reached_clusters: set[str] = set()

    def handle_report(self, worker: int, data: Any) -> None:
        cluster, *fields = data
        report = OutageReport(*fields)
        outages = self._outages.get(cluster)
        if outages is None:
            outages = self._outages[cluster] = Outages(
                self._now, cluster=cluster, repeat_interval=_REPEAT_INTERVAL_S
            )
        key = cluster, report.what
        if report.cause is not None:
            if key not in self._reports.get_held(worker):
                self._reports.add(worker, {key: 1})
            # One worker reaches a broker again, whose last failure another takes for the cluster's.
            if is_broker_label(report.what) and self._reports.count((cluster, CLUSTER_LABEL)):
                return
            outages.report_failure(report.what, report.cause, report.text, **report.extra)
            return
        self._reports.release(worker, {key: 1})
        if self._reports.count(key):
            return  # others still have it
        if report.is_first and cluster not in self._reached_clusters:
            self._reached_clusters.add(cluster)
            outages.report_contact(report.text)
        else:
            outages.report_recovery(report.what, report.text)

    def on_worker_left(self, worker: int) -> None:
        """Take a worker from all outages, and log the end of those that no other worker has."""
        held = list(self._reports.get_held(worker))
        self._reports.remove_worker(worker)
        for cluster, what in held:
            if not self._reports.count((cluster, what)):
                self._outages[cluster].report_recovery(what, "no longer reported by any worker")
