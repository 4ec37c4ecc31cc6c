"""How the query of a program is looked after."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from support.waiting import block_until

from gateway.errors import PipelineError
from gateway.pipeline.clusters import TopicDescription
from gateway.pipeline.exactly_once.input_topics import LogEnd
from gateway.pipeline.reports import Reports
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples


@pytest.mark.needs("java17")
def test_open_transactions_are_looked_for_also_while_a_query_is_busy():
    """A query that never waited, with one partition behind a transaction, raised no alert."""
    from gateway.pipeline.run.watched_query import WatchedQuery

    reports, has_ended = Reports(), threading.Event()
    in_batch = MagicMock()
    in_batch.awaitTermination = lambda timeout_ms: has_ended.wait(0.001)
    in_batch.stop = has_ended.set
    in_batch.streamingQuery().queryExecutionThread().getStackTrace.return_value = []
    in_batch.status().json.return_value = '{"message": "Processing new data"}'
    ends = {(TopicDescription("orders", "id"), 0): LogEnd(1, 5)}
    context = SimpleNamespace(
        job=SimpleNamespace(name="busy"),
        reports=reports,
        stop_event=threading.Event(),
        side_outputs=None,
        topics=SimpleNamespace(fetch_ends=lambda: ends),
    )

    def count_behind() -> float:
        samples = MetricSamples()
        reports.collect_metrics(samples)
        return samples[catalog.PIPELINE_BEHIND_OFFSETS].get(("busy", "orders"), 0)

    query = WatchedQuery(SimpleNamespace(_jsq=in_batch), context, ExitStack())
    try:
        block_until(lambda: count_behind() == 4, "the records behind the transaction")
    finally:
        query.stop()


@pytest.mark.needs("java17")
def test_a_query_whose_dead_letters_cannot_be_written_ends_by_that_error():
    """`awaitTermination` returned, and the program ended with status 0."""
    from gateway.pipeline.run.watched_query import WatchedQuery

    ended = MagicMock()
    ended.isActive.return_value = False
    ended.exception().isDefined.return_value = False
    refused = PipelineError("clicks.dlq must have cleanup.policy=delete")
    context = SimpleNamespace(
        job=SimpleNamespace(name="ended"),
        reports=Reports(),
        side_outputs=SimpleNamespace(finish=MagicMock(side_effect=refused)),
    )
    query = WatchedQuery(SimpleNamespace(_jsq=ended), context, ExitStack())
    with pytest.raises(PipelineError, match=re.escape(str(refused))):
        query.awaitTermination()
