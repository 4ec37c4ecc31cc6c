"""Figures of progress."""

from __future__ import annotations

import pytest
from support.progresses import BEGAN, kafka, operator, progress

from gateway.errors import PipelineError
from gateway.pipeline.progress import counts
from gateway.pipeline.progress.scrape import Scraped
from gateway.pipeline.progress.tally import Tally
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures


def figures(tally: Tally) -> Figures:
    into = Figures()
    tally.figures(into)
    return into


def test_counts_batches_and_shows_the_latest():
    tally = Tally(clock=lambda: BEGAN + 100)
    tally.began("orders")
    two = [operator(rows=10, dropped=1), operator(rows=20, rocksdbSstFileSize=500)]
    for each in range(3):
        sources = [kafka("clicks", 10, 17 + each)]
        told = progress(each, rows=50, operators=two, sources=sources, newest=50, watermark=40)
        tally.took("orders", told)
    found = figures(tally)
    job = ("orders",)
    assert found[catalog.PIPELINE_BATCHES] == {job: 3}
    assert found[catalog.PIPELINE_ROWS] == {job: 150}
    assert found[catalog.PIPELINE_LATE] == {job: 3}
    assert found[catalog.PIPELINE_WATERMARK_AGE] == {job: 60}
    assert found[catalog.PIPELINE_BEHIND] == {("orders", "clicks"): 9}
    assert found[catalog.PIPELINE_STATE_ROWS] == {("orders", "stateStoreSave"): 30}
    assert found[catalog.PIPELINE_STATE_BYTES] == {("orders", "stateStoreSave"): 500}


def test_starts_after_the_first_are_restarts_and_errors_have_a_class():
    tally = Tally()
    for _ in range(2):
        tally.began("orders")
        tally.ended("orders", "STREAM_FAILED")
    tally.began("orders")
    assert figures(tally)[catalog.PIPELINE_RUNNING] == {("orders",): 1}
    tally.ended("orders", None)
    found = figures(tally)
    assert found[catalog.PIPELINE_RUNNING] == {("orders",): 0}
    assert found[catalog.PIPELINE_STARTS] == {("orders",): 3}
    assert found[catalog.PIPELINE_FAILURES] == {("orders", "STREAM_FAILED"): 2}


def test_a_job_without_watermark_has_no_age_of_it():
    tally = Tally()
    tally.took("orders", progress(0))
    assert not figures(tally)[catalog.PIPELINE_WATERMARK_AGE]


def test_parts_of_a_job_count_beside_it():
    counts.add(catalog.PIPELINE_UNTOLD, 2, "counted")
    counts.add(catalog.PIPELINE_UNTOLD, 1, "counted")
    counts.put(catalog.PIPELINE_RATE, 5, "counted")
    into = Figures()
    counts.figures(into)
    assert into[catalog.PIPELINE_UNTOLD]["counted",] == 3
    assert into[catalog.PIPELINE_RATE]["counted",] == 5
    with pytest.raises(ValueError, match="no counter"):
        counts.add(catalog.PIPELINE_RATE, 1, "counted")


def test_a_port_that_is_taken_is_told():
    with (
        Scraped("127.0.0.1", 0, Figures) as first,
        pytest.raises(PipelineError, match="use another port"),
    ):
        Scraped("127.0.0.1", first.port, Figures)
