"""Kafka 2.8, the oldest that is tested, and 3.9, the last with ZooKeeper.

All other tests use the Kafka of `gateway.kafka.local`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from support.admin import KafkaAdmin
from support.clients.raw import RawClient
from support.gateways import build_config, build_route, create_http_client, running_gateway_process
from support.group_members import running_member
from support.grouped import ERROR_NAMES
from support.instances import ConsumerInstance
from support.old_kafka import OldKafka
from support.oracle import StreamOracle, parse_events
from support.received import parse_envelope
from support.records import RecordToSend, produce_records
from support.requirements import require_tools
from support.sidecars import running_sidecar, wait_until_ready
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.local import LocalKafka

pytestmark = pytest.mark.needs("kafka")

PARTITIONS = 3
WITHIN_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module", params=["2.8.2", pytest.param("3.9.1", marks=pytest.mark.night)])
def kafka(request: pytest.FixtureRequest) -> Iterator[OldKafka]:
    require_tools("java17")
    with OldKafka(request.param) as running:
        yield running


def list_events(client: RawClient) -> list[Mapping[str, Any]]:
    """All but errors that pass: with ZooKeeper, a broker that has just started knows no topics."""
    return [
        event
        for event in client.events
        if event["event"] not in ERROR_NAMES or "unknown-topic" not in event["data"]
    ]


async def wait_for_all(oracle: StreamOracle, client: RawClient) -> None:
    await wait_until(
        lambda: not oracle.list_missing(parse_events(list_events(client)), lambda _: True),
        timeout_s=WITHIN_S,
    )


async def test_each_committed_record_comes_once_also_when_the_broker_is_killed(kafka: OldKafka):
    topic = "orders"
    kafka.create_topic(topic, PARTITIONS)
    config = build_config(kafka.bootstrap, [topic], [build_route(topic, "envelope")])
    async with running_gateway_process(config) as gateway, StreamOracle(kafka.bootstrap) as oracle:
        url = f"{gateway.base_url}/records/{topic}?from=earliest"
        async with RawClient(url) as client:
            await oracle.produce_records(topic, 50)
            await oracle.produce_transaction(topic, 20)
            await oracle.produce_transaction(topic, 20, commit=False)
            await wait_for_all(oracle, client)
            kafka.broker.kill()
            kafka.wait_until_ready()
            await oracle.produce_records(topic, 50)
            await wait_for_all(oracle, client)
            start = {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}
            oracle.check_events(list_events(client), start=start)


async def test_a_request_that_is_repeated_writes_its_record_once(kafka: OldKafka):
    kafka.create_topic("votes", PARTITIONS)
    produce = {"capability": "produce", "topic": "votes"}
    routes = [{"when": [{"path": "/votes"}], "with": produce}]
    async with (
        running_gateway_process(build_config(kafka.bootstrap, ["votes"], routes)) as gateway,
        create_http_client(gateway) as http,
    ):
        headers = {"Idempotency-Key": "one"}
        first = await http.post("/votes", content="yes", headers=headers)
        again = await http.post("/votes", content="yes", headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == {**first.json(), "repeated": True}


async def test_the_sidecar_writes_transactions_and_reads_them_as_a_group(kafka: OldKafka):
    kafka.create_topic("payments", PARTITIONS)
    async with running_sidecar(kafka.bootstrap, producer={}, consumer={}) as http:
        await wait_until_ready(http)
        values = [f"payment {n}" for n in range(20)]
        body = {"transactional": True, "records": [{"value": each} for each in values]}
        answer = await http.post("/producers/payments", json={**body, "valueFormat": "string"})
        assert answer.status_code == 200, answer.text
        instance = await ConsumerInstance.create_instance(http, valueFormat="string")
        await instance.subscribe("payments")
        records = await instance.poll_until(len(values))
        assert sorted(record["value"] for record in records) == sorted(values)


async def test_a_group_takes_the_classic_protocol_where_brokers_refuse_the_new_one():
    """Kafka 4 offers it all the same, and the group could not be used. Then a member that did not
    lead the group read nothing of a topic that was created again."""
    properties = {"group.coordinator.rebalance.protocols": "classic"}
    with LocalKafka(properties=properties) as kafka:
        admin = KafkaAdmin(kafka.bootstrap)
        admin.create_topic("payments", partitions=2)
        await produce_records(kafka.bootstrap, "payments", build_payments(b"old"))
        async with (
            open_cluster(kafka.bootstrap, "payments") as first_cluster,
            open_cluster(kafka.bootstrap, "payments") as second_cluster,
            running_member(first_cluster, "billing", ["payments"]) as first,
            running_member(second_cluster, "billing", ["payments"]) as second,
        ):

            def have_read(name: bytes) -> bool:
                values = {*first.values, *second.values}
                return {record.value for record in build_payments(name)} <= values

            await wait_until(
                lambda: len(first.owned_partitions) == len(second.owned_partitions) == 1,
                timeout_s=WITHIN_S,
            )
            await wait_until(lambda: have_read(b"old"), timeout_s=WITHIN_S)
            await asyncio.to_thread(admin.delete_topic, "payments")
            await asyncio.to_thread(admin.create_topic, "payments", partitions=2)
            await produce_records(kafka.bootstrap, "payments", build_payments(b"new"))
            await wait_until(lambda: have_read(b"new"), timeout_s=WITHIN_S)


def build_payments(name: bytes) -> list[RecordToSend]:
    return [RecordToSend(b"%b %d" % (name, n), partition=n % 2) for n in range(30)]


def list_values(client: RawClient) -> list[str]:
    records = [parse_envelope(each) for each in client.events if each["event"] == "message"]
    return [(record.value or b"").decode() for record in records]


async def produce_with_aiokafka(
    kafka: OldKafka, topic: str, values: Sequence[str], codec: str
) -> None:
    compression: Any = None if codec == "none" else codec
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type=compression)
    async with producer:
        for value in values:
            await producer.send(topic, value.encode())


def produce_with_librdkafka(kafka: OldKafka, topic: str, values: Sequence[str], codec: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap, "compression.type": codec}
    )
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(WITHIN_S) == 0


@pytest.mark.night
@pytest.mark.parametrize("kafka", ["2.8.2"], indirect=True)  # its jars have a producer in Java
async def test_what_each_producer_compresses_with_each_codec_is_read(kafka: OldKafka):
    kafka.create_topic("codecs", PARTITIONS)
    config = build_config(kafka.bootstrap, ["codecs"], [build_route("codecs", "envelope")])
    expected = list[str]()
    async with (
        running_gateway_process(config) as gateway,
        RawClient(f"{gateway.base_url}/records/codecs?from=earliest") as client,
    ):
        for codec in CODECS:
            for name in ("java", "librdkafka", "aiokafka"):
                values = [f"{name} {codec} {n} {'x' * 200}" for n in range(30)]
                expected += values
                if name == "java":
                    kafka.produce_with_java("codecs", values, codec)
                elif name == "librdkafka":
                    produce_with_librdkafka(kafka, "codecs", values, codec)
                else:
                    await produce_with_aiokafka(kafka, "codecs", values, codec)
        await wait_until(lambda: len(list_values(client)) >= len(expected), timeout_s=WITHIN_S)
        assert sorted(list_values(client)) == sorted(expected)
