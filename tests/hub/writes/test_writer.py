"""One record for each idempotency key. Where an answer is hidden or a write repeated by Kafka's own
rules, by a real broker: the embedded one takes a batch twice."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from support.gateways import build_config
from support.kafka_proxy import ApiKey, KafkaProxy
from support.topic_reads import open_cluster, read_entries
from support.waiting import wait_until

from gateway.config import Settings, Topic
from gateway.core.error_code import ErrorCode
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    InvalidRecord,
    KeyReused,
    RecordRefused,
    RecordTooLarge,
    RequestError,
    UnknownTopic,
    WritesFull,
)
from gateway.hub.writes.publisher import DocumentKeyLocks, Produced, Publisher
from gateway.hub.writes.writer import RecordWriter
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp
from gateway.kafka.embedded import EmbeddedKafka

T = TopicPartition("t", 0)


@asynccontextmanager
async def running_publisher(bootstrap: Sequence[str], **options: Any) -> AsyncIterator[Publisher]:
    """A gateway that has just started: as far as it goes here, a replica of its own."""
    async with Cluster(ClusterSettings(bootstrap)) as kafkas:
        made = Publisher(kafkas, **({"timeout_s": 30.0} | options))
        try:
            async with asyncio.timeout(60):
                yield made
        finally:
            await made.producer.close(timeout_s=0.0)
            await made.close()


async def read_records(bootstrap: Sequence[str], tp: TopicPartition = T) -> list[Record]:
    async with open_cluster(bootstrap, tp.topic) as kafkas:
        end = (await kafkas.list_offsets({tp: LATEST}))[tp]
        assert isinstance(end, OffsetAndTimestamp)
        read = await read_entries(kafkas, tp, 0, end.offset)
        return [each for each in read if isinstance(each, Record)]


@pytest.fixture
def one(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("t")
    return embedded


async def test_records_without_an_idempotency_key_are_each_written(one):
    async with running_publisher(one.bootstrap) as publisher:
        writer = RecordWriter(publisher)
        told = [await writer.send("t", b"k", b"v", [("h", b"x")]) for _ in range(2)]
        assert told == [Produced("t", 0, 0), Produced("t", 0, 1)]
        (first, _) = await read_records(one.bootstrap)
        assert (first.key, first.value, list(first.headers)) == (b"k", b"v", [("h", b"x")])


async def test_a_key_is_not_forgotten_for_the_keys_of_others(one):
    """It was, after 100,000 of any topic and client, and its repeat was a second record."""
    async with running_publisher(one.bootstrap, max_keys=2) as publisher:
        writer = RecordWriter(publisher)
        for number in range(9):
            await writer.send("t", b"k", b"v", idempotency_key=f"{number}")
        again = await RecordWriter(publisher).send("t", b"k", b"v", idempotency_key="0")
        assert again == Produced("t", 0, 0, repeated=True)
        with pytest.raises(KeyReused):
            await writer.send("t", b"k", b"other", idempotency_key="1")


async def test_writes_that_wait_before_the_producer_are_bounded_too(one):
    """While Kafka stalled, those with an idempotency key waited for its log in any number."""
    async with running_publisher(
        one.bootstrap, timeout_s=1.0, max_pending_bytes=28000
    ) as publisher:
        writer = RecordWriter(publisher)
        await writer.send("t", None, b"first")
        one.down(1)
        try:
            results = await asyncio.gather(
                *(
                    RecordWriter(publisher).send(
                        "t", None, bytes(1000), idempotency_key=key, waits=waits
                    )
                    for key, waits in (("a", False), ("a", True), ("b", True), ("c", False))
                ),
                return_exceptions=True,
            )
        finally:
            one.up(1)
        assert results[0] == Produced("t", -1, -1)
        refused = [str(each) for each in results if isinstance(each, BrokerUnavailable)]
        assert len([each for each in refused if "too much waits" in each]) == 2
        await wait_until(lambda: publisher.pending_bytes == 0)


async def test_what_a_small_write_takes_counts(one):
    """Its record of 70 bytes counted, and not the 5 KB of the rest of the write: while Kafka
    stalled, writes of one byte took 80 times what memory allowed them."""
    async with running_publisher(one.bootstrap) as publisher:
        await RecordWriter(publisher).send("t", None, b"v")
        one.delay(1, 3600)
        tracemalloc.start()
        try:
            for _ in range(1000):
                await RecordWriter(publisher).send("t", None, b"v", waits=False)
            await wait_until(lambda: publisher.producer.pending_bytes >= 1000 * len(b"v"))
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert publisher.pending_bytes / 2 < taken < publisher.pending_bytes * 1.5


async def test_writes_of_a_topic_that_cannot_be_written_leave_memory_to_others(one):
    """The producer did, but clients' writes count before it, and there one topic took all."""
    one.create_topic("u")
    async with running_publisher(one.bootstrap, max_pending_bytes=40_000) as publisher:
        writer = RecordWriter(publisher)
        for topic in ("t", "u"):
            await writer.send(topic, None, b"first")
        one.down(1)
        with pytest.raises(WritesFull):
            while True:
                await writer.send("t", None, b"v", waits=False)
        other = asyncio.create_task(writer.send("u", None, bytes(200)))
        one.up(1)
        assert (await other).topic == "u"


async def test_a_repeat_gets_the_offset_of_the_first_one(one):
    async with running_publisher(one.bootstrap) as publisher:
        first = await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        again = await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        assert (first, again) == (Produced("t", 0, 0), Produced("t", 0, 0, repeated=True))
        (record,) = await read_records(one.bootstrap)
        assert list(record.headers) == [("idempotency-key", b"1")]


async def test_repeats_of_what_is_under_way_join_it(one):
    async with running_publisher(one.bootstrap) as publisher:
        told = await asyncio.gather(
            *(RecordWriter(publisher).send("t", None, b"v", idempotency_key="1") for _ in range(20))
        )
        assert sorted(each.repeated for each in told) == [False] + [True] * 19
        assert {each.offset for each in told} == {0}
        assert len(await read_records(one.bootstrap)) == 1


async def test_a_key_used_again_for_something_else_is_refused(one):
    async with (
        running_publisher(one.bootstrap) as publisher,
        running_publisher(one.bootstrap) as other,
    ):
        await RecordWriter(publisher).send("t", None, b"v", [("h", b"x")], idempotency_key="1")
        for each in (publisher, other):
            with pytest.raises(KeyReused):
                await RecordWriter(each).send("t", None, b"v", idempotency_key="1")
        assert len(await read_records(one.bootstrap)) == 1


async def test_a_write_that_looks_for_its_key_keeps_its_topic_when_the_hub_closes_it(one):
    """The hub closes topics that nobody reads any more. The log of a write that looked for its key
    then had no leader, and the client got 503."""
    async with running_publisher(one.bootstrap, timeout_s=5.0) as publisher:
        one.fail(ApiKey.LIST_OFFSETS, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3)
        counts, metadata = publisher.cluster.request_counts, publisher.cluster.metadata
        written = asyncio.create_task(
            RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        )
        await wait_until(lambda: counts["ListOffsets"] > 0)
        metadata.unwatch("t")
        assert await written == Produced("t", 0, 0)
        assert metadata.get_topic("t") is None


async def test_equal_keys_of_two_scopes_are_two_also_for_another_replica(one):
    async with (
        running_publisher(one.bootstrap) as publisher,
        running_publisher(one.bootstrap) as other,
    ):
        for scope in ("/a", "/b"):
            await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1", scope=scope)
        for scope, offset in (("/b", 1), ("/a", 0)):
            again = await RecordWriter(other).send(
                "t", None, b"v", idempotency_key="1", scope=scope
            )
            assert again == Produced("t", 0, offset, repeated=True)
        assert len(await read_records(one.bootstrap)) == 2


async def test_a_thousand_at_once_are_in_the_order_of_the_calls(one):
    """Some with an idempotency key: those wait for the log, and nobody overtakes them."""
    async with running_publisher(one.bootstrap) as publisher:
        writer = RecordWriter(publisher)
        sends = [
            writer.send("t", None, b"%d" % n, idempotency_key=f"{n}" if n % 3 == 0 else None)
            for n in range(1000)
        ]
        told = await asyncio.gather(*sends)
        assert [each.offset for each in told] == list(range(1000))
        written = await read_records(one.bootstrap)
        assert [record.value for record in written] == [b"%d" % n for n in range(1000)]


async def test_a_record_goes_where_javas_partitioner_puts_its_key(embedded):
    """murmur2 of "21" is -973932308 (Kafka's own UtilsTest); 0x7fffffff of it, by 7, leaves 2."""
    embedded.create_topic("t", 7)
    async with running_publisher(embedded.bootstrap) as publisher:
        told = await RecordWriter(publisher).send("t", b"21", b"v", idempotency_key="1")
        assert told.partition == (-973932308 & 0x7FFFFFFF) % 7
        free = {(await RecordWriter(publisher).send("t", None, b"v")).partition for _ in range(7)}
        assert free == set(range(7))
        chosen = await RecordWriter(publisher).send("t", b"21", b"v", partition=5)
        assert chosen.partition == 5


async def test_what_a_client_leaves_behind_is_written_and_remembered(one):
    async with running_publisher(one.bootstrap) as publisher:
        writer = RecordWriter(publisher)
        await writer.send("t", None, b"0", idempotency_key="0")
        one.delay(1, 0.3)
        waiting = asyncio.create_task(writer.send("t", None, b"v", idempotency_key="1"))
        await wait_until(lambda: publisher.cluster.request_counts["Produce"] == 2)
        waiting.cancel()
        one.delay(1, 0.0)
        again = await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        assert (waiting.cancelled(), again) == (True, Produced("t", 0, 1, repeated=True))
        assert len(await read_records(one.bootstrap)) == 2


async def test_a_refused_record_does_not_use_its_key_up(one):
    async with running_publisher(one.bootstrap) as publisher:
        one.fail(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
        with pytest.raises(RecordTooLarge, match="larger than topic 't' takes"):
            await RecordWriter(publisher).send("t", None, b"large", idempotency_key="1")
        told = await RecordWriter(publisher).send("t", None, b"small", idempotency_key="1")
        assert told == Produced("t", 0, 0)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (ErrorCode.INVALID_RECORD, RecordRefused, "a compacted one wants a key"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "allow it WRITE"),
    ],
)
async def test_what_kafka_refuses_is_told_with_what_to_do(one, code, error, said):
    one.fail(ApiKey.PRODUCE, code)
    async with running_publisher(one.bootstrap) as publisher:
        with pytest.raises(error, match=said):
            await RecordWriter(publisher).send("t", None, b"v")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"idempotency_key": ""}, InvalidRecord, "1 to 256 characters"),
        ({"idempotency_key": "x" * 257}, InvalidRecord, "1 to 256 characters"),
        (
            {"headers": [("idempotency-key", b"x")]},
            InvalidRecord,
            "'idempotency-key' is written by",
        ),
        ({"key": bytes(65_537)}, RecordTooLarge, "at most 65536 bytes"),
        ({"partition": 1}, InvalidRecord, "has no partition 1; it has 0 to 0"),
    ],
)
async def test_what_cannot_be_is_said_before_anything_is_written(one, options, error, said):
    async with running_publisher(one.bootstrap) as publisher:
        with pytest.raises(error, match=said):
            await RecordWriter(publisher).send(
                **({"topic": "t", "key": None, "value": b"v"} | options)
            )
        assert not await read_records(one.bootstrap)


async def test_an_unknown_topic_is_not_asked_for_by_writing_to_it(one):
    async with running_publisher(one.bootstrap) as publisher:
        for key in (None, "1"):
            with pytest.raises(UnknownTopic, match="no broker knows the topic nope"):
                await RecordWriter(publisher).send("nope", None, b"v", idempotency_key=key)
        assert publisher.cluster.request_counts["Produce"] == 0


async def test_without_kafka_the_answer_is_an_error_soon_and_nothing_is_written_later(one):
    async with running_publisher(one.bootstrap, timeout_s=1.0) as publisher:
        writer = RecordWriter(publisher)
        await writer.send("t", None, b"0")
        one.down(1)
        for key in (None, "1"):
            with pytest.raises(BrokerUnavailable) as away:
                await writer.send("t", None, b"v", idempotency_key=key)
            assert away.value.retry_after is not None
        one.up(1)
        await wait_until(lambda: publisher.cluster.error is None)
        publisher.timeout_s = 30.0
        assert await writer.send("t", None, b"v", idempotency_key="1") == Produced("t", 0, 1)
        assert len(await read_records(one.bootstrap)) == 2


async def test_a_frozen_kafka_is_an_error_in_time(one):
    async with running_publisher(one.bootstrap, timeout_s=0.5) as publisher:
        writer = RecordWriter(publisher)
        await writer.send("t", None, b"0")
        one.delay(1, 3600)
        with pytest.raises(BrokerUnavailable, match="not said yet whether") as away:
            await writer.send("t", None, b"v")
        assert away.value.timeout


async def test_only_what_was_sent_may_be_written_when_the_gateway_closes(one):
    """All writes that had no answer were told that Kafka had not answered, also those that were
    never sent."""
    async with running_publisher(one.bootstrap) as publisher:
        await RecordWriter(publisher).send("t", b"k", b"0")
        one.delay(1, 1.0)
        sent = asyncio.create_task(RecordWriter(publisher).send("t", b"k", b"1"))
        await wait_until(lambda: publisher.cluster.request_counts["Produce"] == 2)
        one_record = publisher.producer.pending_bytes
        waiting = asyncio.create_task(RecordWriter(publisher).send("t", b"k", b"2"))
        await wait_until(lambda: publisher.producer.pending_bytes > one_record)
        await publisher.producer.close(timeout_s=0.0)
        await publisher.close()
        one.delay(1, 0.0)
        told = await asyncio.gather(sent, waiting, return_exceptions=True)
        assert all(isinstance(each, BrokerUnavailable) for each in told)
        assert [each.timeout for each in told] == [True, False]


async def test_where_the_log_cannot_be_read_nothing_with_a_key_is_written(one):
    """Rather an error than a second record."""
    async with running_publisher(one.bootstrap, timeout_s=1.0) as publisher:
        await RecordWriter(publisher).send("t", None, b"0")
        one.fail(ApiKey.LIST_OFFSETS, *[ErrorCode.LEADER_NOT_AVAILABLE] * 1000)
        with pytest.raises(BrokerUnavailable, match="nothing was written to t") as away:
            await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        assert not away.value.timeout
        one.forgive(ApiKey.LIST_OFFSETS)
        await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        assert len(await read_records(one.bootstrap)) == 2


async def test_a_gateway_that_may_not_read_says_so(one):
    one.fail(ApiKey.LIST_OFFSETS, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with running_publisher(one.bootstrap) as publisher:
        with pytest.raises(AccessDenied, match="allow it READ"):
            await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")


async def test_the_log_is_read_once_for_many_connections_and_then_only_what_is_new(one):
    async with running_publisher(one.bootstrap) as publisher:
        asked = publisher.cluster.request_counts
        await asyncio.gather(
            *(
                RecordWriter(publisher).send("t", None, b"v", idempotency_key=f"{n}")
                for n in range(50)
            )
        )
        assert asked["ListOffsets"] <= 6
        before = asked["Fetch"]
        writer = RecordWriter(publisher)
        for number in range(50, 60):
            await writer.send("t", None, b"v", idempotency_key=f"{number}")
        assert asked["Fetch"] - before <= 51  # the mock gives one batch at a time
        assert len(await read_records(one.bootstrap)) == 60


async def test_another_replica_finds_what_the_first_one_wrote(kafka, topic):
    """Also far behind the end of the log, and what came since it looked last."""
    name = topic(partitions=3)
    async with (
        running_publisher(kafka.bootstrap) as first,
        running_publisher(kafka.bootstrap) as second,
    ):
        early = await RecordWriter(first).send(name, None, b"early", idempotency_key="early")
        writer = RecordWriter(first)
        await asyncio.gather(
            *(writer.send(name, None, b"-", partition=early.partition) for _ in range(2000))
        )
        again = await RecordWriter(second).send(name, None, b"early", idempotency_key="early")
        assert again == early._replace(repeated=True)
        late = await RecordWriter(first).send(name, b"k", b"late", idempotency_key="late")
        again = await RecordWriter(second).send(name, b"k", b"late", idempotency_key="late")
        assert again == late._replace(repeated=True)


async def test_a_repeat_of_what_kafka_did_not_answer_is_the_first_one(kafka, topic):
    """The same gateway joins it; one that is started in its place finds it in the log."""
    name = topic()
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        # It is written, and Kafka says that it does not know.
        held = proxy.inject_error(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT)
        async with running_publisher(proxy.bootstrap.split(","), timeout_s=1.0) as publisher:
            with pytest.raises(BrokerUnavailable) as cut:
                await RecordWriter(publisher).send(name, None, b"v", idempotency_key="1")
            assert cut.value.timeout
            assert held.hit_count
            proxy.remove_injection(held)
            joined = await RecordWriter(publisher).send(name, None, b"v", idempotency_key="1")
            assert joined == Produced(name, 0, 0, repeated=True)

            held = proxy.inject_error(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT)
            with pytest.raises(BrokerUnavailable):
                await RecordWriter(publisher).send(name, None, b"w", idempotency_key="2")
            assert held.hit_count
        async with running_publisher(kafka.bootstrap) as restarted:
            found = await RecordWriter(restarted).send(name, None, b"w", idempotency_key="2")
            assert found == Produced(name, 0, 1, repeated=True)
    written = await read_records(kafka.bootstrap, TopicPartition(name, 0))
    assert [record.value for record in written] == [b"v", b"w"]


async def test_after_a_doubt_the_same_connection_looks_in_the_log_again(kafka, topic):
    """The producer gave up: it was refused at a second attempt, and written at the first."""
    name = topic()
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_publisher(proxy.bootstrap.split(",")) as publisher,
    ):
        writer = RecordWriter(publisher)
        await writer.send(name, None, b"0", idempotency_key="0")
        proxy.inject_error(ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=2)
        # In place of the first of the two:
        proxy.inject_error(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT, times=1)
        with pytest.raises(BrokerUnavailable, match="may have been written to, or not"):
            await writer.send(name, None, b"v", idempotency_key="1")
        again = await writer.send(name, None, b"v", idempotency_key="1")
        assert again == Produced(name, 0, 1, repeated=True)


async def test_what_may_not_be_written_is_not_but_what_is_there_was_allowed_before(one):
    asked = 0

    async def refuse_write() -> None:
        nonlocal asked
        asked += 1
        raise RequestError(412, "Precondition failed", "it is another by now")

    async with running_publisher(one.bootstrap) as publisher:
        for key in (None, "1"):
            with pytest.raises(RequestError, match="another by now"):
                await RecordWriter(publisher).send(
                    "t", None, b"v", idempotency_key=key, check_allowed=refuse_write
                )
        assert await read_records(one.bootstrap) == []
        await RecordWriter(publisher).send("t", None, b"v", idempotency_key="1")
        again = await RecordWriter(publisher).send(
            "t", None, b"v", idempotency_key="1", check_allowed=refuse_write
        )
        assert (again.repeated, asked) == (True, 2)


async def test_what_a_condition_waits_for_holds_up_no_other_write_of_the_document(one):
    """While a transaction was open, each write with If-Match waited five seconds with the document
    locked: others' writes of it were a 503."""
    document = {"capability": "fetch", "topic": "t", "filters": [{"key": "${params.id}"}]}
    routes = [{"when": [{"path": "/{id}"}], "with": document}]
    settings = Settings.model_validate(build_config(one.bootstrap, ["t"], routes))
    is_asked, transaction_ended = asyncio.Event(), asyncio.Event()

    async def check_condition() -> None:
        is_asked.set()
        await transaction_ended.wait()

    async with running_publisher(one.bootstrap) as publisher:
        publisher.document_locks = DocumentKeyLocks(
            publisher, lambda name: Topic(name=name), settings
        )
        conditional = asyncio.create_task(
            RecordWriter(publisher).send("t", b"k", b"v", check_allowed=check_condition)
        )
        await is_asked.wait()
        assert await RecordWriter(publisher).send("t", b"k", b"v") == Produced("t", 0, 0)
        transaction_ended.set()
        assert await conditional == Produced("t", 0, 1)


async def test_a_repeat_is_the_same_record_however_each_attempt_is_traced(one):
    """With traces on, a repeat at another worker, or after a restart, was refused as another record
    (422): the log has the traceparent that the gateway had written."""

    class FakeTracing:
        @contextmanager
        def trace_produce(self, topic: str, headers: Any) -> Any:
            yield [*headers, ("traceparent", b"of the gateway")]

    for n in range(2):
        async with running_publisher(one.bootstrap) as publisher:
            publisher.tracing = FakeTracing()
            headers = [("a", b"b"), ("traceparent", b"%d" % n)]
            told = await RecordWriter(publisher).send("t", None, b"v", headers, idempotency_key="1")
            assert told == Produced("t", 0, 0, repeated=n > 0)
