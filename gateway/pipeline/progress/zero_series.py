"""Add the series of jobs that are known before their queries start, with the value 0."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config.sections.job import Job
from gateway.pipeline.jobs import get_inputs
from gateway.pipeline.state.damage import ALERT_NAME as STATE_ALERT
from gateway.pipeline.tables.broadcast import REFRESH_ALERT
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .open_transactions import ALERT_NAME as TRANSACTION_ALERT

LATE_ALERT = "late"
ALERT_NAMES = (LATE_ALERT, STATE_ALERT, REFRESH_ALERT, TRANSACTION_ALERT)
QUERY_FAILED = "STREAM_FAILED"  # Spark's name for most failures of a query


def add_zero_series(jobs: Iterable[Job], samples: MetricSamples) -> None:
    for job in jobs:
        name = [job.name]
        for metric in (
            catalog.PIPELINE_RUNNING, catalog.PIPELINE_STARTS, catalog.PIPELINE_BATCHES,
            catalog.PIPELINE_ROWS, catalog.PIPELINE_LATE_ROWS, catalog.PIPELINE_STATE_DAMAGED,
            catalog.PIPELINE_PROGRESS_UNTOLD, catalog.PIPELINE_ROWS_PER_SECOND,
        ):  # fmt: skip
            samples.add_zeros(metric, name)
        samples.add_zeros(catalog.PIPELINE_FAILURES, name, [QUERY_FAILED])
        samples.add_zeros(catalog.PIPELINE_ALERTS, name, ALERT_NAMES)
        topics = [each.topic for each in get_inputs(job).values()]
        samples.add_zeros(catalog.PIPELINE_GAPS, name, topics)
        samples.add_zeros(catalog.PIPELINE_BEHIND_OFFSETS, name, topics)
