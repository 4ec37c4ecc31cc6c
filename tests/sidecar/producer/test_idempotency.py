"""Ledgers without the sidecar around them: where they begin to read, and several on one topic."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer
from support.dead_letters import read_committed
from support.transaction_kafka import TransactionKafka
from support.waiting import wait_until

from gateway.config.sections.sidecar import Idempotency, Producer
from gateway.core.delivery.claims import Claim, ClaimResult
from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.offsets import LATEST, READ_COMMITTED, OffsetAndTimestamp
from gateway.kafka.client.outages import Outages
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.producer import Producer as Writer
from gateway.kafka.produce.transactional_producer import TransactionalProducer, WrittenOffsets
from gateway.kafka.protocol.topic_messages import EndTxnRequest
from gateway.sidecar.context import Context
from gateway.sidecar.producer.claim_log import ClaimLog
from gateway.sidecar.producer.idempotency import IdempotencyStore, ProduceCallback
from gateway.sidecar.producer.transactions import TransactionPool


class FakeCluster:
    """A cluster with one topic, to which another replica writes whenever it was asked."""

    outages = None
    configs: Mapping[str, str] = {}

    async def fetch_configs(self, topic: str, *names: str) -> Mapping[str, str]:
        return self.configs

    def __init__(self) -> None:
        self.end_offsets = {0: 3, 1: 0}
        self.first_ends = dict(self.end_offsets)

    def get_topic(self, name: str) -> Any:
        return SimpleNamespace(name=name, error=0, topic_id=None)

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation: int = READ_COMMITTED
    ) -> dict[TopicPartition, Any]:
        results = {
            tp: OffsetAndTimestamp(self.end_offsets[tp.partition] if spec == LATEST else -1, -1, 0)
            for tp, spec in specs.items()
        }
        for number in self.end_offsets:
            self.end_offsets[number] += 1
        return results


async def test_a_claim_that_is_written_while_it_looks_where_to_begin_is_read():
    """Two replicas that began at once both had the first claim of one key, and both wrote."""
    log = FakeCluster()

    async def topic(name: str) -> Any:
        return SimpleNamespace(name=name, partitions={0: None, 1: None}, topic_id=None)

    context: Any = SimpleNamespace(cluster=log, get_topic=topic)
    ledger = ClaimLog(context, Producer(), 1.0)
    starts = await ledger.find_start_offsets()
    assert {tp.partition: offset for tp, offset in starts.items()} == log.first_ends


async def test_a_window_that_is_longer_than_the_topic_keeps_answers_is_warned_of(caplog):
    """Answers were gone before their window was over, and the request was done again."""
    log = FakeCluster()

    async def topic(name: str) -> Any:
        return SimpleNamespace(name=name, partitions={0: None, 1: None}, topic_id=None)

    context: Any = SimpleNamespace(cluster=log, get_topic=topic)
    producer = Producer(idempotency=Idempotency(window="7d"))
    for retention_ms, is_warned in (("-1", False), ("612000000", False), ("93600000", True)):
        log.configs = {"retention.ms": retention_ms}
        caplog.clear()
        await ClaimLog(context, producer, 1.0).find_start_offsets()
        assert len(caplog.messages) == is_warned
    assert "keeps answers for 26h only" in caplog.text
    assert "set its retention.ms to 612000000" in caplog.text


async def test_partitions_beyond_those_that_it_makes_the_topic_with_are_not_read():
    log = FakeCluster()

    async def topic(name: str) -> Any:
        return SimpleNamespace(name=name, partitions=dict.fromkeys(range(8)), topic_id=None)

    log.end_offsets = dict.fromkeys(range(8), 0)
    context: Any = SimpleNamespace(cluster=log, get_topic=topic)
    section = Producer(idempotency=Idempotency(partitions=5))
    ledger = ClaimLog(context, section, 1.0)
    assert [tp.partition for tp in await ledger.find_start_offsets()] == [0, 1, 2, 3]


KEY = hashlib.sha256(b"k").digest()[:16]
DIGEST = b"d" * 16


class UnreadLedger:
    """A ledger whose topic exists and is not read, as its partitions have no leader.

    It learns of the claims of its own requests all the same, and of what a test tells it.
    """

    def __init__(self, timeout: str = "5s") -> None:
        self.kafka = TransactionKafka()
        self.claim_failure: KafkaError | None = None  # of the claims that are written
        found = SimpleNamespace(
            name="keys", error=0, topic_id=None, partitions=dict.fromkeys(range(2))
        )

        async def get_topic(name: str) -> Any:
            return found

        cluster = self.kafka.cluster
        cluster.outages = Outages(time.monotonic)
        cluster.get_topic = lambda name: found
        cluster.list_offsets = FakeCluster().list_offsets
        cluster.fetch_configs = FakeCluster().fetch_configs
        cluster.leader_for_partition = lambda tp: None
        context: Any = SimpleNamespace(cluster=cluster, get_topic=get_topic, producer=self)
        idempotency = Idempotency(topic=found.name)
        section = Producer.model_validate(
            {"timeout": timeout, "transactionTimeout": "7s", "idempotency": idempotency}
        )
        self.pool = TransactionPool(context, 30.0)
        self.store = IdempotencyStore(context, section, self.pool)

    def send(
        self, tp: TopicPartition, key: bytes, value: bytes, *, timeout_s: float
    ) -> asyncio.Future[int]:
        """Take a claim, which is read at once."""
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.claim_failure is not None:
            written.set_exception(self.claim_failure)
            return written
        self.add_claim(key[16:].decode(), key[:16], expires_in_s=60.0)
        written.set_result(-1)
        return written

    def add_claim(self, owner: str, key: bytes = KEY, *, expires_in_s: float) -> None:
        now = time.time()
        self.store.claims.on_claim(key, Claim(owner, DIGEST, 0, now + expires_in_s), now)


@asynccontextmanager
async def running_unread_ledger(timeout: str = "5s") -> AsyncIterator[UnreadLedger]:
    ledger = UnreadLedger(timeout)
    reading = asyncio.create_task(ledger.store.run())
    # The first request has the topic looked for, and a claim that is read before that is forgotten.
    assert await ledger.store.run_once("other", DIGEST, do_nothing)
    try:
        yield ledger
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await ledger.pool.close()


async def do_nothing(
    by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
) -> tuple[bytes, WrittenOffsets]:
    return b"done", {result(b"done").tp: [-1]}


async def test_a_request_is_in_doubt_if_its_commit_cannot_be_settled():
    """It was told as not written (503): the commit was in doubt, and the login was refused when its
    id was started again to find out."""
    async with running_unread_ledger() as ledger:

        async def commit_in_doubt(
            by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
        ) -> tuple[bytes, WrittenOffsets]:
            ledger.kafka.failure = AuthenticationFailed("broker 1 refuses the login")
            raise BrokerUnavailable("no answer to the commit", timeout=True)

        with pytest.raises(BrokerUnavailable, match="may have been done: broker 1") as told:
            await ledger.store.run_once("k", DIGEST, commit_in_doubt)
        assert told.value.timeout


async def test_a_request_that_was_done_is_not_told_as_undone_while_its_answer_cannot_be_read():
    """It was told as not written (503)."""
    async with running_unread_ledger() as ledger:
        result = ClaimResult(DIGEST, TopicPartition("keys", 1), 0, time.time())
        ledger.store.claims.on_result(KEY, result)
        with pytest.raises(BrokerUnavailable, match="it was done, and its answer") as told:
            await ledger.store.run_once("k", DIGEST, do_nothing)
        assert told.value.timeout


async def test_an_answer_is_not_that_of_an_earlier_request_with_the_key():
    """Another replica did it again after the window, and this one repeated its own answer."""
    async with running_unread_ledger() as ledger:

        async def do_first(
            by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
        ) -> tuple[bytes, WrittenOffsets]:
            return b"first", {result(b"first").tp: [2]}

        assert not (await ledger.store.run_once("k", DIGEST, do_first)).is_repeated
        repeated = await ledger.store.run_once("k", DIGEST, do_nothing)
        assert (repeated.body, repeated.is_repeated) == (b"first", True)
        result = ClaimResult(DIGEST, TopicPartition("keys", 1), 4, time.time())
        ledger.store.claims.on_result(KEY, result)
        with pytest.raises(BrokerUnavailable, match="its answer cannot be read"):
            await ledger.store.run_once("k", DIGEST, do_nothing)


async def test_a_request_that_another_works_on_may_be_done_by_it():
    """A client that repeated its request was told that it is not written, and the first of its
    requests wrote it."""
    async with running_unread_ledger("100ms") as ledger:
        ledger.add_claim("another", expires_in_s=60.0)
        with pytest.raises(BrokerUnavailable, match="it may have been done") as told:
            await ledger.store.run_once("k", DIGEST, do_nothing)
        assert told.value.timeout


async def test_a_request_whose_own_transaction_hangs_is_not_told_of_another_request():
    """It was told that another request with its key had not finished, and there was none."""
    async with running_unread_ledger("100ms") as ledger:

        async def commit_to_silence(
            by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
        ) -> tuple[bytes, WrittenOffsets]:
            ledger.kafka.silent = EndTxnRequest
            return b"x", await by.commit(build_followups=lambda _: [])

        with pytest.raises(BrokerUnavailable, match="done: its own transaction has not") as told:
            await ledger.store.run_once("k", DIGEST, commit_to_silence)
        assert told.value.timeout


async def test_a_request_whose_claim_is_in_doubt_is_not_written():
    """It was told that its records may have been written, as its claim may have been."""
    async with running_unread_ledger() as ledger:
        ledger.claim_failure = BrokerUnavailable("keys-0 may have been written to", timeout=True)
        with pytest.raises(BrokerUnavailable, match="not written, as its key could not") as told:
            await ledger.store.run_once("k", DIGEST, do_nothing)
        assert not told.value.timeout


async def test_a_request_whose_owner_cannot_be_fenced_may_be_done_by_it():
    async with running_unread_ledger() as ledger:
        ledger.add_claim("another", expires_in_s=-1.0)
        ledger.kafka.failure = AuthenticationFailed("broker 1 refuses the login")
        with pytest.raises(BrokerUnavailable, match="its owner may have done it") as told:
            await ledger.store.run_once("k", DIGEST, do_nothing)
        assert told.value.timeout


async def test_nothing_is_done_in_place_of_an_owner_before_its_key_is_read_to_the_end():
    """Another may have released the claim and own the key, under an id that is not fenced."""
    done = []

    async def note_work(
        by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
    ) -> tuple[bytes, WrittenOffsets]:
        done.append(by.id)
        return await do_nothing(by, result)

    async with running_unread_ledger("100ms") as ledger:
        ledger.add_claim("another", expires_in_s=-1.0)
        with pytest.raises(BrokerUnavailable, match="it may have been done"):
            await ledger.store.run_once("k", DIGEST, note_work)
    assert not done
    assert ledger.kafka.timeouts_ms["another"] == 7000  # it was 30 s, whatever is configured


async def test_the_topic_is_watched_while_it_is_read():
    """When the hub closed it as a topic that nobody reads, all keys were read anew."""
    async with running_unread_ledger() as ledger:
        await wait_until(lambda: ledger.kafka.watched == ["keys"])
    assert ledger.kafka.watched == []


class LedgerReplica:
    """A ledger of its own on a real cluster, and the work that its requests ask for."""

    def __init__(self, cluster: Cluster, section: Producer, name: str) -> None:
        context: Any = Context(None, cluster, None, None, None)  # type: ignore[arg-type]
        self.writer = context.producer = Writer(cluster)
        self.cluster = cluster
        self.transactors = TransactionPool(context, section.transaction_timeout)
        self.ledger = IdempotencyStore(context, section, self.transactors)
        self._name = name
        self._read_task: asyncio.Task[None] | None = None

    def resume_reading(self) -> None:
        """Begin to read, or go on."""
        self._read_task = asyncio.create_task(self.ledger.run())

    async def pause_reading(self) -> None:
        """Read no more, as a reader that has not noticed yet what became of the topic."""
        if self._read_task is not None:
            self._read_task.cancel()
            await asyncio.gather(self._read_task, return_exceptions=True)

    def build_work(self, value: bytes) -> ProduceCallback:
        """Write a record and the answer."""

        async def write_answer(
            by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
        ) -> tuple[bytes, WrittenOffsets]:
            now = time.time_ns() // 1_000_000
            record = ProducerRecord(TopicPartition(self._name, 0), None, value, (), now)
            return b"done", await by.commit([record], build_followups=lambda _: [result(b"done")])

        return write_answer

    async def write_once(self, key: str) -> bool:
        """Return whether it was done before."""
        answered = await self.ledger.run_once(key, b"d" * 16, self.build_work(key.encode()))
        return answered.is_repeated


@asynccontextmanager
async def running_replica(
    kafka: Any,
    name: str,
    log: str,
    *,
    timeout: str = "5s",
    partitions: int = 4,
    max_age: float = 0.2,
) -> AsyncIterator[LedgerReplica]:
    """A replica that writes to the topic `name`. max_age: of metadata, in seconds."""
    idempotency = Idempotency(topic=log, partitions=partitions)
    section = Producer.model_validate({"timeout": timeout, "idempotency": idempotency})
    async with Cluster(ClusterSettings(kafka.bootstrap, metadata_max_age=max_age)) as cluster:
        cluster.metadata.watch(name, await cluster.describe_topic(name))
        replica = LedgerReplica(cluster, section, name)
        replica.resume_reading()
        try:
            yield replica
        finally:
            await replica.pause_reading()
            await replica.transactors.close()
            await replica.writer.close(0.0)


def read_values(kafka: Any, topic: str) -> list[bytes]:
    return sorted(record.value() for record in read_committed(kafka, topic))


def get_partitions(cluster: Cluster, topic: str) -> Mapping[int, Any]:
    known = cluster.get_topic(topic)
    assert known is not None
    return known.partitions


async def write_by_two_with_partitions_added(kafka: Any, topic: Any, used: int, more: int) -> None:
    """Have keys written by a replica that started before partitions are added, and a later one."""
    name, log = topic(), topic(2)
    keys = [f"k{number}" for number in range(12)]
    async with running_replica(kafka, name, log, partitions=used) as one:
        assert not await one.write_once("first")
        await asyncio.to_thread(kafka.admin.add_partitions, log, more)
        async with running_replica(kafka, name, log, partitions=used) as two:
            await wait_until(lambda: len(get_partitions(one.cluster, log)) == more)
            await wait_until(one.ledger.claim_log.is_current)
            results = [(await two.write_once(key), await one.write_once(key)) for key in keys]
    assert results == [(False, True)] * 12
    assert read_values(kafka, name) == sorted([b"first", *(key.encode() for key in keys)])


async def test_partitions_that_are_added_make_no_difference_to_keys(kafka: Any, topic: Any):
    """A replica that had started before looked for keys elsewhere than one that started after it,
    and both wrote 7 of 12."""
    await write_by_two_with_partitions_added(kafka, topic, used=2, more=8)


async def test_a_replica_uses_the_partitions_that_were_missing_once_they_are_added(kafka, topic):
    await write_by_two_with_partitions_added(kafka, topic, used=8, more=8)


async def test_a_claim_that_was_taken_over_is_not_released_by_its_former_owner(kafka, topic):
    """The first is refused, and slow to undo that. By the time that it released its claim another
    worked under it, and a third found the key free and wrote the record beside."""
    name, log = topic(), topic(2)
    refused, taken, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refuse(
        by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
    ) -> tuple[bytes, WrittenOffsets]:
        if not refused.is_set():
            await refused.wait()
            raise PartitionFailed(
                "it is too large", topic=name, partition=0, code=ErrorCode.MESSAGE_TOO_LARGE
            )
        return await one.build_work(b"k")(by, result)

    async with (
        running_replica(kafka, name, log, timeout="2s") as one,
        running_replica(kafka, name, log, timeout="2s") as two,
    ):
        write = two.build_work(b"k")

        async def wait(
            by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
        ) -> tuple[bytes, WrittenOffsets]:
            taken.set()
            await go_on.wait()
            return await write(by, result)

        digest = b"d" * 16
        first = asyncio.create_task(one.ledger.run_once("k", digest, refuse))
        await wait_until(lambda: two.ledger.claims.by_key or one.ledger.claims.by_key)
        second = asyncio.create_task(two.ledger.run_once("k", digest, wait))
        async with asyncio.timeout(60):
            await taken.wait()
        refused.set()
        await asyncio.wait([first], timeout=0.5)
        third = asyncio.create_task(one.write_once("k"))
        await asyncio.wait([third], timeout=0.5)
        go_on.set()
        results = await asyncio.gather(first, second, third, return_exceptions=True)
    assert read_values(kafka, name) == [b"k"]
    assert not any(isinstance(entry, BaseException) for entry in results), results


async def test_replicas_do_not_take_a_request_over_from_each_other_without_end(kafka, topic):
    """Each has several requests with the key, as a client repeats it. One of them began the next
    takeover as soon as the one before was fenced, and none was ever done."""
    name, log = topic(), topic(2)
    async with (
        running_replica(kafka, name, log, timeout="20s") as one,
        running_replica(kafka, name, log, timeout="20s") as two,
    ):

        async def write(replica: LedgerReplica) -> None:
            work = replica.build_work(b"k")

            async def write_slowly(
                by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
            ) -> tuple[bytes, WrittenOffsets]:
                await asyncio.sleep(2.0)
                return await work(by, result)

            await replica.ledger.run_once("k", DIGEST, write_slowly)

        for replica in (one, two):
            assert await replica.ledger.run_once("other", DIGEST, replica.build_work(b"o"))
            now = time.time()
            replica.ledger.claims.on_claim(KEY, Claim("killed", DIGEST, 0, now - 1.0), now)
        requests = [asyncio.create_task(write(one)) for _ in range(8)]
        await asyncio.sleep(1.0)
        await asyncio.gather(*requests, *(write(two) for _ in range(8)))
    assert read_values(kafka, name) == [b"k", b"o"]


async def test_a_key_is_free_once_its_records_were_refused(kafka: Any, topic: Any):
    name, log = topic(configs={"max.message.bytes": "1000"}), topic(2)
    async with running_replica(kafka, name, log) as one, running_replica(kafka, name, log) as two:
        for item in (one, two):
            with pytest.raises(PartitionFailed):
                await item.ledger.run_once("k", b"d" * 16, item.build_work(b"x" * 5000))
        assert not await one.write_once("k")
    assert read_values(kafka, name) == [b"k"]


async def recreate_topic(kafka: Any, topic: str) -> None:
    await asyncio.to_thread(kafka.admin.delete_topic, topic)
    await asyncio.to_thread(kafka.admin.create_topic, topic, 2)


async def test_a_claim_is_not_taken_over_by_what_was_read_of_a_topic_that_is_gone(kafka, topic):
    """The positions were those of the topic of before, and beyond the ends of the one made anew:
    what stood there was not read, and the record written again."""
    name, log = topic(), topic(2)

    async def hang(
        by: TransactionalProducer, result: Callable[[bytes], ProducerRecord]
    ) -> tuple[bytes, WrittenOffsets]:
        await asyncio.Event().wait()
        raise AssertionError

    async with running_replica(kafka, name, log, timeout="2s", max_age=60.0) as one:
        for number in range(5):
            await one.write_once(f"{number}")
        async with running_replica(kafka, name, log, timeout="2s") as gone:
            owner = asyncio.create_task(gone.ledger.run_once("k", b"d" * 16, hang))
            claims = one.ledger.claims.by_key
            await wait_until(lambda: claims)
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)
        late = [claim.expires_at for item in claims.values() for claim in item.values()]
        await wait_until(lambda: time.time() > max(late))
        await one.pause_reading()
        await recreate_topic(kafka, log)
        async with running_replica(kafka, name, log) as other:
            assert not await other.write_once("k")
        again = asyncio.create_task(one.write_once("k"))
        await asyncio.wait([again], timeout=0.5)
        one.resume_reading()
        assert await again
    assert read_values(kafka, name).count(b"k") == 1


async def test_a_claim_is_written_once_while_a_recreated_topic_is_not_read_yet(kafka, topic):
    """It was written over and over, since it seemed to be read already."""
    name, log = topic(), topic(2)
    async with running_replica(kafka, name, log) as one:
        for number in range(5):
            await one.write_once(f"{number}")
        await one.pause_reading()
        await recreate_topic(kafka, log)
        await wait_until(lambda: not one.ledger.claim_log.is_current())
        written = asyncio.create_task(one.write_once("k"))
        await asyncio.wait([written], timeout=0.5)
        one.resume_reading()
        assert not await written
        claims = [record for record in read_committed(kafka, log, 2) if len(record.key()) > 16]
        assert len([claim for claim in claims if claim.value() is not None]) <= 2
    assert read_values(kafka, name).count(b"k") == 1


async def test_claims_whose_key_has_a_result_are_not_released(kafka: Any, topic: Any):
    """A release is a transaction: one that a killed replica leaves open holds up all claims."""
    name, log = topic(), topic(2)
    async with running_replica(kafka, name, log) as one, running_replica(kafka, name, log) as two:
        requests = [replica.write_once("k") for replica in (one, two, one, two)]
        assert sorted(await asyncio.gather(*requests)) == [False, True, True, True]
        assert not await one.write_once("later")  # its claim is read behind those of "k"
    async with running_replica(kafka, name, log) as three:
        assert await three.write_once("k")
    assert read_values(kafka, name) == [b"k", b"later"]
    assert all(record.value() is not None for record in read_committed(kafka, log, 2))


def leave_transaction_open(servers: str, topic: str) -> None:
    """Write a record to partition 0 in a transaction that is not ended."""
    producer = KafkaProducer({"bootstrap.servers": servers, "transactional.id": f"{topic}-killed"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, key=b"x" * 16 + b"killed", partition=0)
    producer.flush(30)


async def test_an_answer_is_found_while_claims_cannot_be_read(kafka: Any, topic: Any):
    """A transaction that a killed replica left open among the claims holds up their readers."""
    name, log = topic(), topic(2)
    async with running_replica(kafka, name, log) as one:
        assert not await one.write_once("k")
        await asyncio.to_thread(leave_transaction_open, kafka.bootstrap_servers, log)
        async with running_replica(kafka, name, log) as two:
            assert await two.write_once("k")
    assert read_values(kafka, name) == [b"k"]


async def test_an_open_transaction_that_holds_up_keys_is_named(kafka: Any, topic: Any):
    """It was told that Kafka did not answer, for as long as the transaction was open."""
    name, log = topic(), topic(2)
    async with running_replica(kafka, name, log, timeout="1s") as one:
        assert not await one.write_once("k")
        await asyncio.to_thread(leave_transaction_open, kafka.bootstrap_servers, log)
        with pytest.raises(BrokerUnavailable, match=f"{log} is not read to its end"):
            await one.write_once("another")
