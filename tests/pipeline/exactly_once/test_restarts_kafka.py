"""What the starts of a query leave behind in the process, with a real Kafka."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.jobs import JOB_TIMEOUT_S
from support.waiting import WAIT_TIMEOUT_S, block_until

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.exactly_once.input_topics import InputTopics
from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.run import query
from gateway.pipeline.spark.session import build_job_conf, create_job_session


class Held(NamedTuple):
    """How many of each this process has."""

    descriptors: int
    threads: int
    clients: int  # threads of librdkafka

    def fits(self, before: Held, more: int) -> bool:
        return all(now <= then + more for now, then in zip(self, before, strict=True))


def held() -> Held:
    gc.collect()
    clients = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            clients += (task / "comm").read_text().startswith("rdk:")
        except OSError:  # it has ended
            continue
    return Held(len(os.listdir("/proc/self/fd")), threading.active_count(), clients)


@pytest.mark.needs("java17")
def test_starts_of_a_query_leave_neither_descriptors_nor_threads(kafka, spark, tmp_path):
    """Each left a connection from the JVM open, with a descriptor and a thread of its own."""
    topic, to = kafka.create_unique_topic(), kafka.create_unique_topic()
    made = {"name": "query", "type": "query", "trigger": "available-now", "to": {"topic": to}}
    made["tables"] = {"t": {"topic": topic, "value": {"fields": {"n": "bigint"}}}}
    made["sql"] = "SELECT n FROM t"
    pipelines = {"checkpoints": str(tmp_path), "jobs": [made]}
    loaded = loads(
        json.dumps({"kafka": {"servers": [kafka.bootstrap_servers]}, "pipelines": pipelines})
    )
    assert isinstance(loaded.pipelines, Pipelines)
    job = loaded.pipelines.jobs[0]
    place = prepare_checkpoint(str(tmp_path), job, spark)
    session = create_job_session(spark, build_job_conf(job))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    contexts: list[query.QueryContext] = []

    def start() -> None:
        producer.produce(topic, b'{"n": 1}')
        assert producer.flush(30) == 0
        context = query.QueryContext(session, job, loaded, place)
        if contexts:
            contexts.pop().close()
        contexts.append(context)
        started = query.start_query(context)
        assert started.awaitTermination(JOB_TIMEOUT_S)
        assert started.lastProgress["numInputRows"] == 1

    for _ in range(2):
        start()
    before = held()
    for _ in range(5):
        start()
    try:
        block_until(
            lambda: held().fits(before, more=2),
            f"no more than 2 above {before}",
            timeout_s=WAIT_TIMEOUT_S,
        )
    except TimeoutError as error:
        raise AssertionError(f"{error}; there are {held()}") from None
    finally:
        contexts.pop().close()
        kafka.admin.delete_topic(ledger_topic(to))


def test_topics_of_a_query_that_ended_keep_no_client(kafka: KafkaCluster):
    """The function of its batches keeps them until the JVM's collector runs."""
    places = {
        str(each): ({"bootstrap.servers": kafka.bootstrap_servers}, kafka.create_unique_topic())
        for each in range(3)
    }
    before = held()
    inputs = InputTopics(places)
    assert held().clients > before.clients
    inputs.close()
    block_until(
        lambda: held().clients <= before.clients, "the end of the clients", timeout_s=WAIT_TIMEOUT_S
    )
    assert inputs.topics.keys() == places.keys()
