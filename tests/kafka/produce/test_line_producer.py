"""Mostly against the embedded broker; it holds a few MB a partition, so inputs are small."""

from __future__ import annotations

import asyncio
import io
import socket
from typing import BinaryIO

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from support.brokers import KafkaCluster
from support.pipe import open_pipe
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.error_code import ErrorCode
from gateway.errors import AccessDenied, BrokerUnavailable, GatewayError, KafkaError, UnknownTopic
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.produce.line_producer import (
    MAX_BATCH_BYTES,
    LineFormat,
    ProduceProgress,
    ValueDigest,
    produce,
    produce_lines,
)

PRODUCE, INIT_PRODUCER_ID = 0, 22  # api keys


async def read_partitions(
    kafka: EmbeddedKafka | KafkaCluster, topic: str, partitions: int
) -> list[list]:
    """All records of each partition, in order."""
    wanted = [TopicPartition(topic, each) for each in range(partitions)]
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign(wanted)
        ends = await consumer.end_offsets(wanted)
        got: dict[TopicPartition, list] = {tp: [] for tp in wanted}
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while any(len(got[tp]) < ends[tp] for tp in wanted):
                for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                    got[tp] += records
        return [got[tp] for tp in wanted]
    finally:
        await consumer.stop()


def build_input(*lines: bytes) -> BinaryIO:
    return io.BytesIO(b"".join(line + b"\n" for line in lines))


async def test_every_line_arrives_once_with_its_bytes(embedded):
    embedded.create_topic("t", 4)
    values = [b"%d \xff\x00\r" % each for each in range(20_000)]
    done = await produce("t", build_input(*values), servers=embedded.bootstrap)
    got = await read_partitions(embedded, "t", 4)
    digest = ValueDigest()
    for record in (record for partition in got for record in partition):
        digest.add(record.value)
    assert done.failure is None
    assert (done.lines, done.acknowledged_records) == (20_000, 20_000)
    assert sum(map(len, got)) == 20_000
    assert digest.unordered_digest == done.digest.unordered_digest
    assert done.value_bytes == sum(map(len, values))
    assert done.bytes_read == sum(map(len, values)) + len(values)


async def test_one_partition_keeps_the_order_of_the_input(embedded):
    embedded.create_topic("t", 3)
    values = [b"%0600d" % each for each in range(3_000)]
    assert sum(map(len, values)) > 3 * MAX_BATCH_BYTES
    done = await produce("t", build_input(*values), servers=embedded.bootstrap, partition=2)
    got = await read_partitions(embedded, "t", 3)
    assert [record.value for record in got[2]] == values
    assert done.acknowledged_records == 3_000


async def test_a_key_has_one_partition_and_its_order(embedded):
    embedded.create_topic("t", 3)
    values = [b'{"id":"c%d","n":%d}' % (each % 50, each) for each in range(2_000)]
    await produce("t", build_input(*values), servers=embedded.bootstrap, lines=LineFormat(key="id"))
    got = await read_partitions(embedded, "t", 3)
    for key in {record.key for partition in got for record in partition}:
        (home,) = [each for each in got if any(record.key == key for record in each)]
        mine = [value for value in values if b'"id":"%s"' % key in value]
        assert [record.value for record in home if record.key == key] == mine


async def test_headers_keys_and_tombstones_arrive(embedded):
    embedded.create_topic("t")
    lines = LineFormat(separator=b":", null_empty=True)
    options = {"servers": embedded.bootstrap, "lines": lines, "headers": [("host", b"web1")]}
    await produce("t", build_input(b"alice:hello", b"alice:"), **options)
    (got,) = await read_partitions(embedded, "t", 1)
    assert [(record.key, record.value) for record in got] == [
        (b"alice", b"hello"),
        (b"alice", None),
    ]
    assert {record.headers for record in got} == {(("host", b"web1"),)}


async def test_a_line_larger_than_a_batch_is_a_batch(embedded):
    embedded.create_topic("t")
    values = [b"a", b"b" * (MAX_BATCH_BYTES + 1000), b"c"]
    done = await produce("t", build_input(*values), servers=embedded.bootstrap)
    (got,) = await read_partitions(embedded, "t", 1)
    assert [record.value for record in got] == values
    assert done.acknowledged_records == 3


async def test_no_input_is_no_failure(embedded):
    embedded.create_topic("t")
    done = await produce("t", io.BytesIO(), servers=embedded.bootstrap)
    assert (done.lines, done.acknowledged_records, done.failure) == (0, 0, None)


async def test_what_stands_before_a_wrong_line_is_sent_and_counted(embedded):
    embedded.create_topic("t")
    source = build_input(b'{"id":1}', b'{"id":2}', b"{", b'{"id":4}')
    done = await produce("t", source, servers=embedded.bootstrap, lines=LineFormat(key="id"))
    (got,) = await read_partitions(embedded, "t", 1)
    assert isinstance(done.failure, GatewayError)
    assert "line 3: not JSON" in str(done.failure)
    assert done.acknowledged_records == len(got) == 2


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "grant WRITE"),
        (ErrorCode.MESSAGE_TOO_LARGE, KafkaError, "max.message.bytes"),
        (ErrorCode.INVALID_RECORD, KafkaError, "give --key"),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, KafkaError, "topic 't'"),
    ],
)
async def test_a_refused_batch_is_told_and_not_counted(embedded, code, error, said):
    embedded.create_topic("t")
    embedded.fail(PRODUCE, code)
    done = await produce("t", build_input(b"a", b"b"), servers=embedded.bootstrap)
    assert type(done.failure) is error
    assert said in str(done.failure)
    assert (done.lines, done.acknowledged_records) == (2, 0)


async def test_a_principal_that_may_write_nothing_is_told_before_anything_is_read(embedded):
    embedded.create_topic("t")
    embedded.fail(INIT_PRODUCER_ID, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(AccessDenied, match="grant WRITE"):
        await produce("t", io.BytesIO(b"x"), servers=embedded.bootstrap)


async def test_an_interrupted_input_is_sent_as_far_as_it_was_read(embedded):
    embedded.create_topic("t")
    fed = asyncio.Event()

    def on_progress(done: ProduceProgress) -> None:
        if done.lines == 2:
            fed.set()

    with open_pipe() as (source, sink):
        sink.write(b"a\nb\nunfinished")
        options = {"servers": embedded.bootstrap, "progress": on_progress}
        running = asyncio.create_task(produce("t", source, **options))
        await asyncio.wait_for(fed.wait(), 30)
        running.cancel()
        done = await asyncio.wait_for(running, 30)
    (got,) = await read_partitions(embedded, "t", 1)
    assert done.interrupted
    assert [record.value for record in got] == [b"a", b"b"]
    assert done.acknowledged_records == 2


async def test_an_unknown_topic_is_told_before_anything_is_read(kafka):
    """On a real broker: the embedded one creates every topic it is asked for."""
    with pytest.raises(UnknownTopic, match="nope"):
        await produce("nope", io.BytesIO(b"x"), servers=kafka.bootstrap, topic_timeout_s=1.0)


async def test_a_real_broker_holds_every_line_once(kafka):
    topic = kafka.create_unique_topic(12)
    values = [b'{"id":%d,"note":"%s"}' % (each % 997, b"x" * 40) for each in range(20_000)]
    options = {"servers": kafka.bootstrap, "lines": LineFormat(key="id")}
    done = await produce(topic, build_input(*values), **options)
    got = await read_partitions(kafka, topic, 12)
    digest = ValueDigest()
    for record in (record for partition in got for record in partition):
        digest.add(record.value)
    assert done.acknowledged_records == sum(map(len, got)) == 20_000
    assert digest.unordered_digest == done.digest.unordered_digest


async def test_an_unknown_partition_is_told_with_those_there_are(embedded):
    embedded.create_topic("t", 2)
    with pytest.raises(KafkaError, match="no partition 2; it has 0 to 1"):
        await produce("t", io.BytesIO(b"x"), servers=embedded.bootstrap, partition=2)


def test_no_broker_is_told_with_the_address():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(BrokerUnavailable, match=server):
        produce_lines("t", io.BytesIO(b"x"), servers=[server])
