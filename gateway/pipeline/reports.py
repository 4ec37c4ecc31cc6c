"""Keep what running jobs report beside Spark's progress: alerts, counts, and times of their parts.

An alert is a problem of a job that an operator must look at. It is a metric while it is active, and
a log line when it begins and when it ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from threading import Lock

from gateway.telemetry import catalog
from gateway.telemetry.catalog import Metric, MetricKind
from gateway.telemetry.samples import MetricSamples

log = logging.getLogger(__name__)

LATE_ALERT = "late"
STATE_ALERT = "state-damaged"
REFRESH_ALERT = "table-not-refreshed"
TRANSACTION_ALERT = "open-transaction"
ALERT_NAMES = (LATE_ALERT, STATE_ALERT, REFRESH_ALERT, TRANSACTION_ALERT)

_MAX_NOTES = 1000
RETAINED_RUNS = 100


class Reports:
    """The reports of the jobs of a process.

    The runner creates one. The parts of a job add to it, in any thread, and `ProgressReporter`
    reads it.
    """

    def __init__(self) -> None:
        self._alerts: dict[tuple[str, str], str] = {}  # message by job and alert
        self._counts: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
        self._gauges: dict[tuple[Metric, tuple[str, ...]], float] = {}
        # By the id of the query, and the batch.
        self._notes: dict[tuple[str, int], dict[str, float]] = {}
        self._jobs_by_run: dict[str, str] = {}  # by run id, the oldest run first
        self._lock = Lock()

    def increment_counter(self, metric: Metric, amount: float, *labels: str) -> None:
        if metric.kind is not MetricKind.COUNTER:
            raise ValueError(f"{metric.name} is a {metric.kind}, not a counter; use set_gauge")
        with self._lock:
            self._counts[metric, labels] += amount  # type: ignore[assignment]

    def set_gauge(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            self._gauges[metric, labels] = value

    def raise_alert(self, job: str, alert: str, message: str) -> None:
        """Make an alert active, or replace its message, which says what to do.

        It is logged as a warning when it begins, and again when the message changes.
        """
        with self._lock:
            previous_message = self._alerts.get((job, alert))
            self._alerts[job, alert] = message
        if previous_message != message:
            level = logging.WARNING if previous_message is None else logging.INFO
            log.log(level, "alert %s of job %s: %s", alert, job, message)

    def clear_alert(self, job: str, alert: str) -> None:
        with self._lock:
            message = self._alerts.pop((job, alert), None)
        if message is not None:
            log.info("alert %s of job %s is over", alert, job)

    def get_alerts(self, job: str) -> Mapping[str, str]:
        """Return the messages of a job's active alerts, by their names."""
        with self._lock:
            return {alert: text for (name, alert), text in self._alerts.items() if name == job}

    def add_note(self, query_id: str, batch: int, **seconds: float) -> None:
        """Add the time that a part of a job took in a batch, for the doctor.

        Args:
            **seconds: The elapsed time of each part. `sink` is how long writers waited for Kafka.
        """
        with self._lock:
            notes = self._notes.setdefault((query_id, batch), {})
            for name, value in seconds.items():
                notes[name] = notes.get(name, 0.0) + value
            while len(self._notes) > _MAX_NOTES:  # nobody takes them without a `ProgressReporter`
                self._notes.pop(next(iter(self._notes)))

    def pop_notes(self, query_id: str, batch: int) -> dict[str, float]:
        with self._lock:
            return self._notes.pop((query_id, batch), {})

    def register_run(self, run_id: str, job: str) -> None:
        """Remember which job a run of a query is of, which Spark's log does not say.

        Only the latest runs of the job are kept: it may start again before the damage of an ended
        run is read from the log. Runs of other jobs are not removed: a job may run for months while
        another one starts again and again.
        """
        with self._lock:
            self._jobs_by_run[run_id] = job
            runs = [run for run, known_job in self._jobs_by_run.items() if known_job == job]
            for run in runs[:-RETAINED_RUNS]:
                del self._jobs_by_run[run]

    def find_job(self, run_id: str) -> str | None:
        """Return the job of a run, or None if the run is unknown or was too many runs ago."""
        return self._jobs_by_run.get(run_id)

    def report_damage(self, job: str, file: str, description: str) -> None:
        """Count damaged state, log it, and raise an alert that names the file."""
        self.increment_counter(catalog.PIPELINE_STATE_DAMAGED, 1, job)
        log.error("damaged state of job %s: %s: %s", job, file, description)
        text = f"{file}: {description}; check the disk, and take a backup"
        self.raise_alert(job, STATE_ALERT, text)

    def collect_metrics(self, samples: MetricSamples) -> None:
        with self._lock:
            values = [*self._counts.items(), *self._gauges.items()]
            alerts = list(self._alerts)
        for (metric, labels), value in values:
            samples.add(metric, value, *labels)
        for job, alert in alerts:
            samples.add(catalog.PIPELINE_ALERTS, 1, job, alert)
