"""Late events, values that are no events, and what retention took: each told once, by a query that
is stopped and started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import Broker
from support.pipelines import Output

from gateway.config import loads
from gateway.config.pipelines import Pipelines
from gateway.pipeline import query
from gateway.pipeline.place import ready
from gateway.pipeline.session import of_job
from gateway.pipeline.state import profiles

BEGIN = 1_800_000_000_000  # ms


@pytest.mark.needs("java17")
def test_what_is_late_undecodable_or_gone_is_told_once(kafka: Broker, spark: Any, tmp_path: Path):
    clicks, to = kafka.topic(), kafka.topic()
    settings = loads(
        json.dumps(
            {
                "kafka": {"servers": [kafka.servers]},
                "pipelines": {
                    "checkpoints": str(tmp_path),
                    "jobs": [_job(clicks, to)],
                },
            }
        )
    )
    assert isinstance(settings.pipelines, Pipelines)
    job = settings.pipelines.jobs[0]

    def run() -> None:
        place = ready(str(tmp_path), job, spark)
        started = query.start(of_job(spark, profiles.of(job)), job, settings, place)
        assert started.awaitTermination(120)

    _produce(kafka, clicks, [_click(second) for second in (1, 30, 60)])
    run()
    # Three batches, and only the first looks: both others are left to the next process.
    _produce(kafka, clicks, [_click(2), b"no click", _click(90), _click(3), _click(120), _click(4)])
    run()
    _produce(kafka, clicks, [_click(second) for second in (130, 131, 132)])
    run()
    _produce(kafka, clicks, [_click(second) for second in range(140, 150)])
    kafka.admin.delete_records(clicks, {0: 17})
    run()
    late, dead, gaps = (
        _told(kafka, name) for name in (f"{clicks}.late", f"{clicks}.dlq", f"{to}.gaps")
    )
    assert late == [_click(second) for second in (2, 3, 4)]
    assert dead == [b"no click"]
    assert [json.loads(each or b"") for each in gaps] == [
        {
            "topic": clicks,
            "partition": 0,
            "from": 12,
            "to": 17,
            "reason": "retention",
            "job": "visits",
        }
    ]


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


def _produce(kafka: Broker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers})
    for value in values:
        producer.produce(topic, value, "k")
    assert producer.flush(30) == 0


def _told(kafka: Broker, topic: str) -> list[bytes | None]:
    if not kafka.admin.exists(topic):
        return []
    output = Output(kafka.bootstrap, topic, 1)
    try:
        return [value for _, value in output.committed().elements()]
    finally:
        output.close()
        kafka.admin.delete_topic(topic)
