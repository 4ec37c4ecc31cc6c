"""Batches that restore damaged state, with a real Kafka."""

from __future__ import annotations

import json

import pytest
from support.jobs import JOB_TIMEOUT_S, run_until_ended
from support.pipeline_process import produce_values

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.run import query
from gateway.pipeline.run.job_run import classify_error


@pytest.mark.needs("java17")
def test_a_batch_is_not_replayed_without_records_that_retention_has_deleted(kafka, spark, tmp_path):
    """It read what was left, and the state lacked the rest without a word."""
    topic, to = kafka.create_unique_topic(), kafka.create_unique_topic()
    job = {"name": "seen", "type": "query", "trigger": "available-now", "to": {"topic": to}}
    job |= {"tables": {"t": {"topic": topic, "value": {"fields": {"n": "int"}}}}}
    job |= {"sql": "SELECT n FROM t"}
    servers = [kafka.bootstrap_servers]
    produce_values(kafka.bootstrap_servers, topic, [{"n": n} for n in range(5)], "n")
    try:
        assert run_until_ended(spark, servers, tmp_path, job).failure_reason is None
    finally:
        kafka.admin.delete_topic(ledger_topic(to))
    (tmp_path / "seen/v1/commits/0").unlink()
    kafka.admin.delete_records(topic, {0: 3})
    pipelines = {"checkpoints": str(tmp_path), "jobs": [job]}
    settings = loads(json.dumps({"kafka": {"servers": servers}, "pipelines": pipelines}))
    assert isinstance(settings.pipelines, Pipelines)
    (loaded,) = settings.pipelines.jobs
    place = prepare_checkpoint(str(tmp_path), loaded)
    context = query.QueryContext(spark.newSession(), loaded, settings, place, replay_state=True)
    replay = query.start_query(context)
    with pytest.raises(Exception, match="data may have been lost") as raised:
        replay.awaitTermination(JOB_TIMEOUT_S)
    context.close()
    failure = classify_error(raised.value)
    assert "restore a backup" in failure.reason and not failure.is_transient
