"""Connections by which the JVM calls Python."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.waiting import WAIT_TIMEOUT_S, block_until

from gateway.pipeline.spark.internals import close_idle_connections


def start(spark: Any, place: Path, epochs: list[int]) -> Any:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.foreachBatch(lambda _, epoch: epochs.append(epoch))
    return writer.option("checkpointLocation", str(place)).start()


@pytest.mark.needs("java17")
def test_queries_that_ended_leave_no_thread(spark: Any, tmp_path: Path):
    counts = []
    for number in range(6):
        epochs: list[int] = []
        query = start(spark, tmp_path / str(number), epochs)
        block_until(lambda epochs=epochs: epochs, "a batch")
        query.stop()
        close_idle_connections(spark)
        most = counts[0] + 2 if counts else threading.active_count()
        block_until(
            lambda most=most: threading.active_count() <= most,
            f"{most} threads",
            timeout_s=WAIT_TIMEOUT_S,
        )
        counts.append(threading.active_count())


@pytest.mark.needs("java17")
def test_a_query_that_runs_goes_on_where_its_connection_is_closed(spark: Any, tmp_path: Path):
    """That of a batch under way is not: it is of no batch twice."""
    epochs: list[int] = []
    query = start(spark, tmp_path, epochs)
    closed = 0
    while len(epochs) < 12:
        close_idle_connections(spark)
        closed += 1
        assert query.isActive, query.exception()
    query.stop()
    assert closed > 12
    assert query.exception() is None
    assert epochs == list(range(len(epochs)))
