"""The in-process mock cluster, as clients see it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from support.kafka_wire import ApiKey
from support.records import RecordToSend, produce_records
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.error_code import ErrorCode
from gateway.errors import LocalBrokerError
from gateway.kafka.embedded import EmbeddedKafka


def open_consumer(kafka, **options):
    return AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap,
        auto_offset_reset="none",
        fetch_max_wait_ms=10,
        request_timeout_ms=5000,
        metadata_max_age_ms=500,
        retry_backoff_ms=50,
        **options,
    )


async def read_values(kafka, topic, offset, count, partition=0):
    async with open_consumer(kafka) as reader:
        reader.assign([tp := TopicPartition(topic, partition)])
        reader.seek(tp, offset)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            return [await reader.getone() for _ in range(count)]


async def test_gives_back_keys_headers_and_times(embedded):
    embedded.create_topic("orders", partitions=12)
    sent = RecordToSend(
        b"v", b"k", partition=7, timestamp=1_700_000_000_000, headers=(("h", b"1"),)
    )
    assert await produce_records(embedded.bootstrap, "orders", [sent]) == [(7, 0)]
    (record,) = await read_values(embedded, "orders", 0, 1, partition=7)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))
    assert record.timestamp == 1_700_000_000_000


async def test_takes_an_idempotent_producer_and_compressed_batches(embedded):
    embedded.create_topic("orders")
    values = [b"%d" % number * 50 for number in range(100)]
    options = {"enable_idempotence": True, "compression_type": "gzip", "linger_ms": 5}
    await produce_records(embedded.bootstrap, "orders", values, **options)
    assert [record.value for record in await read_values(embedded, "orders", 0, 100)] == values


async def test_deleted_records_are_out_of_range_and_move_the_log_start(embedded):
    embedded.create_topic("orders")
    for value in (b"a", b"b", b"c"):
        await produce_records(embedded.bootstrap, "orders", [value])
    embedded.delete_records("orders", {0: 2})
    with pytest.raises(OffsetOutOfRangeError):
        await read_values(embedded, "orders", 0, 1)
    async with open_consumer(embedded) as reader:
        starts = await reader.beginning_offsets([TopicPartition("orders", 0)])
    assert list(starts.values()) == [2]
    assert [record.value for record in await read_values(embedded, "orders", 2, 1)] == [b"c"]


async def test_an_offset_past_the_end_is_out_of_range(embedded):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"a"])
    with pytest.raises(OffsetOutOfRangeError):
        await read_values(embedded, "orders", 2, 1)


async def test_keeps_only_the_last_megabytes_of_a_partition(embedded):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"x" * 500_000 for _ in range(15)])
    tp = TopicPartition("orders", 0)
    async with open_consumer(embedded) as reader:
        start = (await reader.beginning_offsets([tp]))[tp]
        end = (await reader.end_offsets([tp]))[tp]
    assert end == 15
    assert 3 <= start <= 7


async def test_injected_errors_hit_the_next_requests_only(embedded):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"a"])
    embedded.fail(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(OffsetOutOfRangeError):
        await read_values(embedded, "orders", 0, 1)
    assert [record.value for record in await read_values(embedded, "orders", 0, 1)] == [b"a"]


async def test_forgiven_errors_are_not_met(embedded):
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [b"a"])
    embedded.fail(ApiKey.FETCH, *[ErrorCode.OFFSET_OUT_OF_RANGE] * 100)
    embedded.forgive(ApiKey.FETCH)
    assert [record.value for record in await read_values(embedded, "orders", 0, 1)] == [b"a"]


async def test_a_node_that_is_down_refuses_connections_until_it_is_up(embedded):
    host, port = embedded.bootstrap[0].split(":")
    embedded.down(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    embedded.up(1)
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()


async def test_a_delayed_node_answers_late(embedded):
    embedded.create_topic("orders")
    embedded.delay(1, 0.3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with open_consumer(embedded) as reader:
        await reader.end_offsets([TopicPartition("orders", 0)])
    assert loop.time() - began > 0.3


async def test_a_new_leader_serves_what_the_old_one_had():
    with EmbeddedKafka({"orders": 1}, nodes=3) as kafka:
        await produce_records(kafka.bootstrap, "orders", [b"a"])
        kafka.lead("orders", 0, 2)
        await produce_records(kafka.bootstrap, "orders", [b"b"])
        kafka.lead("orders", 0, 3)
        assert [record.value for record in await read_values(kafka, "orders", 0, 2)] == [b"a", b"b"]


async def test_a_leaderless_partition_is_read_once_it_is_led_again():
    with EmbeddedKafka({"orders": 1}, nodes=2, fetch_version=11) as kafka:
        await produce_records(kafka.bootstrap, "orders", [b"a"])
        kafka.lead("orders", 0, None)
        reading = asyncio.create_task(read_values(kafka, "orders", 0, 1))
        done, _ = await asyncio.wait([reading], timeout=0.3)
        assert not done
        kafka.lead("orders", 0, 2)
        assert [record.value for record in await reading] == [b"a"]


def test_refuses_a_leaderless_partition_where_a_fetch_of_it_would_crash():
    with EmbeddedKafka({"orders": 1}) as kafka, pytest.raises(LocalBrokerError, match="crash"):
        kafka.lead("orders", 0, None)


def test_an_unknown_topic_cannot_be_changed(embedded):
    with pytest.raises(LocalBrokerError, match="refused topic_delete nobody-made-it"):
        embedded.delete_topic("nobody-made-it")


def test_closing_twice_is_no_error_and_using_it_then_is():
    kafka = EmbeddedKafka()
    kafka.close()
    kafka.close()
    with pytest.raises(LocalBrokerError, match="closed"):
        kafka.create_topic("late")


@pytest.mark.needs("process")
def test_without_librdkafka_the_error_says_what_to_install():
    code = (
        "import importlib.util, ctypes.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "ctypes.util.find_library = lambda name: None\n"
        "from gateway.kafka.embedded import EmbeddedKafka\n"
        "EmbeddedKafka()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "kafka-gateway[demo]" in done.stderr
