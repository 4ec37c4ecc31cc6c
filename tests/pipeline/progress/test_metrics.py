"""Figures of progress."""

from __future__ import annotations

import socket
import time

import pytest
from support.query_progress import (
    BATCH_0_TIME_S,
    build_kafka_source,
    build_operator,
    build_progress,
)

from gateway.config.sections.pipelines import Pipelines
from gateway.errors import PipelineError
from gateway.pipeline.progress.metrics import MetricsServer, ProgressMetrics, add_zero_series
from gateway.telemetry import catalog
from gateway.telemetry.catalog import METRICS, MetricKind
from gateway.telemetry.samples import MetricSamples


def figures(tally: ProgressMetrics) -> MetricSamples:
    into = MetricSamples()
    tally.collect_metrics(into)
    return into


def test_counts_batches_and_shows_the_latest():
    tally = ProgressMetrics(clock=lambda: BATCH_0_TIME_S + 100)
    tally.record_start("orders")
    two = [
        build_operator(row_count=10, dropped_count=1),
        build_operator(row_count=20, rocksdbSstFileSize=500),
    ]
    for each in range(3):
        sources = [build_kafka_source("clicks", 10, 17 + each)]
        told = build_progress(
            each, rows=50, operators=two, sources=sources, newest=50, watermark=40
        )
        tally.record_batch("orders", told)
    found = figures(tally)
    job = ("orders",)
    assert found[catalog.PIPELINE_BATCHES] == {job: 3}
    assert found[catalog.PIPELINE_ROWS] == {job: 150}
    assert found[catalog.PIPELINE_LATE_ROWS] == {job: 3}
    assert found[catalog.PIPELINE_WATERMARK_AGE_SECONDS] == {job: 60}
    assert found[catalog.PIPELINE_BEHIND_OFFSETS] == {("orders", "clicks"): 9}
    assert found[catalog.PIPELINE_STATE_ROWS] == {("orders", "stateStoreSave"): 30}
    assert found[catalog.PIPELINE_STATE_BYTES] == {("orders", "stateStoreSave"): 500}


def test_starts_after_the_first_are_restarts_and_errors_have_a_class():
    tally = ProgressMetrics()
    for _ in range(2):
        tally.record_start("orders")
        tally.record_end("orders", "STREAM_FAILED")
    tally.record_start("orders")
    assert figures(tally)[catalog.PIPELINE_RUNNING] == {("orders",): 1}
    tally.record_end("orders", None)
    found = figures(tally)
    assert found[catalog.PIPELINE_RUNNING] == {("orders",): 0}
    assert found[catalog.PIPELINE_STARTS] == {("orders",): 3}
    assert found[catalog.PIPELINE_FAILURES] == {("orders", "STREAM_FAILED"): 2}


def test_a_job_without_watermark_has_no_age_of_it():
    tally = ProgressMetrics()
    tally.record_batch("orders", build_progress(0))
    assert not figures(tally)[catalog.PIPELINE_WATERMARK_AGE_SECONDS]


def test_a_port_that_is_taken_is_told():
    with (
        MetricsServer("127.0.0.1", 0, MetricSamples) as first,
        pytest.raises(PipelineError, match="use another port"),
    ):
        MetricsServer("127.0.0.1", first.port, MetricSamples)


def test_clients_that_do_not_end_their_requests_hold_few_connections_and_not_for_ever():
    """One that sent a byte every 9 s held a thread and a descriptor for each of its connections,
    until none were left and all jobs of the process had failed."""
    with (
        MetricsServer("127.0.0.1", 0, MetricSamples, max_connections=1, timeout_s=600) as server,
        socket.create_connection(("127.0.0.1", server.port)) as slow,
        socket.create_connection(("127.0.0.1", server.port)) as other,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert other.recv(1) == b""
    with (
        MetricsServer("127.0.0.1", 0, MetricSamples, timeout_s=1) as server,
        socket.create_connection(("127.0.0.1", server.port)) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        slow.settimeout(0.1)
        deadline, is_closed = time.monotonic() + 60, False
        while not is_closed:
            assert time.monotonic() < deadline, "each byte is given time of its own"
            try:
                slow.sendall(b"x")
                is_closed = not slow.recv(4096)
            except TimeoutError:
                pass
            except ConnectionError:
                is_closed = True


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
