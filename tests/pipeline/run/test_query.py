"""Which jobs tell what is beside their rows, and how a query ends."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from support.dead_letters import read_committed
from support.waiting import block_until

from gateway.config import Kafka, Settings, loads
from gateway.config.sections.job import Output
from gateway.pipeline.checkpoint.job_checkpoint import JobCheckpoint
from gateway.pipeline.run import query
from gateway.pipeline.spark.internals import is_idle, retire_query


def job(trigger: str, **more: Any) -> Any:
    read = {"topic": "clicks", "value": {"fields": {"user": "string"}}, **more}
    made = {"name": "few", "type": "query", "trigger": trigger, "tables": {"clicks": read}}
    made |= {"sql": "SELECT user FROM clicks", "to": {"topic": "few", "guarantee": "at-least-once"}}
    pipelines = {"checkpoints": "/tmp/few", "jobs": [made]}
    text = json.dumps({"kafka": {"servers": ["localhost:9092"]}, "pipelines": pipelines})
    settings = loads(text)
    assert settings.pipelines is not None
    return settings.pipelines.jobs[0]


@pytest.mark.parametrize(
    "written", [{"late": "topic"}, {"onInvalid": "dead-letter"}, {"onDataLoss": "gap"}]
)
def test_a_job_at_least_once_tells_what_is_beside_its_rows_where_that_is_written(written: Any):
    assert query.has_side_outputs(job("1s", **written))


def test_else_it_does_not_nor_in_real_time_mode():
    assert not query.has_side_outputs(job("1s"))
    assert not query.has_side_outputs(job("1s", onInvalid="fail", late="skip"))
    assert not query.has_side_outputs(job("realtime", late="topic"))


def test_the_owner_of_rows_is_the_same_job_with_its_servers_written_in_another_way(kafka):
    """A job that had moved to another host, without its checkpoint, wrote all its rows again."""

    def build_name(servers: list[str], topic: str = "clicks") -> str:
        settings = Settings(kafka=Kafka(servers=servers))
        return query.build_owner_name(job("1s", topic=topic), settings)

    name = build_name(kafka.bootstrap)
    assert build_name(kafka.bootstrap * 2) == name
    assert build_name(kafka.bootstrap, "visits") != name


def test_the_topic_of_a_table_is_watched_beside_the_inputs(kafka, tmp_path):
    """Nothing told of an open transaction, by which the table stayed as it was."""
    clicks, users = kafka.create_unique_topic(), kafka.create_unique_topic()
    read = {"topic": clicks, "value": {"fields": {"user": "string"}}}
    table = {"kind": "broadcast", "topic": users, "fields": {"age": "int"}}
    made = {"name": "few", "type": "enrich", "from": read, "on": "user", "table": table}
    pipelines = {"jobs": [{**made, "to": {"topic": "few"}}]}
    settings = loads(json.dumps({"kafka": {"servers": kafka.bootstrap}, "pipelines": pipelines}))
    assert settings.pipelines is not None
    checkpoint = JobCheckpoint(str(tmp_path), 1, "query", ())
    context = query.QueryContext(None, settings.pipelines.jobs[0], settings, checkpoint)
    ends: dict[Any, Any] = {}
    try:
        block_until(lambda: ends.update(context.topics.fetch_ends() or {}) or ends, "the ends")
        assert {topic.name for topic, _ in ends} == {clicks, users}
        assert context.topics.topics.keys() == {"from"}
    finally:
        context.close()


@pytest.mark.needs("java17")
def test_a_query_ends_with_the_batch_under_way_while_records_keep_coming(spark, tmp_path):
    """Spark is idle for microseconds between two batches. It was stopped where that was seen, by
    luck, or inside a batch after a minute."""
    under_way, told = threading.Event(), threading.Event()
    epochs = []

    def batch(rows: Any, epoch: int) -> None:
        epochs.append(epoch)
        if epoch == 2:
            under_way.set()
            assert told.wait(60)

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path))
    started = writer.start()
    assert under_way.wait(60)
    retire_query(started)
    told.set()
    block_until(lambda: is_idle(started), "the end of the batch")
    started.stop()
    assert epochs == [0, 1, 2]
    for log in ("offsets", "commits"):
        names = [each.name for each in (tmp_path / log).iterdir()]
        assert sorted(name for name in names if name.isdigit()) == ["0", "1", "2"]


@pytest.mark.needs("java17")
def test_a_query_that_waits_for_its_trigger_is_idle_and_one_in_a_batch_is_not(spark, tmp_path):
    under_way, told = threading.Event(), threading.Event()

    def batch(rows: Any, epoch: int) -> None:
        under_way.set()
        assert told.wait(60)

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path))
    started = writer.trigger(processingTime="1 hour").start()
    assert under_way.wait(60)
    assert not is_idle(started)
    told.set()
    block_until(lambda: is_idle(started), "the end of the batch", 30)
    retire_query(started)
    assert is_idle(started)
    started.stop()


@pytest.mark.needs("java17")
def test_rows_are_as_large_as_their_topic_takes_also_at_least_once(kafka, spark):
    """Java's client refused rows over 1 MiB, and the advice was to raise what was raised."""
    topic = kafka.create_unique_topic(configs={"max.message.bytes": "5000000"})
    options = query.build_sink_options(Output(topic=topic), Kafka(servers=kafka.bootstrap))
    # Bytes that LZ4 does not make smaller.
    digests = "transform(sequence(1, 62500), each -> sha2(string(each + id), 256))"
    large = spark.range(2).selectExpr(f"concat_ws('', {digests}) AS value")
    large.write.format("kafka").options(**options).save()
    assert [len(each.value()) for each in read_committed(kafka, topic)] == [4_000_000] * 2
