"""Which records of the progress topic are read: the latest, and not too many."""

from __future__ import annotations

import json

import httpx
import pytest
from support.brokers import KafkaCluster, embedded_kafka
from support.records import RecordToSend, open_transaction, produce_records
from support.topic_reads import open_cluster

from gateway.config import loads
from gateway.errors import UnknownTopic
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app
from gateway.web.console.kafka_lookup import MIN_RECORDS, list_partitions, read_latest

kafka = embedded_kafka({"progress": 2, "single": 1, "empty": 1})

VALUE_BYTES = 10


async def produce_numbers(kafka: EmbeddedKafka, topic: str, partition: int, count: int) -> None:
    for number in range(count):  # a batch each, as jobs write them
        value = f"{number:0{VALUE_BYTES}}".encode()
        await produce_records(kafka.bootstrap, topic, [RecordToSend(value, partition=partition)])


async def read_values(cluster: Cluster, topic: str, **limits: int) -> list[bytes]:
    records = await read_latest(cluster, await list_partitions(cluster, topic), **limits)
    return [each.value or b"" for each in records]


async def test_the_latest_records_of_each_partition_are_read(kafka: EmbeddedKafka):
    count = MIN_RECORDS + 5
    for partition in range(2):
        await produce_numbers(kafka, "progress", partition, count)
    async with open_cluster(kafka.bootstrap, "progress") as cluster:
        values = await read_values(cluster, "progress", max_records=2)
    # The least that the doctor needs, however few are asked for.
    assert [int(value) for value in values] == [*range(5, count)] * 2


async def test_only_so_many_bytes_are_kept_and_they_are_the_newest(kafka: EmbeddedKafka):
    await produce_numbers(kafka, "single", 0, 12)
    async with open_cluster(kafka.bootstrap, "single") as cluster:
        values = await read_values(cluster, "single", max_bytes=3 * VALUE_BYTES)
    assert [int(value) for value in values] == [9, 10, 11]


async def test_records_before_those_of_a_transaction_are_read(session_kafka: KafkaCluster):
    """A topic of 100 records and 60 of an open or aborted transaction was shown as empty."""
    topic, bootstrap = session_kafka.create_unique_topic(), session_kafka.bootstrap
    await produce_records(bootstrap, topic, [b"%d" % n for n in range(MIN_RECORDS)])
    async with open_cluster(bootstrap, topic) as cluster:
        async with open_transaction(bootstrap) as transaction:
            await transaction.write_records(topic, [b"no"] * (MIN_RECORDS + 5))
            values = await read_values(cluster, topic, max_records=1)
        assert [int(value) for value in values] == [*range(MIN_RECORDS)]
        values = await read_values(cluster, topic, max_records=1)
        assert [int(value) for value in values] == [*range(MIN_RECORDS)]
    session_kafka.delete_topics()


async def test_a_topic_without_records_and_one_that_is_missing(kafka: EmbeddedKafka):
    async with open_cluster(kafka.bootstrap, "empty") as cluster:
        assert await read_values(cluster, "empty") == []
        with pytest.raises(UnknownTopic):
            await read_values(cluster, "missing")


async def test_without_a_topic_the_page_says_which_option_to_set():
    config = {
        "kafka": {"servers": ["127.0.0.1:1"], "topics": ["orders"]},
        "pipelines": {},
        "admin": {},
    }
    app = create_app(loads(json.dumps(config), name="test"))
    transport = httpx.ASGITransport(app.admin.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9901") as http:
        response = await http.get("/console/jobs")
    assert response.status_code == 404
    assert "pipelines.progress.topic" in response.json()["detail"]
