"""What an operator must look at, until it is over: a metric while it lasts, a line when it begins
and ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

log = logging.getLogger(__name__)

_active: dict[tuple[str, str], str] = {}
_lock = Lock()


def raise_alert(job: str, alert: str, message: str) -> None:
    """Begin one, or go on with it. alert: its name, such as `late` or `state-damaged`. what: a
    sentence with what to do; it is logged when it begins, and when it says something else."""
    with _lock:
        before = _active.get((job, alert))
        _active[job, alert] = message
    if before != message:
        level = logging.WARNING if before is None else logging.INFO
        log.log(level, "alert %s of job %s: %s", alert, job, message)


def clear_alert(job: str, alert: str) -> None:
    """It is over."""
    with _lock:
        before = _active.pop((job, alert), None)
    if before is not None:
        log.info("alert %s of job %s is over", alert, job)


def get_active_alerts() -> Mapping[tuple[str, str], str]:
    """By job and alert, what each says."""
    with _lock:
        return dict(_active)


def collect_metrics(samples: MetricSamples) -> None:
    for job, alert in get_active_alerts():
        samples.add(catalog.PIPELINE_ALERTS, 1, job, alert)
