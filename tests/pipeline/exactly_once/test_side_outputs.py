"""Late events, values that are no events, and what retention took: each told once, by a query that
is stopped and started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import TEST_PROPERTIES, KafkaCluster, running_kafka
from support.dead_letters import get_header, read_committed
from support.jobs import JOB_TIMEOUT_S
from support.pipelines import OutputTopic

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.kafka.local import LocalKafka
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.run import query
from gateway.pipeline.spark import session
from gateway.pipeline.spark.session import create_job_session

BEGIN = 1_800_000_000_000  # ms


@pytest.mark.needs("java17")
def test_what_is_late_undecodable_or_gone_is_told_once(kafka, spark, tmp_path):
    """Spark's first watermark is 1970. It was taken for none, so the events before, which Spark
    drops, were nowhere."""
    clicks, to = kafka.create_unique_topic(), kafka.create_unique_topic()

    def run() -> None:
        _run(spark, tmp_path, {"servers": [kafka.bootstrap_servers]}, _job(clicks, to))

    before_1970 = _click(-BEGIN // 1000 - 60)
    _produce(kafka, clicks, [before_1970, *(_click(second) for second in (1, 30, 60))])
    run()
    # Three batches, and only the first looks: both others are left to the next process.
    _produce(kafka, clicks, [_click(2), b"no click", _click(90), _click(3), _click(120), _click(4)])
    run()
    _produce(kafka, clicks, [_click(second) for second in (130, 131, 132)])
    run()
    _produce(kafka, clicks, [_click(second) for second in range(140, 150)])
    kafka.admin.delete_records(clicks, {0: 18})
    run()
    late, dead, gaps = (
        _told(kafka, name) for name in (f"{clicks}.late", f"{clicks}.dlq", f"{to}.gaps")
    )
    assert late == [before_1970, *(_click(second) for second in (2, 3, 4))]
    assert dead == [b"no click"]
    assert [json.loads(each or b"") for each in gaps] == [
        {
            "topic": clicks,
            "partition": 0,
            "from": 13,
            "to": 18,
            "reason": "retention",
            "job": "visits",
            "input": "from",
        }
    ]


@pytest.mark.needs("java17")
def test_both_sides_of_a_join_tell_their_own_records_of_one_topic(kafka, spark, tmp_path):
    """What the right side left out was taken for told, as the left side had told of the batch. And
    what is left by a run that has done all there was waited for a run with new records."""
    events, to = kafka.create_unique_topic(), kafka.create_unique_topic()

    def side(time: str) -> dict[str, Any]:
        fields = {"fields": {"order": "string", time: "timestamp_ms"}}
        return {"topic": events, "time": time, "value": fields}

    job = {
        **{"name": "paid", "type": "join", "trigger": "available-now", "to": {"topic": to}},
        **{"left": side("at"), "right": side("paid"), "on": {"order": "order"}, "after": "1h"},
        "select": {"order": "left.order", "at": "left.at"},
    }
    values = [{"order": "1", "at": BEGIN}, {"order": "1", "paid": BEGIN}, {"order": "1"}]
    _produce(kafka, events, [json.dumps(each).encode() for each in values])
    _run(spark, tmp_path, {"servers": [kafka.bootstrap_servers]}, job, finish=True)
    found = read_committed(kafka, f"{events}.dlq")
    kafka.admin.delete_topic(f"{events}.dlq")
    told = [(get_header(each, "X-Origin-Input"), json.loads(each.value())) for each in found]
    left = [(b"left", each) for each in (values[1], values[2])]
    right = [(b"right", each) for each in (values[0], values[2])]
    assert sorted(told, key=str) == sorted([*left, *right], key=str)


@pytest.mark.needs("java17")
def test_invalid_records_are_written_once_also_if_types_and_output_change(kafka, spark, tmp_path):
    """What had not been looked at was neither a row nor a dead letter, and the rest came twice."""
    clicks, to, other = (kafka.create_unique_topic() for _ in range(3))

    def run(topic: str, n: str, values: list[bytes]) -> None:
        read = {"topic": clicks, "maxRecords": 1, "value": {"fields": {"n": n}}}
        job = {
            **{"name": "few", "type": "query", "trigger": "available-now"},
            **{"tables": {"t": read}, "sql": "SELECT n FROM t", "to": {"topic": topic}},
        }
        _produce(kafka, clicks, values)
        _run(spark, tmp_path, {"servers": [kafka.bootstrap_servers]}, job)

    run(to, "int", [b'{"n": 1}', b"bad", b'{"n": "x"}'])
    run(other, "string", [b'{"n": "y"}'])
    run(other, "string", [b"worse"])
    run(other, "string", [b'{"n": "z"}'])
    assert _told(kafka, to) == [b'{"n":1}']
    assert sorted(map(str, _told(kafka, other))) == [str(b'{"n":"y"}'), str(b'{"n":"z"}')]
    dead = [b"bad", b"worse", b'{"n": "x"}']
    assert sorted(map(str, _told(kafka, f"{clicks}.dlq"))) == sorted(map(str, dead))


@pytest.mark.needs("java17")
def test_a_dead_letter_is_as_large_as_the_input_allows(kafka, spark, tmp_path):
    """It was cut to 16 KiB, because its topic had the default limit of 1 MiB."""
    to, large = kafka.create_unique_topic(), b"bad" * 700_000
    clicks = kafka.create_unique_topic(configs={"max.message.bytes": "10000000"})
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": 10_000_000}
    )
    producer.produce(clicks, large)
    assert producer.flush(30) == 0
    _run(spark, tmp_path, {"servers": [kafka.bootstrap_servers]}, _job(clicks, to), finish=True)
    assert _told(kafka, f"{clicks}.dlq") == [large]


@pytest.mark.needs("java17")
def test_two_clusters_with_a_topic_of_one_name_are_told_apart(kafka, spark, tmp_path):
    """One cluster's position was held against the other's log start, a gap that there was not;
    then the one was read up to the other's end, for ever."""
    topic, to = kafka.create_unique_topic(), kafka.create_unique_topic()
    value = {"fields": {"n": "bigint"}}
    job = {
        **{"name": "both", "type": "query", "trigger": "available-now"},
        "tables": {each: {"topic": topic, "kafka": each, "value": value} for each in ("eu", "us")},
        "sql": "SELECT n FROM us UNION ALL SELECT n FROM eu",
        "to": {"topic": to, "kafka": "eu"},
    }
    with running_kafka(LocalKafka(properties=TEST_PROPERTIES)) as other:
        us = KafkaCluster(other.bootstrap, other)
        us.create_topic(topic)
        clusters = {"eu": {"servers": kafka.bootstrap}, "us": {"servers": us.bootstrap}}
        _produce(us, topic, [b'{"n": 0}'] * 30)
        us.admin.delete_records(topic, {0: 30})
        for number in range(2):
            _produce(kafka, topic, [b'{"n": %d}' % number, b"eu"])
            _produce(us, topic, [b'{"n": %d}' % (number + 10), b"us"])
            _run(spark, tmp_path, clusters, job)
        _produce(kafka, topic, [b'{"n": 2}'])
        _run(spark, tmp_path, clusters, job)
    rows = sorted(json.loads(value or b"")["n"] for value in _told(kafka, to))
    letters = read_committed(kafka, f"{topic}.dlq")
    kafka.admin.delete_topic(f"{topic}.dlq")
    assert rows == [0, 1, 2, 10, 11]
    assert _told(kafka, f"{to}.gaps") == []
    told = sorted((get_header(each, "X-Origin-Input"), each.value()) for each in letters)
    assert told == [(b"eu", b"eu")] * 2 + [(b"us", b"us")] * 2


def _run(
    spark: Any,
    root: Path,
    clusters: dict[str, Any],
    settings: dict[str, Any],
    *,
    finish: bool = False,
) -> None:
    """To the end of what there is. finish: or does the process end before it has told all?"""
    pipelines = {"checkpoints": str(root), "jobs": [settings]}
    loaded = loads(json.dumps({"kafka": clusters, "pipelines": pipelines}))
    assert isinstance(loaded.pipelines, Pipelines)
    job = loaded.pipelines.jobs[0]
    place = prepare_checkpoint(str(root), job, spark)
    own_session = create_job_session(spark, session.build_job_conf(job))
    context = query.QueryContext(own_session, job, loaded, place)
    try:
        assert query.start_query(context).awaitTermination(JOB_TIMEOUT_S)
        if finish:
            assert context.side_outputs is not None
            context.side_outputs.finish()
    finally:
        context.close()


def _job(clicks: str, to: str) -> dict[str, Any]:
    return {
        "name": "visits",
        "type": "aggregate",
        "trigger": "available-now",
        "from": {
            "topic": clicks,
            "value": {"fields": {"user": "string", "at": "timestamp_ms"}},
            "time": "at",
            "watermark": "0s",
            "maxRecords": 3,
        },
        "by": ["user"],
        "window": {"size": "10s"},
        "measures": {"clicks": "count(1)"},
        "to": {"topic": to, "writers": 1},
    }


def _click(second: int) -> bytes:
    return json.dumps({"user": "ann", "at": BEGIN + second * 1000}).encode()


def _produce(kafka: KafkaCluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, "k")
    assert producer.flush(30) == 0


def _told(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    if not kafka.admin.topic_exists(topic):
        return []
    output = OutputTopic(kafka.bootstrap, topic, 1)
    try:
        return [value for _, value in output.read_committed().elements()]
    finally:
        output.close()
        kafka.admin.delete_topic(topic)
