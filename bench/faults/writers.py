"""What writes to Kafka during a schedule, and what became of each record.

A `TopicWriter` has a producer of librdkafka, which gets an idempotent record through a leader that
was killed. A plain one gives up a record after some seconds; whether it was written then is
uncertain until Kafka's log is read. The `TransactionalWriter` aborts every other transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from support.continuous_writer import PRODUCER_OPTIONS
from support.oracle import StreamOracle
from support.registry import FakeRegistry
from support.stream_check import AckedRecord
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition

from .views import KEY_COUNT, LANES, build_metadata

PLAIN_OPTIONS = {"enable.idempotence": False, "acks": "all", "message.timeout.ms": 10_000}
IDEMPOTENT_OPTIONS = {"message.timeout.ms": 45_000}
MAX_UNACKED = 200  # records, of one writer
STOP_TIMEOUT_S = 120.0
TRANSACTION_TIMEOUT_MS = 10_000
TRANSACTION_RECORDS = 4
TRANSACTION_CALL_S = 15.0  # for commit and abort, before the outcome is uncertain
POLL_INTERVAL_S = 0.01


class Written(NamedTuple):
    """What became of a record.

    Attributes:
        at: When the outcome was known, by `time.monotonic`.
        tp: The partition.
        offset: The offset; None if nobody told.
        value: The value.
        outcome: acknowledged, uncertain or aborted.
        writer: Who wrote it.
    """

    at: float
    tp: TopicPartition
    offset: int | None
    value: bytes | None
    outcome: str
    writer: str


class WriterLog:
    """All that was written, by all writers, for the oracle and for the history of a finding."""

    def __init__(self, oracle: StreamOracle, random: Random) -> None:
        self.oracle = oracle
        self.random = random
        self.entries: list[Written] = []
        # By place and value: a topic that begins anew has the same offsets again.
        self._acked_at: dict[tuple[TopicPartition, int, bytes | None], float] = {}

    def build_record(self, tp: TopicPartition, keys: Callable[[TopicPartition], bytes]) -> Record:
        """Build a record with a value of its own."""
        fields = {"lane": self.random.choice(LANES), "at": int(1000 * time.time())}
        (made,) = self.oracle.build_records(1, keys(tp), tp.partition, fields, None)
        return Record(tp, made.key or b"", made.value or b"")

    def add_acked(self, record: Record, offset: int, writer: str) -> None:
        """Note that Kafka has acknowledged a record."""
        self.oracle.add_acked([AckedRecord(record.tp, offset, record.key, record.value)])
        self._add(record, offset, "acknowledged", writer)

    def add_uncertain(self, record: Record, writer: str) -> None:
        """Note that nobody said whether a record was written."""
        if record.value is not None:
            self.oracle.add_uncertain(record.value)
        self._add(record, None, "uncertain", writer)

    def add_aborted(self, record: Record, offset: int | None, writer: str) -> None:
        """Note that a record must not arrive; the oracle was told when it was sent."""
        self._add(record, offset, "aborted", writer)

    def get_acked_at(self, tp: TopicPartition, offset: int, value: bytes | None) -> float | None:
        """Return when Kafka acknowledged a record; None where nobody knows."""
        return self._acked_at.get((tp, offset, value))

    def count_outcomes(self) -> Counter[str]:
        """Count the records by their outcomes."""
        return Counter(each.outcome for each in self.entries)

    def _add(self, record: Record, offset: int | None, outcome: str, writer: str) -> None:
        now = time.monotonic()
        if offset is not None and outcome == "acknowledged":
            self._acked_at.setdefault((record.tp, offset, record.value), now)
        self.entries.append(Written(now, record.tp, offset, record.value, outcome, writer))


class Record(NamedTuple):
    """A record to be written; `value` None is a tombstone.

    A value names the timestamp and the header that it is written with, so that whoever gets the
    record can tell whether these are its own.
    """

    tp: TopicPartition
    key: bytes
    value: bytes | None

    def build_metadata(self) -> dict[str, Any]:
        """Return what a producer is given beside key and value."""
        return {} if self.value is None else build_metadata(self.value)


def choose_key(random: Random) -> Callable[[TopicPartition], bytes]:
    """Return a function that draws one of seven keys, the same ones in all partitions."""
    return lambda tp: b"key-%d" % random.randrange(KEY_COUNT)


def choose_own_key(random: Random, count: int = 10) -> Callable[[TopicPartition], bytes]:
    """Return a function that draws a key of the partition: each key has one partition."""
    return lambda tp: b"price-%d-%d" % (tp.partition, random.randrange(count))


def _create_producer(options: dict[str, Any]) -> Producer:
    """Create a producer whose threads give way to what is tested.

    Those of librdkafka poll without a rest while a record waits for longer than `linger.ms`, as for
    replicas that are away. A thread has the priority of the one that started it.
    """

    def create() -> Producer:
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # of this thread
        return Producer(options)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(create).result()


def _discard_producer(producer: Producer) -> None:
    """Give up what a producer holds. Each call raises again what was fatal to it."""
    with contextlib.suppress(KafkaException):
        producer.purge()
    with contextlib.suppress(KafkaException):
        producer.flush(1)


class SchemaCodec:
    """Frames JSON values with the id of a schema, as Confluent's serializers do.

    Args:
        registry: Where schemas are registered, without a request.
        subject: Their subject.
    """

    def __init__(self, registry: FakeRegistry, subject: str) -> None:
        self._registry = registry
        self._subject = subject
        self._version = 0
        self._id = self.add_schema()

    def add_schema(self) -> int:
        """Write with a new schema from now on, which no reader knows yet; returns its id."""
        self._version += 1
        schema = {"type": "object", "title": f"version {self._version}"}
        self._id = self._registry.register_schema(self._subject, schema, "JSON")
        return self._id

    def encode(self, value: bytes) -> bytes:
        """Return a value as it is written."""
        return b"\0" + self._id.to_bytes(4, "big") + value


def decode_value(value: bytes) -> bytes:
    """Return the JSON of a value that a `SchemaCodec` wrote."""
    return value[5:]


class TopicWriter:
    """Writes to the partitions of one topic all the time, at a rate, from `start` to `stop`."""

    def __init__(
        self,
        name: str,
        servers: str,
        log: WriterLog,
        partitions: Iterable[TopicPartition],
        rate: float,
        *,
        keys: Callable[[TopicPartition], bytes],
        is_plain: bool = False,
        tombstone_share: float = 0.0,
        codec: SchemaCodec | None = None,
    ) -> None:
        self.name = name
        self._codec = codec
        self.partitions = list(partitions)
        self._servers = servers
        self._log = log
        self._rate = rate
        self._keys = keys
        self._options = PRODUCER_OPTIONS | (PLAIN_OPTIONS if is_plain else IDEMPOTENT_OPTIONS)
        self._tombstone_share = tombstone_share
        self._producer: Producer | None = None
        self._unacked_count = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        """End at once, whatever has no answer."""
        if self._producer is not None:
            producer = self._producer
            self._cancel()
            producer.purge()
            await asyncio.to_thread(producer.flush, 5)

    @property
    def is_running(self) -> bool:
        """Return whether it writes."""
        return self._producer is not None

    def start(self, *, is_writing: bool = True) -> None:
        """Begin with a new producer, which knows nothing of the log before."""
        assert self._producer is None, f"{self.name} writes already"
        self._producer = _create_producer(self._options | {"bootstrap.servers": self._servers})
        self._tasks = [asyncio.create_task(self._poll_forever(self._producer))]
        if is_writing:
            self._tasks.append(asyncio.create_task(self._write_forever()))

    async def stop(self) -> None:
        """End, once the outcome of every record is known."""
        for task in self._tasks[1:]:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks[1:], return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await wait_until(
            lambda: not self._unacked_count,
            lambda: f"{self.name} has no answer for {self._unacked_count} records",
            STOP_TIMEOUT_S,
        )
        self._cancel()

    def write_records(self, tp: TopicPartition, count: int) -> None:
        """Write so many to one partition at once."""
        for _ in range(count):
            self._write_record(tp)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks, self._producer = [], None

    async def _write_forever(self) -> None:
        random = self._log.random
        due = time.monotonic()
        while True:
            due = max(due + 1 / self._rate, time.monotonic() - 1)
            if self._unacked_count < MAX_UNACKED:
                self._write_record(random.choice(self.partitions))
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _poll_forever(self, producer: Producer) -> None:
        while True:
            producer.poll(0)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _write_record(self, tp: TopicPartition) -> None:
        assert self._producer is not None
        record = self._log.build_record(tp, self._keys)
        if self._tombstone_share and self._log.random.random() < self._tombstone_share:
            record = record._replace(value=None)

        def note_outcome(error: KafkaError | None, message: Message) -> None:
            self._unacked_count -= 1
            offset = message.offset()
            # A repeated request is answered as a duplicate: written, with no word of where.
            if error is not None or offset is None or offset < 0:
                self._log.add_uncertain(record, self.name)
            else:
                self._log.add_acked(record, offset, self.name)

        value = record.value
        if self._codec is not None and value is not None:
            value = self._codec.encode(value)
        # A partition that was just added is unknown until the producer has new metadata.
        with contextlib.suppress(KafkaException):
            self._producer.produce(
                tp.topic,
                value,
                record.key,
                tp.partition,
                on_delivery=note_outcome,
                **record.build_metadata(),
            )
            self._unacked_count += 1


class TransactionalWriter:
    """Writes transactions of some records over several partitions; every other one is aborted.

    An error that says nothing about the outcome makes its records uncertain, and the next producer
    of the same transactional id ends what was open.
    """

    def __init__(
        self, servers: str, log: WriterLog, partitions: Iterable[TopicPartition], rate: float
    ) -> None:
        self.partitions = list(partitions)
        self.name = "transactional"
        self._options = {
            "bootstrap.servers": servers,
            "transactional.id": f"bench-{uuid.uuid4().hex[:8]}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "socket.timeout.ms": 2000,
            "reconnect.backoff.max.ms": 200,
            "linger.ms": 0,
            "log_level": 0,
        }
        self._log = log
        self._interval_s = TRANSACTION_RECORDS / rate
        self._keys = choose_key(log.random)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.committed_count = 0
        self.aborted_count = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._write_forever())

    async def stop(self) -> None:
        """End after the transaction that is open."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _write_forever(self) -> None:
        producer: Producer | None = None
        number = 0
        while not self._stopping.is_set():
            number += 1
            try:
                if producer is None:
                    producer = _create_producer(self._options)
                    await asyncio.to_thread(producer.init_transactions, TRANSACTION_CALL_S)
                await asyncio.to_thread(self._write_transaction, producer, number % 2 == 0)
            except KafkaException:
                if producer is not None:
                    await asyncio.to_thread(_discard_producer, producer)
                producer = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._interval_s)

    def _write_transaction(self, producer: Producer, is_committed: bool) -> None:
        """Write one transaction, in a thread: the calls wait for Kafka."""
        tps = [self._log.random.choice(self.partitions) for _ in range(TRANSACTION_RECORDS)]
        records = [self._log.build_record(tp, self._keys) for tp in tps]
        offsets: dict[Record, int] = {}
        values = [record.value for record in records if record.value is not None]
        self._log.oracle.add_aborted(values)

        def note_offset(record: Record) -> Callable[[KafkaError | None, Message], None]:
            def note(error: KafkaError | None, message: Message) -> None:
                offset = message.offset()
                if error is None and offset is not None:
                    offsets[record] = offset

            return note

        outcome = "aborted"  # as long as nobody asked for a commit
        try:
            producer.begin_transaction()
            for record in records:
                producer.produce(
                    record.tp.topic,
                    record.value,
                    record.key,
                    record.tp.partition,
                    on_delivery=note_offset(record),
                    **record.build_metadata(),
                )
            if is_committed:
                outcome = "uncertain"
                outcome = self._commit(producer)
            else:
                producer.abort_transaction(TRANSACTION_CALL_S)
        finally:
            if outcome == "committed" and len(offsets) < len(records):
                outcome = "uncertain"
            self._note_outcome(records, offsets, outcome)

    def _commit(self, producer: Producer) -> str:
        """Return the outcome. KafkaException if nobody knows."""
        try:
            producer.commit_transaction(TRANSACTION_CALL_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TRANSACTION_CALL_S)
            return "aborted"
        return "committed"

    def _note_outcome(
        self, records: list[Record], offsets: dict[Record, int], outcome: str
    ) -> None:
        if outcome == "aborted":
            self.aborted_count += 1
            for record in records:
                self._log.add_aborted(record, offsets.get(record), self.name)
            return
        self._log.oracle.discard_aborted(record.value or b"" for record in records)
        self.committed_count += outcome == "committed"
        for record in records:
            if outcome == "committed":
                self._log.add_acked(record, offsets[record], self.name)
            else:
                self._log.add_uncertain(record, self.name)
