"""Checkpoints that their job may not go on from, with Spark and Kafka: nothing is written."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.jobs import JOB_TIMEOUT_S

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.errors import CheckpointRefused
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.exactly_once.ledger import ledger_topic, open_ledger, writer_key
from gateway.pipeline.exactly_once.producers import LedgerProducer
from gateway.pipeline.run import query


@pytest.mark.needs("java17")
def test_a_checkpoint_from_before_a_fresh_start_or_of_another_job_writes_nothing(
    kafka, spark, tmp_path
):
    """The earlier checkpoint went on beside the ledger of the later one: its rows came twice."""
    clicks, to = kafka.create_unique_topic(), kafka.create_unique_topic(2)

    def run(name: str, *, fresh: bool = False) -> None:
        _run(spark, tmp_path, kafka, _job(name, clicks, to), fresh=fresh)

    try:
        _produce(kafka, clicks, range(10))
        run("a")
        run("b")
        earlier, other = tmp_path / "earlier", tmp_path / "other"
        shutil.copytree(tmp_path / "a" / "v1", earlier)
        shutil.copytree(tmp_path / "b" / "v1", other)
        _produce(kafka, clicks, range(10, 20))
        run("a", fresh=True)
        written = Counter({n: 3 if n < 10 else 1 for n in range(20)})
        assert _rows(kafka, to) == written
        _produce(kafka, clicks, range(20, 30))
        own = tmp_path / "a" / "v2"
        own.rename(tmp_path / "own")
        for copy in (earlier, other):
            shutil.copytree(copy, own)
            with pytest.raises(CheckpointRefused if copy is other else Exception) as caught:
                run("a")
            said = "is of job b" if copy is other else "has written the job's rows since"
            assert said in str(caught.value)
            assert "start" in str(caught.value) and "--fresh" in str(caught.value)
            assert _rows(kafka, to) == written
            shutil.rmtree(own)
        (tmp_path / "own").rename(own)
        run("a")
        assert _rows(kafka, to) == written + Counter(range(20, 30))
    finally:
        kafka.admin.delete_topic(ledger_topic(to))


@pytest.mark.needs("java17")
def test_a_batch_that_one_writer_has_committed_is_not_finished_with_another_key(
    kafka, spark, tmp_path
):
    """Its rows were lost with the writer that had committed, or came twice."""
    clicks, to = kafka.create_unique_topic(), kafka.create_unique_topic(2)
    job = _job("a", clicks, to)
    other_key = {**job, "to": {**job["to"], "key": ["n"]}}
    other_sql = {**job, "sql": job["sql"].replace("CAST(n AS", "CAST(n + 1 AS")}
    try:
        _produce(kafka, clicks, range(20))
        _run(spark, tmp_path, kafka, job)
        # As if it had been killed between the commits of its two writers.
        (tmp_path / "a" / "v1" / "commits" / "0").unlink()
        query_id = json.loads((tmp_path / "a" / "v1" / "metadata").read_text())["id"]
        ledger = open_ledger(to, 2, 10.0, {"bootstrap.servers": kafka.bootstrap_servers})
        producer = LedgerProducer("interrupt", ledger.client_config, ledger.topic, 10.0)
        producer.begin()
        key = writer_key(query_id, 1)
        producer.write_entry(ledger.topic, ledger.writer_partition(1), key, None)
        producer.commit()
        for name, changed in (("to.key", other_key), ("sql", other_sql)):
            with pytest.raises(Exception, match=rf"1 of 2 writers .*: {name}; take that back"):
                _run(spark, tmp_path, kafka, changed)
            assert _rows(kafka, to) == Counter(range(20))
        _run(spark, tmp_path, kafka, job)
        repeated = _rows(kafka, to) - Counter(range(20))
        assert 0 < repeated.total() < 20  # those of one writer
        _produce(kafka, clicks, range(20, 30))
        _run(spark, tmp_path, kafka, other_key)
        assert _rows(kafka, to) == Counter(range(30)) + repeated
        kafka.admin.delete_topic(ledger_topic(to))
        with pytest.raises(CheckpointRefused, match="was deleted, which said which rows"):
            _run(spark, tmp_path, kafka, job)
    finally:
        kafka.admin.delete_topic(ledger_topic(to))


def _job(name: str, clicks: str, to: str) -> dict[str, Any]:
    return {
        **{"name": name, "type": "query", "trigger": "available-now"},
        "tables": {"t": {"topic": clicks, "value": {"fields": {"n": "bigint"}}}},
        "sql": "SELECT n, CAST(n AS STRING) AS k FROM t",
        "to": {"topic": to, "key": ["k"], "writers": 2},
    }


def _run(
    spark: Any, root: Path, kafka: KafkaCluster, settings: dict[str, Any], *, fresh: bool = False
) -> None:
    pipelines = {"checkpoints": str(root), "jobs": [settings]}
    loaded = loads(
        json.dumps({"kafka": {"servers": [kafka.bootstrap_servers]}, "pipelines": pipelines})
    )
    assert isinstance(loaded.pipelines, Pipelines)
    job = loaded.pipelines.jobs[0]
    place = prepare_checkpoint(str(root), job, spark, fresh=fresh)
    context = query.QueryContext(spark.newSession(), job, loaded, place)
    try:
        assert query.start_query(context).awaitTermination(JOB_TIMEOUT_S)
    finally:
        context.close()


def _produce(kafka: KafkaCluster, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in numbers:
        producer.produce(topic, json.dumps({"n": n}))
    assert producer.flush(30) == 0


def _rows(kafka: KafkaCluster, topic: str) -> Counter[int]:
    return Counter(json.loads(each.value())["n"] for each in read_committed(kafka, topic, 2))
