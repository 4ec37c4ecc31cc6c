"""Tables of a real Kafka: held by broadcast, and loaded into Redis."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from gateway.config import Kafka
from gateway.config.sections.pipelines import Broadcast, Load
from gateway.pipeline.clusters import build_spark_options
from gateway.pipeline.inputs.source import read_stream
from gateway.pipeline.job_settings import resolve_inputs
from gateway.pipeline.jobs import load
from gateway.pipeline.tables import broadcast
from gateway.pipeline.tables.redis import RedisConfig, RedisTable


def produce(kafka: Any, topic: str, *records: tuple[str, str | None]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0


def test_a_compacted_topic_is_a_table(spark, kafka, tmp_path, redis_server):
    users = kafka.create_unique_topic(2)
    cluster = Kafka.model_validate({"servers": kafka.bootstrap})
    produce(kafka, users, ("a", '{"name":"old"}'), ("b", '{"name":"bob"}'))
    produce(kafka, users, ("a", '{"name":"new"}'), ("b", None), ("c", '{"name":"cid"}'))

    fields = {"name": "string"}
    table = Broadcast.model_validate({"kind": "broadcast", "topic": users, "fields": fields})
    rows = broadcast.load_table(table, spark, build_spark_options(cluster)).collect()
    assert sorted((row[broadcast.KEY_COLUMN], row["name"]) for row in rows) == [
        ("a", "new"),
        ("c", "cid"),
    ]

    into = {"kind": "redis", "url": redis_server.url, "prefix": "users:", "fields": fields}
    job = Load.model_validate(
        {"name": "load", "type": "load", "from": {"topic": users}, "into": into}
    )

    def loaded() -> None:
        stream = read_stream(spark, resolve_inputs(job)["from"], cluster, {})
        writer = stream.writeStream.foreachBatch(load.BatchLoader(job, str(uuid4()))).trigger(
            availableNow=True
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        assert query.exception() is None

    loaded()
    produce(kafka, users, ("c", None), ("d", '{"name":"dan"}'))
    loaded()
    redis = RedisTable(RedisConfig(redis_server.url, "users:", keys_per_command=10))
    ((_, values, _),) = redis.fetch_values(["a", "b", "c", "d"])
    assert values == [b'{"name":"new"}', None, None, b'{"name":"dan"}']
    noted = redis.fetch_positions()
    assert noted[f"{users}:0"] + noted[f"{users}:1"] == 7
