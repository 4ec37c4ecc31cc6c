"""Keep the active alerts of this process: problems of jobs that an operator must look at.

An alert is a metric while it is active, and a log line when it begins and when it ends. Any part of
a job may raise one, in any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

log = logging.getLogger(__name__)

_active: dict[tuple[str, str], str] = {}  # message by job and alert
_lock = Lock()


def raise_alert(job: str, alert: str, message: str) -> None:
    """Make an alert active, or replace its message, which says what to do.

    It is logged as a warning when it begins, and again when the message changes.
    """
    with _lock:
        previous_message = _active.get((job, alert))
        _active[job, alert] = message
    if previous_message != message:
        level = logging.WARNING if previous_message is None else logging.INFO
        log.log(level, "alert %s of job %s: %s", alert, job, message)


def clear_alert(job: str, alert: str) -> None:
    with _lock:
        message = _active.pop((job, alert), None)
    if message is not None:
        log.info("alert %s of job %s is over", alert, job)


def get_active_alerts() -> Mapping[tuple[str, str], str]:
    with _lock:
        return dict(_active)


def list_job_alerts(job: str) -> dict[str, str]:
    with _lock:
        return {alert: message for (name, alert), message in _active.items() if name == job}


def collect_metrics(samples: MetricSamples) -> None:
    for job, alert in get_active_alerts():
        samples.add(catalog.PIPELINE_ALERTS, 1, job, alert)
