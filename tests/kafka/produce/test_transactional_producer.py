"""What a transaction holds is there as a whole or not at all, and its id has one owner."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator

import pytest
from support.brokers import KafkaCluster
from support.kafka_proxy import ApiKey, KafkaProxy, SeenRequest
from support.oracle import read_records
from support.transaction_kafka import TransactionKafka, lose_answer
from support.virtual_time import run_in_virtual_time

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    Fenced,
    KafkaError,
    PartitionFailed,
)
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import (
    TransactionalProducer,
    WrittenOffsets,
    find_left_out,
)
from gateway.kafka.protocol.group_messages import OffsetAndMetadata


@pytest.fixture
async def cluster(kafka: KafkaCluster) -> AsyncIterator[Cluster]:
    async with Cluster(ClusterSettings(kafka.bootstrap)) as cluster:
        yield cluster


async def watch_topic(cluster: Cluster, topic: str) -> str:
    cluster.metadata.watch(topic, await cluster.describe_topic(topic))
    return topic


def build_write(
    topic: str, value: bytes | None, partition: int = 0, key: bytes | None = b"k"
) -> ProducerRecord:
    headers = [("a", b"1"), ("a", None)]
    now = time.time_ns() // 1_000_000
    return ProducerRecord(TopicPartition(topic, partition), key, value, headers, now)


@pytest.mark.smoke
async def test_what_is_committed_is_there_with_its_offsets(kafka, cluster):
    topic = await watch_topic(cluster, kafka.create_unique_topic(partitions=2))
    tp, group = TopicPartition(topic, 0), f"{topic}.group"
    writer = TransactionalProducer(cluster, f"{topic}-w")
    await writer.start()

    placed = await writer.commit(
        [build_write(topic, b"a"), build_write(topic, None), build_write(topic, b"c", 1)],
        group=group,
        offsets={tp: OffsetAndMetadata(7, 0, "mine")},
    )
    await writer.commit([build_write(topic, b"d", key=None)])

    assert placed[tp] == [0, 1]
    found = await read_records(kafka.bootstrap_servers, topic, min_records=4)
    assert sorted((each.tp.partition, each.value) for each in found if each.value) == [
        (0, b"a"),
        (0, b"d"),
        (1, b"c"),
    ]
    committed = await GroupOffsets(cluster.coordinators, group).committed([tp])
    assert committed[tp] == (7, 0, "mine")


@pytest.mark.smoke
async def test_who_had_the_id_before_writes_nothing_more(kafka, cluster):
    topic = await watch_topic(cluster, kafka.create_unique_topic())
    first, second = (TransactionalProducer(cluster, f"{topic}-w") for _ in range(2))
    await first.start()
    await second.start()

    with pytest.raises(Fenced):
        await first.commit([build_write(topic, b"first")])
    await second.commit([build_write(topic, b"second")])

    found = await read_records(kafka.bootstrap_servers, topic, min_records=1)
    assert [each.value for each in found] == [b"second"]
    assert not first.is_started


async def test_a_record_that_is_refused_takes_all_others_with_it(kafka, cluster):
    topic = await watch_topic(cluster, kafka.create_unique_topic())
    small = await watch_topic(
        cluster, kafka.create_unique_topic(configs={"max.message.bytes": "1000"})
    )
    writer = TransactionalProducer(cluster, f"{topic}-w")
    await writer.start()

    with pytest.raises(PartitionFailed) as failed:
        await writer.commit([build_write(topic, b"fine"), build_write(small, b"x" * 5000)])
    await writer.start()
    await writer.commit([build_write(topic, b"after")])

    assert failed.value.code == ErrorCode.MESSAGE_TOO_LARGE
    found = await read_records(kafka.bootstrap_servers, topic, min_records=1)
    assert [each.value for each in found] == [b"after"]


async def test_batches_and_copies_that_are_too_large_are_made_smaller(kafka, cluster):
    """Small records were refused together, and a large one ended each attempt to copy any."""
    topic = await watch_topic(
        cluster, kafka.create_unique_topic(configs={"max.message.bytes": "5000"})
    )
    writer = TransactionalProducer(cluster, f"{topic}-w")
    await writer.start()
    small = [os.urandom(1500) for _ in range(8)]
    large = os.urandom(4925)  # fits without headers
    # A broker closes the connection of the last one.
    values = [*small, b"x" * 9000, os.urandom(9000), large, bytes(101 << 20)]
    records = [build_write(topic, value) for value in values]

    def leave_headers_out(record: ProducerRecord) -> ProducerRecord | None:
        return record._replace(headers=(), key=None) if record.headers else None

    written = await writer.commit(records[:8])
    assert find_left_out(records[:8], written) == set()
    written = await writer.commit(records[8:], shorten=leave_headers_out)
    assert find_left_out(records[8:], written) == {1, 3}
    found = await read_records(kafka.bootstrap_servers, topic, min_records=10)
    assert [each.value for each in found] == [*small, values[8], large]


async def test_a_topic_that_is_not_known_yet_holds_up_the_others(kafka, cluster):
    """Kafka says of the others that they were not attempted, which was taken for the reason."""
    topic = await watch_topic(cluster, kafka.create_unique_topic())
    late = await watch_topic(cluster, kafka.create_unique_topic())
    kafka.admin.delete_topic(late)
    writer = TransactionalProducer(cluster, f"{topic}-w")
    await writer.start()

    commit = asyncio.create_task(
        writer.commit([build_write(topic, b"here"), build_write(late, b"there")])
    )
    refused = await asyncio.wait([commit], timeout=1.0)
    kafka.create_topic(late)
    await commit

    assert not refused[0]
    for each, value in ((topic, b"here"), (late, b"there")):
        assert [
            r.value for r in await read_records(kafka.bootstrap_servers, each, min_records=1)
        ] == [value]


async def test_who_is_fenced_before_a_refusal_is_undone_is_told(kafka: KafkaCluster) -> None:
    """The refusal was told alone, as if the id were still the writer's own."""
    name = kafka.create_unique_topic(configs={"max.message.bytes": "1000"})
    asked = asyncio.Event()

    def hold_end(request: SeenRequest) -> bytes | None:
        if request.api_key != ApiKey.END_TXN:
            return None
        asked.set()
        return struct.pack(">ih", 0, 51)  # CONCURRENT_TRANSACTIONS: it is to be asked again

    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        Cluster(ClusterSettings(proxy.bootstrap.split(","))) as behind,
        Cluster(ClusterSettings(kafka.bootstrap)) as cluster,
    ):
        topic = await watch_topic(behind, name)
        first, second = (TransactionalProducer(each, f"{topic}-w") for each in (behind, cluster))
        await first.start()
        proxy.on_request = hold_end
        refused = asyncio.create_task(first.commit([build_write(topic, b"x" * 5000)]))
        async with asyncio.timeout(60):
            await asked.wait()
            await second.start()
        proxy.on_request = None
        with pytest.raises(Fenced):
            await refused
        assert not first.is_started


async def test_an_id_is_still_ours_when_a_refusal_is_undone(kafka, cluster):
    topic = await watch_topic(
        cluster, kafka.create_unique_topic(configs={"max.message.bytes": "1000"})
    )
    writer = TransactionalProducer(cluster, f"{topic}-w")
    await writer.start()
    for value in (b"a", b"b"):
        with pytest.raises(PartitionFailed):
            await writer.commit([build_write(topic, b"x" * 5000)])
        assert writer.is_started
        await writer.commit([build_write(topic, value)])
    found = await read_records(kafka.bootstrap_servers, topic, min_records=2)
    assert [each.value for each in found] == [b"a", b"b"]


async def test_an_id_is_still_ours_when_nothing_was_open_to_be_undone(kafka, cluster):
    """Kafka answers INVALID_TXN_STATE then, which is no fence."""
    topic = await watch_topic(cluster, kafka.create_unique_topic())
    writer = TransactionalProducer(cluster, f"{topic}-w")

    def deny_request(_: WrittenOffsets) -> list[ProducerRecord]:
        raise AccessDenied(f"the gateway may not write to {topic}")

    await writer.start()
    with pytest.raises(AccessDenied):
        await writer.commit(build_followups=deny_request)
    await writer.commit([build_write(topic, b"a")])
    with pytest.raises(AccessDenied):
        await writer.commit(build_followups=deny_request)
    await writer.commit([build_write(topic, b"b")])
    found = await read_records(kafka.bootstrap_servers, topic, min_records=2)
    assert [each.value for each in found] == [b"a", b"b"]


def refuse_login() -> KafkaError:
    return AuthenticationFailed("broker 1 refuses the login")


async def start_writer(kafka: TransactionKafka) -> TransactionalProducer:
    writer = TransactionalProducer(kafka.cluster, "w")
    await writer.start()
    return writer


@pytest.mark.parametrize(
    "second",
    [refuse_login, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED],
)
@pytest.mark.parametrize("first", [lose_answer, ErrorCode.NOT_COORDINATOR])
async def test_a_commit_that_may_be_done_is_not_refused_by_what_comes_next(first, second):
    """The error of the second attempt was told as if nothing had been committed by the first, and a
    denied one was taken for an abort."""
    kafka = TransactionKafka(first, second)
    writer = await start_writer(kafka)
    with pytest.raises(BrokerUnavailable, match="Kafka does not say whether") as told:
        await writer.commit([build_write("t", b"a")])
    assert told.value.timeout
    assert writer.may_be_committed
    assert (kafka.commits, writer.is_started) == (2, False)


@pytest.mark.parametrize("answer", [refuse_login, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_a_commit_without_a_clear_answer_may_be_done(answer):
    """An answer may be lost, and the login for the second attempt refused, within one call of
    `Connections.send_on`."""
    writer = await start_writer(TransactionKafka(answer))
    with pytest.raises(BrokerUnavailable, match="Kafka does not say whether") as told:
        await writer.commit([build_write("t", b"a")])
    assert told.value.timeout


async def test_a_commit_is_in_doubt_if_its_connection_was_lost_before_the_answer() -> None:
    """The answer was taken for one to the first attempt."""
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    writer = await start_writer(TransactionKafka(code, keeps_connection=False))
    with pytest.raises(BrokerUnavailable, match="Kafka does not say whether") as told:
        await writer.commit([build_write("t", b"a")])
    assert told.value.timeout


async def test_a_commit_that_is_refused_at_once_is_not_in_doubt() -> None:
    kafka = TransactionKafka(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    writer = await start_writer(kafka)
    with pytest.raises(AccessDenied):
        await writer.commit([build_write("t", b"a")])
    assert writer.is_started
    await writer.commit([build_write("t", b"b")])


async def test_a_transaction_whose_records_have_no_leader_is_not_in_doubt() -> None:
    """It was told as perhaps committed, although its end was never sent."""

    def find_no_leader(tp: TopicPartition) -> tuple[int, int]:
        raise BrokerUnavailable(f"{tp} has no leader", retry_after=3600.0)  # beyond all retries

    kafka = TransactionKafka()
    kafka.cluster.leader_for_partition = find_no_leader
    writer = await start_writer(kafka)
    with pytest.raises(BrokerUnavailable, match="t-0 has no leader") as told:
        await writer.commit([build_write("t", b"a")])
    assert (told.value.timeout, writer.may_be_committed, kafka.commits) == (False, False, 0)


async def test_a_commit_whose_answer_was_lost_is_repeated() -> None:
    kafka = TransactionKafka(lose_answer, ErrorCode.CONCURRENT_TRANSACTIONS)
    writer = await start_writer(kafka)
    tp = TopicPartition("t", 0)
    assert await writer.commit([build_write("t", b"a")]) == {tp: [40]}
    assert (kafka.commits, writer.is_started) == (3, True)


async def test_a_topic_is_watched_while_a_transaction_is_written_to_it() -> None:
    """The hub ended its watch of a topic that nobody read any more, and the transaction that was
    written to it found no leader."""
    kafka = TransactionKafka()
    writer = await start_writer(kafka)
    watched: list[str] = []

    def find_leader(tp: TopicPartition) -> tuple[int, int]:
        watched.extend(kafka.watched)
        return 1, 0

    kafka.cluster.leader_for_partition = find_leader
    await writer.commit([build_write("t", b"a")])
    assert (watched, kafka.watched) == (["t"], [])


async def test_a_batch_that_the_replicas_do_not_have_in_time_is_sent_again() -> None:
    """It was told as refused, although Kafka had appended it, or takes it a moment later."""
    kafka = TransactionKafka()
    kafka.append_codes = [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ]
    writer = await start_writer(kafka)
    assert await writer.commit([build_write("t", b"a")]) == {TopicPartition("t", 0): [40]}


def test_a_batch_is_sent_again_more_slowly_while_replicas_are_missing() -> None:
    """It was sent 50 times a second: 18 MB of requests became 3 GB to Kafka within 10 s."""
    kafka = TransactionKafka()
    kafka.append_codes = [ErrorCode.NOT_ENOUGH_REPLICAS] * 2000

    async def play() -> None:
        writer = await start_writer(kafka)
        with pytest.raises(BrokerUnavailable):
            await writer.commit([build_write("t", b"a")])

    run_in_virtual_time(play())
    assert 2000 - len(kafka.append_codes) < 50


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ([ErrorCode.UNKNOWN_SERVER_ERROR], KafkaError),
        ([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_RECORD], PartitionFailed),
    ],
)
async def test_an_id_is_started_again_after_a_batch_that_may_be_appended(codes, error):
    """The next batch had the same sequence numbers, and Kafka took it for the same batch: it was
    told as written, and was not."""
    kafka = TransactionKafka()
    kafka.append_codes = [int(code) for code in codes]
    writer = await start_writer(kafka)
    with pytest.raises(error):
        await writer.commit([build_write("t", b"a")])
    assert (kafka.commits, writer.is_started) == (0, False)


async def test_an_id_is_still_ours_after_a_batch_that_was_refused_at_once() -> None:
    kafka = TransactionKafka()
    kafka.append_codes = [ErrorCode.INVALID_RECORD]
    writer = await start_writer(kafka)
    with pytest.raises(PartitionFailed):
        await writer.commit([build_write("t", b"a")])
    assert writer.is_started
