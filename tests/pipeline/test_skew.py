"""How a topic's load is measured: on tables, and on topics of a real Kafka."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.jobs import JOB_TIMEOUT_S
from support.joins import JoinRule, join_rows
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config import Kafka
from gateway.config.sections.pipelines import Join
from gateway.core.log.record import TopicPartition
from gateway.errors import PipelineError
from gateway.pipeline.inputs.source import read_stream
from gateway.pipeline.jobs import join
from gateway.pipeline.skew import (
    SkewReport,
    fetch_log_ranges,
    find_hot_keys,
    find_join_hot_keys,
    measure_key_loads,
    measure_partition_loads,
    measure_skew,
    render_report,
    select_newest,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def tps(*partitions: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in partitions]


def test_the_sample_has_as_many_records_of_each_partition_as_the_topic_in_proportion() -> None:
    zero, one, empty = tps(0, 1, 2)
    found = select_newest({zero: (1000, 10_000), one: (50, 1050), empty: (7, 7)}, 1000)
    assert found == {zero: (7300, 10_000), one: (750, 1050)}


def test_a_short_topic_is_looked_at_whole() -> None:
    (zero,) = tps(0)
    assert select_newest({zero: (3, 10)}, 1000) == {zero: (3, 10)}
    assert select_newest({zero: (3, 3)}, 1000) == {}


def sample(spark: Any) -> Any:
    """Of 100: 50 of a, 30 of b (20 of them with x), 10 of c and of d; and 25 heartbeats."""
    named = ["a"] * 50 + ["b"] * 30 + ["c"] * 10 + ["d"] * 10 + [None] * 25
    rows = [
        (name, "x" if number < 70 else "y", number % 2, NOON + timedelta(seconds=number))
        for number, name in enumerate(named)
    ]
    return spark.createDataFrame(
        rows, "k string, more string, _partition int, _timestamp timestamp"
    )


def test_hot_keys_have_the_share_or_more(spark: Any) -> None:
    assert find_hot_keys(sample(spark), ["k"], 30) == ["a", "b"]
    assert find_hot_keys(sample(spark), ["k"], 30.5) == ["a"]
    assert find_hot_keys(sample(spark), ["k", "more"], 20) == ['["a","x"]', '["b","x"]']
    assert find_hot_keys(sample(spark).limit(9), ["k"], 1) == []  # 9 records say nothing


def test_keys_and_partitions_are_told_by_their_weight(spark: Any) -> None:
    found = measure_key_loads(sample(spark), ["k"], 3)
    assert [(load.key, load.records) for load in found] == [("a", 50), ("b", 30), ("c", 10)]
    zero, one, silent = tps(0, 1, 2)
    bounds = {zero: (0, 1000), one: (5, 1005), silent: (9, 9)}
    loads = measure_partition_loads(sample(spark), bounds)
    assert [(load.partition, load.records, load.sampled) for load in loads] == [
        (0, 1000, 63),
        (1, 1000, 62),
        (2, 0, 0),
    ]
    assert loads[0].rate == loads[1].rate == 0.5
    assert loads[2].rate is None


def test_a_report_is_a_table_for_people() -> None:
    found = SkewReport("left", "orders", ("k",), 0, (), (), ())
    assert render_report(found).splitlines()[0] == "left: orders, the newest 0 records"
    assert render_report(found).splitlines()[-1] == "  Even enough: nothing to set."


# On a real Kafka


def order_json(kind: str, number: int, seconds: float) -> bytes:
    at = (NOON + timedelta(seconds=seconds)).isoformat()
    return f'{{"{kind}": "{kind}-{number}", "order": "o-{number}", "at": "{at}"}}'.encode()


def job(orders: str, payments: str, **more: Any) -> Join:
    sides = {
        side: {"topic": topic, "time": "at", "watermark": "1m", "value": {"fields": fields}}
        | (more if side == "left" else {})
        for side, topic, fields in (
            ("left", orders, {"order": "string", "at": "timestamp"}),
            ("right", payments, {"payment": "string", "order": "string", "at": "timestamp"}),
        )
    }
    rest = {"name": "paid", "type": "join", "on": {"order": "order"}, "to": {"topic": "paid"}}
    return Join.model_validate({**rest, **sides, "kind": "left", "salt": {"share": 40}})


@pytest.fixture
def cluster(kafka: Any) -> Kafka:
    return Kafka.model_validate({"servers": kafka.bootstrap})


def produce(kafka: Any, topic: str, records: list[tuple[int, bytes]]) -> None:
    """All at one instant, or rates of partitions would depend on how fast this is."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    now = int(time.time() * 1000)
    for partition, value in records:
        producer.produce(topic, value, partition=partition, timestamp=now)
    assert producer.flush(60) == 0


def test_topics_of_100_and_of_50_partitions_are_joined(spark, kafka, cluster, tmp_path):
    """A record's partition says nothing about its key to Spark, which shuffles by key: topics need
    no equal number of partitions, nor the same partitioner."""
    orders, payments = kafka.create_unique_topic(100), kafka.create_unique_topic(50)
    paid = [number for number in range(12) if number % 3]
    produce(kafka, orders, [(9 * n, order_json("order", n, n)) for n in range(12)])
    produce(kafka, payments, [(49 - n, order_json("payment", n, n + 5)) for n in paid])
    settings = job(orders, payments)
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.join.stateFormatVersion", "3")
    tables = {
        side: read_stream(own, input, cluster, {})
        for side, input in (("left", settings.left), ("right", settings.right))
    }
    query = join.build(settings, tables).writeStream.format("memory").queryName("of_150")
    running = query.option("checkpointLocation", str(tmp_path)).start()
    running.processAllAvailable()
    heartbeat = f'{{"at": "{(NOON + timedelta(days=1)).isoformat()}"}}'.encode()
    for topic in (orders, payments):
        produce(kafka, topic, [(0, heartbeat)])
    running.processAllAvailable()
    found = {(row.order, row.payment) for row in own.table("of_150").collect()}
    left = [{"order": f"o-{n}", "at": NOON + timedelta(seconds=n)} for n in range(12)]
    right = [
        {"payment": f"payment-{n}", "order": f"o-{n}", "at": NOON + timedelta(seconds=n + 5)}
        for n in paid
    ]
    rule = JoinRule({"order": "order"}, kind="left")
    assert found == {(a["order"], b and b["payment"]) for a, b in join_rows(rule, left, right)}


@pytest.mark.parametrize(
    "more", [{"maxRecordsPerPartition": 500}, {"minPartitions": 8}], ids=["records", "partitions"]
)
def test_a_hot_partition_is_read_by_several_tasks(spark, kafka, cluster, more):
    from pyspark.sql import functions as F

    hot = kafka.create_unique_topic(4)
    produce(kafka, hot, [(0, order_json("order", n, n)) for n in range(3000)])
    produce(kafka, hot, [(p, order_json("order", p, 0)) for p in (1, 2, 3)])
    seen: dict[int, int] = {}

    def tasks(rows: Any, _: int) -> None:
        by_task = rows.select("_partition", F.spark_partition_id().alias("task")).distinct()
        seen.update({row[0]: row[1] for row in by_task.groupBy("_partition").count().collect()})

    for given in ({}, more):
        events = read_stream(spark, job(hot, hot, **given).left, cluster, {})
        query = events.writeStream.foreachBatch(tasks).trigger(availableNow=True).start()
        assert query.awaitTermination(JOB_TIMEOUT_S)
        assert (seen.pop(0) >= 5) == bool(given)
        assert seen == {1: 1, 2: 1, 3: 1}


def test_what_is_hot_is_found_in_the_newest_records(spark: Any, kafka: Any, cluster: Kafka) -> None:
    orders, payments = kafka.create_unique_topic(4), kafka.create_unique_topic(1)
    produce(kafka, orders, [(0, order_json("order", 7, n)) for n in range(600)])
    produce(kafka, orders, [(n % 4, order_json("order", n, n)) for n in range(100, 400)])
    produce(kafka, payments, [(0, order_json("payment", n, n)) for n in range(20)])
    settings = job(orders, payments)
    left, right = measure_skew(spark, settings, {"": cluster}, {}, 150)
    assert [load.key for load in left.keys if load.share > 40] == ["o-7"]
    assert left.partitions[0].records == 675
    assert [text[:11] for text in left.advice] == ["partition 0"]
    assert right.advice == ()
    assert find_join_hot_keys(spark, settings, {"": cluster}, {}) == ["o-7"]
    assert "o-7" in render_report(left)


def test_the_command_tells_each_input(spark, kafka, tmp_path, monkeypatch):
    orders, payments = kafka.create_unique_topic(1), kafka.create_unique_topic(1)
    for topic in (orders, payments):
        produce(kafka, topic, [(0, order_json("order", 7, n)) for n in range(10)])
    settings = job(orders, payments).model_dump(mode="json", by_alias=True)
    config = tmp_path / "gateway.yaml"
    shown = {"kafka": {"servers": kafka.bootstrap}, "pipelines": {"jobs": [settings]}}
    config.write_text(json.dumps(shown))
    lent = SimpleNamespace(read=spark.read, stop=lambda: None)
    monkeypatch.setattr("gateway.pipeline.spark.session.create_session", lambda *_: lent)
    found = CliRunner().invoke(app, ["pipeline", "skew", "paid", "-c", str(config), "--json"])
    assert found.exit_code == 0, found.output
    left, right = map(json.loads, found.stdout.splitlines())
    assert (left["side"], right["side"]) == ("left", "right")
    assert left["keys"] == [{"key": "o-7", "records": 10, "share": 100.0}]


def test_a_topic_that_is_missing_is_told(cluster: Kafka) -> None:
    with pytest.raises(PipelineError, match="topic no-such-topic"):
        fetch_log_ranges(cluster, "no-such-topic")
