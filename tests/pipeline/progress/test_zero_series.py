"""What the first scrape of a process with jobs holds: a series of all that can be counted."""

from __future__ import annotations

from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.progress.metrics import add_zero_series
from gateway.telemetry import catalog
from gateway.telemetry.catalog import METRICS, MetricKind
from gateway.telemetry.samples import MetricSamples

JOINED = Pipelines.model_validate(
    {
        "checkpoints": "/tmp/checkpoints",
        "jobs": [
            {
                "name": "paid",
                "type": "join",
                "left": {"topic": "orders", "watermark": "1m"},
                "right": {"topic": "payments", "watermark": "1m"},
                "on": {"order": "order"},
                "to": {"topic": "paid-orders"},
            }
        ],
    }
)

ABSENT = {
    catalog.PIPELINE_STATE_ROWS: "Spark names the operators",
    catalog.PIPELINE_STATE_BYTES: "Spark names the operators",
    catalog.PIPELINE_STATE_MEMORY_BYTES: "Spark names the operators",
    catalog.PIPELINE_WATERMARK_AGE_SECONDS: "a job may have no watermark",
}


def test_every_counter_and_gauge_of_a_job_has_a_series_before_its_query_starts():
    """Counters came with their first event, so that Prometheus saw no increase from 0 to 1."""
    samples = MetricSamples()
    add_zero_series(JOINED.jobs, samples)
    present = {metric for metric, _ in samples}
    expected = {
        metric
        for metric in METRICS
        if metric.name.startswith("gateway_pipeline_")
        and metric.kind is not MetricKind.HISTOGRAM
        and metric not in ABSENT
    }
    assert present == expected
    assert samples[catalog.PIPELINE_GAPS] == {("paid", "orders"): 0, ("paid", "payments"): 0}
    assert samples[catalog.PIPELINE_ALERTS].keys() == {
        ("paid", "late"), ("paid", "state-damaged"), ("paid", "table-not-refreshed"),
        ("paid", "open-transaction"),
    }  # fmt: skip
