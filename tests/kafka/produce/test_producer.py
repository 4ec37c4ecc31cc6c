"""Faults that hide an answer need a real broker: the embedded one takes a batch twice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.kafka_proxy import ApiKey, KafkaProxy
from support.topic_reads import open_cluster, read_entries
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, PartitionFailed, WritesFull
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.producer import Producer

T = TopicPartition("t", 0)
LONG = 60.0  # seconds; no test waits so long


@asynccontextmanager
async def running_producer(
    bootstrap: Sequence[str], topic: str, *, max_batch_bytes: int | None = None, **options: Any
) -> AsyncIterator[tuple[Cluster, Producer]]:
    async with open_cluster(bootstrap, topic, **options) as kafkas:
        made = (
            Producer(kafkas)
            if max_batch_bytes is None
            else Producer(kafkas, max_pending_bytes=max_batch_bytes)
        )
        try:
            async with asyncio.timeout(LONG):
                yield kafkas, made
        finally:
            await made.close(timeout_s=0.0)


async def read_log(kafkas: Cluster, tp: TopicPartition) -> list[Record]:
    end = (await kafkas.list_offsets({tp: LATEST}))[tp]
    assert isinstance(end, OffsetAndTimestamp)
    return [
        each for each in await read_entries(kafkas, tp, 0, end.offset) if isinstance(each, Record)
    ]


@pytest.fixture
def one(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("t")
    return embedded


async def test_records_are_written_after_an_error_that_nobody_expects(one, monkeypatch):
    """The loop that sends had ended, so that every later record timed out."""
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        failures = [ValueError("it broke")]
        leader_for_partition = kafkas.leader_for_partition

        def fail_once(tp: TopicPartition) -> Any:
            if failures:
                raise failures.pop()
            return leader_for_partition(tp)

        monkeypatch.setattr(kafkas, "leader_for_partition", fail_once)
        assert await producer.send(T, None, b"a", timeout_s=LONG) == 0
        assert not failures


async def test_a_thousand_at_once_are_in_the_order_of_the_calls(embedded):
    embedded.create_topic("t", 3)
    async with running_producer(embedded.bootstrap, "t") as (kafkas, producer):
        futures = [
            producer.send(TopicPartition("t", n % 3), None, b"%d" % n, timeout_s=LONG)
            for n in range(1000)
        ]
        offsets = await asyncio.gather(*futures)
        for number in range(3):
            written = await read_log(kafkas, TopicPartition("t", number))
            assert [record.value for record in written] == [
                b"%d" % n for n in range(1000) if n % 3 == number
            ]
            assert [record.offset for record in written] == offsets[number::3]
        assert kafkas.request_counts["Produce"] < 100


async def test_many_at_once_are_told_of_together_in_their_order(embedded):
    embedded.create_topic("t", 2)
    other = TopicPartition("t", 1)
    async with running_producer(embedded.bootstrap, "t") as (kafkas, producer):
        items = [
            ProducerRecord(T, b"k", b"a"),
            ProducerRecord(other, None, b"c"),
            ProducerRecord(T, None, b"b", (), 7),
        ]
        assert await producer.send_many(items, timeout_s=LONG) == [0, 0, 1]
        assert await producer.send_many([], timeout_s=LONG) == []
        written = await read_log(kafkas, T)
        assert [(r.value, r.timestamp == 7) for r in written] == [(b"a", False), (b"b", True)]


async def test_one_of_many_that_is_too_large_is_refused_alone(kafka, topic):
    name = topic(partitions=2)
    tp, other = TopicPartition(name, 0), TopicPartition(name, 1)
    async with running_producer(kafka.bootstrap, name) as (_, producer):
        items = [
            ProducerRecord(tp, None, b"a"),
            ProducerRecord(other, None, b"x" * (2 << 20)),
            ProducerRecord(tp, None, b"b"),
        ]
        first, refused, last = await producer.send_many(items, timeout_s=LONG)
    assert (first, last) == (0, 1)
    assert isinstance(refused, PartitionFailed) and refused.partition == 1


async def test_of_many_only_those_are_refused_that_the_broker_names(kafka, topic):
    """All were sent again, one by one."""
    name = topic(configs={"cleanup.policy": "compact"})
    tp = TopicPartition(name, 0)
    async with running_producer(kafka.bootstrap, name) as (kafkas, producer):
        items = [ProducerRecord(tp, b"%d" % n, b"v") for n in range(500)]
        items[100] = ProducerRecord(tp, b"100", b"v", (), 4_102_444_800_000)  # 2100
        items[200] = ProducerRecord(tp, None, b"v")
        told = await producer.send_many(items, timeout_s=LONG)
        assert [each for each in told if isinstance(each, int)] == list(range(498))
        assert "imestamp 4102444800000" in str(told[100])
        assert "key" in str(told[200])
        assert kafkas.request_counts["Produce"] == 2


async def test_many_that_kafka_never_hears_of_are_all_told_so(one):
    async with running_producer(one.bootstrap, "t") as (_, producer):
        one.down(1)
        told = await producer.send_many([ProducerRecord(T, None, b"v")] * 3, timeout_s=0.2)
        assert [type(each) for each in told] == [BrokerUnavailable] * 3
        assert producer.pending_bytes == 0


async def test_batches_are_compressed_as_wanted(one):
    async with running_producer(one.bootstrap, "t") as (kafkas, _):
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            packed = Producer(kafkas, compression=codec)
            await packed.send(T, None, codec.encode() * 100, timeout_s=LONG)
            await packed.close()
        written = await read_log(kafkas, T)
        assert [r.value[:4] for r in written] == [b"gzip", b"snap", b"lz4l", b"zstd"]


async def test_whatever_may_be_missing_of_a_record_may_be_missing(one):
    sent = [(b"k", b"v", [("h", b"x"), ("n", None)]), (b"k", None, []), (None, None, [])]
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        for key, value, headers in sent:
            await producer.send(T, key, value, headers, timeout_s=LONG)
        written = await read_log(kafkas, T)
    assert [(r.key, r.value, list(r.headers)) for r in written] == sent


async def test_what_cannot_be_a_record_is_told_at_once_and_harms_no_other(one):
    async with running_producer(one.bootstrap, "t") as (_, producer):
        good = producer.send(T, None, b"good", timeout_s=LONG)
        with pytest.raises(TypeError, match="str where a record has bytes"):
            producer.send(T, None, "text", timeout_s=LONG)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="surrogates"):
            producer.send(T, None, b"v", [("\ud800", b"x")], timeout_s=LONG)
        assert await good == 0


@pytest.mark.parametrize(
    ("api", "code", "error"),
    [
        (ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, AccessDenied),
        (ApiKey.PRODUCE, ErrorCode.INVALID_RECORD, PartitionFailed),
    ],
)
async def test_a_refused_record_is_told_and_the_next_one_written(one, api, code, error):
    one.fail(api, code)
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        with pytest.raises(error):
            await producer.send(T, None, b"refused", timeout_s=LONG)
        assert await producer.send(T, None, b"next", timeout_s=LONG) == 0
        assert [record.value for record in await read_log(kafkas, T)] == [b"next"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    ],
    ids=lambda code: code.name,
)
async def test_errors_that_pass_are_not_told(one, code):
    one.fail(ApiKey.PRODUCE, code, code)
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        assert await producer.send(T, None, b"v", timeout_s=LONG) == 0
        assert len(await read_log(kafkas, T)) == 1


async def test_a_new_leader_is_found():
    with EmbeddedKafka(nodes=2) as kafka:
        kafka.create_topic("t", replication=2)
        async with running_producer(kafka.bootstrap, "t") as (kafkas, producer):
            await producer.send(T, None, b"1", timeout_s=LONG)
            leader = kafkas.leader_for_partition(T)
            assert leader is not None
            kafka.lead("t", 0, 3 - leader[0])
            assert await producer.send(T, None, b"2", timeout_s=LONG) == 1


async def test_what_cannot_be_sent_in_time_is_not_written_and_kafka_that_is_back_is_used(one):
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        one.down(1)
        with pytest.raises(BrokerUnavailable, match="t-0 was not written to: ") as told:
            await producer.send(T, None, b"late", timeout_s=0.5)
        assert (told.value.timeout, told.value.retry_after) == (False, 1.0)
        one.up(1)
        assert await producer.send(T, None, b"next", timeout_s=LONG) == 0
        assert [record.value for record in await read_log(kafkas, T)] == [b"next"]


async def test_what_kafka_refuses_after_its_time_is_not_sent_again(one):
    """Without enough replicas, a record whose time ended in flight was sent again for hours, and
    written when they were back."""
    async with running_producer(one.bootstrap, "t") as (_, producer):
        assert await producer.send(T, None, b"first", timeout_s=LONG) == 0
        one.fail(ApiKey.PRODUCE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 1000)
        one.delay(1, 0.3)
        with pytest.raises(BrokerUnavailable, match="t-0 was not written to: ") as told:
            await producer.send(T, None, b"late", timeout_s=0.1)
        assert not told.value.timeout and producer.pending_bytes == 0
        one.delay(1, 0.0)
        one.forgive(ApiKey.PRODUCE)
        assert await producer.send(T, None, b"next", timeout_s=LONG) == 1


async def test_a_record_waits_because_its_batch_was_refused_and_is_told_so(one):
    async with running_producer(one.bootstrap, "t") as (_, producer):
        assert await producer.send(T, None, b"first", timeout_s=LONG) == 0
        one.fail(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
        one.delay(1, 0.3)
        told = await producer.send_many([ProducerRecord(T, None, b"v")] * 2, timeout_s=0.1)
        assert {str(each) for each in told} == {
            "t-0 was not written to: Kafka answers code 10; try again"
        }


@pytest.mark.parametrize("codes", [(), (ErrorCode.INVALID_RECORD,)], ids=["written", "refused"])
async def test_a_record_is_not_told_of_an_outage_that_ended(embedded, codes):
    """Once a partition had failed, every later record that waited too long was told that reason,
    whatever had been written in between."""
    embedded.create_topic("t", 2)
    async with running_producer(embedded.bootstrap, "t") as (kafkas, producer):
        embedded.fail(ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, *codes)
        await asyncio.wait([producer.send(T, None, b"0", timeout_s=LONG)])
        sent = kafkas.request_counts["Produce"]
        embedded.delay(1, 1.0)
        other = producer.send(TopicPartition("t", 1), None, b"1", timeout_s=LONG)
        await wait_until(lambda: kafkas.request_counts["Produce"] > sent)
        with pytest.raises(BrokerUnavailable, match="t-0 was not written to: its broker is busy"):
            await producer.send(T, None, b"2", timeout_s=0.1)
        embedded.delay(1, 0.0)
        assert await other == 0


async def test_no_more_waits_than_memory_allows(one):
    async with running_producer(one.bootstrap, "t", max_batch_bytes=3000) as (_, producer):
        one.down(1)
        first = producer.send(T, None, bytes(2000), timeout_s=0.5)
        with pytest.raises(BrokerUnavailable, match="too much waits to be written"):
            producer.send(T, None, bytes(2000), timeout_s=0.5)
        with pytest.raises(BrokerUnavailable):
            await first
        one.up(1)
        assert await producer.send(T, None, bytes(2000), timeout_s=LONG) == 0


async def test_a_topic_that_cannot_be_written_leaves_memory_to_others(one):
    """Records of one partition without a leader had all others refused while they waited."""
    one.create_topic("u")
    async with running_producer(one.bootstrap, "t", max_batch_bytes=4000) as (_, producer):
        one.down(1)
        waiting = producer.send(T, None, bytes(2500), timeout_s=LONG)
        with pytest.raises(BrokerUnavailable, match="too much waits to be written"):
            producer.send(T, None, bytes(1000), timeout_s=LONG)
        other = producer.send(TopicPartition("u", 0), None, bytes(1000), timeout_s=LONG)
        one.up(1)
        assert (await waiting, await other) == (0, 0)
        assert producer.pending_bytes == 0


async def test_large_calls_leave_room_for_small_ones(one):
    """A bulk load took all of the memory, and nobody else could write anything."""
    async with running_producer(one.bootstrap, "t", max_batch_bytes=30_000) as (_, producer):
        one.down(1)
        larger = ProducerRecord(T, None, bytes(25_000))
        calls = [producer.send_many([larger, larger], timeout_s=LONG)]
        with pytest.raises(WritesFull, match="too much waits to be written"):
            producer.send_many([larger, larger], timeout_s=LONG)
        with pytest.raises(WritesFull):
            for _ in range(20):
                calls.append(
                    producer.send_many([larger._replace(value=bytes(1500))], timeout_s=LONG)
                )
        assert len(calls) > 5
        small = producer.send(T, None, b"v", timeout_s=LONG)
        one.up(1)
        assert await small == len(calls) + 1
        assert not producer.pending_bytes
        calls = [producer.send_many([larger, larger], timeout_s=LONG)]  # none counts any more
        assert (await calls[0])[1] == await small + 2


async def test_closing_writes_what_was_taken_on(one):
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        futures = [producer.send(T, None, b"%d" % n, timeout_s=LONG) for n in range(10)]
        await producer.close()
        assert [future.result() for future in futures] == list(range(10))
        assert len(await read_log(kafkas, T)) == 10
        with pytest.raises(BrokerUnavailable, match="the gateway is closing"):
            producer.send(T, None, b"v", timeout_s=LONG)


async def test_closing_without_kafka_ends_and_tells_who_waits(one):
    async with running_producer(one.bootstrap, "t") as (_, producer):
        one.down(1)
        future = producer.send(T, None, b"v", timeout_s=LONG)
        await producer.close(timeout_s=0.1)
        with pytest.raises(BrokerUnavailable, match="closed"):
            future.result()


async def test_closing_says_of_what_was_sent_that_it_may_be_written(one):
    """It was told as not written while its request was under way, and then was in the log."""
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        await producer.send(T, None, b"0", timeout_s=LONG)
        one.delay(1, 1.0)
        sent = producer.send(T, None, b"1", timeout_s=LONG)
        await wait_until(lambda: kafkas.request_counts["Produce"] == 2)
        waiting = producer.send(T, None, b"2", timeout_s=LONG)
        await producer.close(timeout_s=0.1)
        with pytest.raises(BrokerUnavailable, match="t-0 may have been written to, or not") as told:
            sent.result()
        assert told.value.timeout
        with pytest.raises(BrokerUnavailable, match="t-0 was not written to") as told:
            waiting.result()
        assert not told.value.timeout
        counts = producer.writes.records
        assert (counts["t", "doubtful"], counts["t", "unsent"]) == (1, 1)
        assert producer.pending_bytes == 0
        one.delay(1, 0.0)
        assert [record.value for record in await read_log(kafkas, T)] == [b"0", b"1"]


async def test_a_request_that_was_sent_again_on_another_connection_leaves_doubt(one):
    """The answer to the second attempt was taken for one to the first, whose connection was lost:
    the record was told as not written."""
    async with running_producer(one.bootstrap, "t") as (_, producer):
        await producer.send(T, None, b"0", timeout_s=LONG)
        missing = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 100
        one.fail(ApiKey.PRODUCE, one.DISCONNECT, *missing)
        began = time.monotonic()
        future = producer.send(T, None, b"1", timeout_s=0.2)
        await wait_until(lambda: time.monotonic() - began > 0.5)
        assert not future.done()
        one.forgive(ApiKey.PRODUCE)
        assert await future > 0


async def test_an_unexpected_failure_of_a_broker_leaves_doubt(one):
    """It was told as a refusal, although the batch may have been appended before the failure."""
    one.fail(ApiKey.PRODUCE, ErrorCode.UNKNOWN_SERVER_ERROR)
    async with running_producer(one.bootstrap, "t") as (_, producer):
        with pytest.raises(BrokerUnavailable, match="Kafka answers code -1") as told:
            await producer.send(T, None, b"v", timeout_s=LONG)
        assert told.value.timeout
        assert await producer.send(T, None, b"next", timeout_s=LONG) == 0


async def test_a_record_that_waits_is_written_although_others_end_their_watch_of_its_topic(one):
    """The hub closes topics that nobody reads any more. A record that waited then had no leader: it
    stayed in doubt."""
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        one.fail(ApiKey.PRODUCE, *[ErrorCode.REQUEST_TIMED_OUT] * 3)
        future = producer.send(T, None, b"v", timeout_s=LONG)
        await wait_until(lambda: kafkas.request_counts["Produce"] > 0)
        kafkas.metadata.unwatch("t")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await future == 0


async def test_a_topic_is_watched_until_its_last_record_has_a_result(one):
    async with running_producer(one.bootstrap, "t") as (kafkas, producer):
        one.fail(ApiKey.PRODUCE, ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR)
        for error in (PartitionFailed, BrokerUnavailable, None):  # refused, in doubt, written
            future = producer.send(T, None, b"v", timeout_s=LONG)
            kafkas.metadata.unwatch("t")
            with contextlib.nullcontext() if error is None else pytest.raises(error):
                await future
            assert kafkas.get_topic("t") is None
        one.down(1)
        for ends in (0.1, LONG):  # not sent in time, and at the close
            future = producer.send(T, None, b"v", timeout_s=ends)
            await (producer.close(timeout_s=0.0) if ends == LONG else asyncio.wait([future]))
            assert isinstance(future.exception(), BrokerUnavailable)
        kafkas.metadata.acquire_watch("t")
        kafkas.metadata.release_watch("t")
        one.up(1)
        await kafkas.metadata.refresh("test")
        assert kafkas.get_topic("t") is None


async def test_a_record_too_large_is_refused_alone_and_the_partition_goes_on(kafka, topic):
    """aiokafka's producer counts the refused batch: all later ones of the partition are refused as
    out of order."""
    name = topic(configs={"max.message.bytes": "2000"})
    tp = TopicPartition(name, 0)
    async with running_producer(kafka.bootstrap, name) as (kafkas, producer):
        sent = [b"a", bytes(5000), b"b"]
        told = await asyncio.gather(
            *(producer.send(tp, None, value, timeout_s=LONG) for value in sent),
            return_exceptions=True,
        )
        assert isinstance(told[1], PartitionFailed)
        assert told[1].code == ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(PartitionFailed):  # a broker would close the connection
            await producer.send(tp, None, bytes(101 << 20), timeout_s=LONG)
        assert [told[0], told[2], await producer.send(tp, None, b"c", timeout_s=LONG)] == [0, 1, 2]
        assert [record.value for record in await read_log(kafkas, tp)] == [b"a", b"b", b"c"]


@pytest.mark.smoke
async def test_a_batch_whose_answers_are_cut_off_is_written_once(kafka, topic):
    name = topic()
    tp = TopicPartition(name, 0)
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_producer(proxy.bootstrap.split(","), name) as (kafkas, producer),
    ):
        assert await producer.send(tp, None, b"0", timeout_s=LONG) == 0
        cuts = []

        def cut_answer(request: Any, _: object) -> None:
            if request.api_key == ApiKey.PRODUCE and len(cuts) < 3:
                cuts.append(request)
                proxy[request.node_id].cut()

        proxy.on_response = cut_answer
        futures = [producer.send(tp, None, b"%d" % n, timeout_s=LONG) for n in range(1, 6)]
        assert await asyncio.gather(*futures) == [1, 2, 3, 4, 5]
        assert len(cuts) == 3
        assert [record.value for record in await read_log(kafkas, tp)] == [
            b"%d" % n for n in range(6)
        ]


async def test_what_was_sent_is_not_given_up_with_its_time(kafka, topic):
    """Kafka may have it: who says that it was not written is wrong, and a repeat is a second."""
    name = topic()
    tp = TopicPartition(name, 0)
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_producer(proxy.bootstrap.split(","), name) as (kafkas, producer),
    ):
        held = proxy.inject_error(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT)
        began = time.monotonic()
        future = producer.send(tp, None, b"v", timeout_s=0.2)
        await wait_until(lambda: held.hit_count >= 2 and time.monotonic() - began > 0.5)
        assert not future.done()
        proxy.remove_injection(held)
        assert await future == 0
        assert len(await read_log(kafkas, tp)) == 1
