"""Keep transactional producers in the driver and in each Python worker from batch to batch.

The driver knows the process that committed a writer's rows last. If it is this process, the
producer that it kept is used. Otherwise another process has fenced that producer meanwhile, so a
new one is created, which fences the other process's (0.08 s, at times 0.5 s, when Spark gives a
partition to another worker). The workers import this module by its name, because the globals of a
pickled function are new in every task.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaException, Producer

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.clusters import DEFAULT_MAX_MESSAGE_BYTES
from gateway.pipeline.failures import build_kafka_error

# Spark passes the errors of workers to the driver as text. By this text the driver recognizes the
# errors that are worth another try.
RETRY_MARKER = "[transaction]"


MAX_BATCH_BYTES = 1_000_000
BATCH_OVERHEAD_BYTES = 100
"""The most bytes that a batch of one record takes beside key, value and headers."""


class WriteRefused(PipelineError):
    """Kafka refuses the rows and would refuse them again; none of them were committed."""


class TransactionInterrupted(PipelineUnavailable):
    """A transaction was interrupted, and only the ledger knows whether it was committed."""

    def __init__(self, transactional_id: str, error: object) -> None:
        super().__init__(f"{RETRY_MARKER} {transactional_id}: {error}")


# The keys are the transactional id, the generation of the plan, and the cluster's servers. The
# values have the last epoch that the producer was given for.
_producers: dict[tuple[Any, ...], tuple[LedgerProducer, int]] = {}
_current_process: tuple[int, str] = (0, "")  # the process id and the name
# The driver's threads write for several queries, and for several writers of one.
_lock = threading.RLock()


def get_process_name() -> str:
    """Return a unique name of this process, a new one after a fork.

    Spark forks its Python workers. librdkafka's threads do not survive a fork, so the producers of
    the parent process are dropped.
    """
    global _current_process
    with _lock:
        if _current_process[0] != os.getpid():
            _current_process = (os.getpid(), uuid.uuid4().hex)
            _producers.clear()
        return _current_process[1]


def get_producer(
    transactional_id: str, client_config: Mapping[str, Any], generation: int, epoch: int
) -> LedgerProducer | None:
    """Return the producer that this process keeps for a transactional id, if it has one to use.

    Args:
        generation: The generation of the plan. A producer of an earlier one is not returned.
        epoch: The epoch to write. A producer is returned once for an epoch. When Spark repeats a
            task, the producer may have committed it, and the caller has to read the ledger.
    """
    get_process_name()  # drops the producers of the parent process after a fork
    key = transactional_id, generation, client_config["bootstrap.servers"]
    with _lock:
        producer, last_epoch = _producers.get(key, (None, epoch))
        if producer is None or last_epoch >= epoch:
            return None
        _producers[key] = producer, epoch
        return producer


def store_producer(
    producer: LedgerProducer, client_config: Mapping[str, Any], generation: int, epoch: int
) -> None:
    """Keep a producer for the next batch, in place of any with the same transactional id."""
    get_process_name()
    key = producer.transactional_id, generation, client_config["bootstrap.servers"]
    with _lock:
        drop_producer(producer.transactional_id)
        _producers[key] = producer, epoch


def drop_producer(transactional_id: str) -> None:
    with _lock:
        for key in [key for key in _producers if key[0] == transactional_id]:
            del _producers[key]


def drop_query_producers(query_id: str) -> None:
    with _lock:
        for key in [key for key in _producers if key[0].rpartition("-")[0] == query_id]:
            del _producers[key]


class LedgerProducer:
    """A transactional producer of rows and of ledger entries, with one transaction at a time.

    The workers create one for each writer, and the driver creates short-lived ones for its own
    entries and to fence others. Creating one fences the previous producer with the same
    transactional id and aborts its open transaction.

    Every method except `abort` may raise `TransactionInterrupted`: nothing was written, or nobody
    knows whether it was. They raise `WriteRefused` if another try would not help. After either
    error the producer cannot be used any more.
    """

    def __init__(
        self,
        transactional_id: str,
        client_config: Mapping[str, Any],
        topic: str,
        timeout_s: float,
        max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Connect, and fence the previous producer of the transactional id.

        Args:
            topic: An existing topic, whose metadata is requested to test the connection.
            timeout_s: Kafka aborts a transaction that stays open for longer.
        """
        self.transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._began_at: float | None = None  # when the open transaction was begun
        try:
            self._producer = Producer(
                {**client_config, **_build_config(transactional_id, timeout_s, max_bytes)}
            )
        except KafkaException as error:  # another try would not change the settings
            raise PipelineError(f"Kafka's client does not take its settings: {error}") from None
        with self._give_up_on_error():
            self._await_broker(topic)
            self._producer.init_transactions(timeout_s + 30)

    def _await_broker(self, topic: str) -> None:
        """Wait until librdkafka is connected to a broker whose node id it knows.

        librdkafka drops the connection to the bootstrap server as soon as it knows the server's
        node id. If the transaction coordinator is looked up at that moment, the lookup is only
        repeated after 0.5 s (librdkafka 2.16). After this wait a producer is ready within 0.03 s.
        """
        with suppress(KafkaException):  # `init_transactions` waits, too, and reports the error
            for _ in range(10):
                if self._producer.list_topics(topic, timeout=10).orig_broker_id >= 0:
                    return
                time.sleep(0.005)

    def begin(self) -> None:
        with self._give_up_on_error():
            self._producer.begin_transaction()
        self._began_at = time.monotonic()

    def write_rows(
        self,
        topics: Iterable[str],
        keys: Iterable[Any],
        values: Iterable[Any],
        headers: Iterable[Any],
    ) -> None:
        """Write records, given by columns of equal length. None stands for no headers.

        librdkafka does everything but this loop, which writes 0.4 to 0.7 million rows a second.
        """
        produce = self._producer.produce
        with self._give_up_on_error():
            for topic, key, value, tags in zip(topics, keys, values, headers, strict=True):
                try:
                    produce(topic, value, key, headers=tags)
                except BufferError:
                    self._produce_when_free(topic, value, key, tags)
            self._producer.poll(0)

    def write_entry(
        self, topic: str, partition: int, key: str, value: Mapping[str, Any] | None
    ) -> None:
        """Write an entry of the ledger as part of the transaction; None removes the key."""
        text = None if value is None else json.dumps(value, separators=(",", ":"))
        with self._give_up_on_error():
            self._producer.produce(topic, text, key, partition=partition)

    def commit(self) -> None:
        with self._give_up_on_error():
            self._producer.commit_transaction(self._timeout_s + 10)
        self._began_at = None

    def abort(self) -> None:
        """Abort the transaction, and use this producer no more.

        If that fails, Kafka aborts the transaction after its timeout, or as soon as a new producer
        has the same transactional id.
        """
        drop_producer(self.transactional_id)
        try:
            self._producer.abort_transaction(5)
        except KafkaException:
            self._producer.purge()

    def _produce_when_free(self, topic: str, value: Any, key: Any, headers: Any) -> None:
        """Write one record once librdkafka's full buffer has space again."""
        # The loop ends: librdkafka drops records that it could not send within
        # `message.timeout.ms`, and `commit` then fails.
        while True:
            self._producer.poll(0.05)
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                continue

    @contextmanager
    def _give_up_on_error(self) -> Iterator[None]:
        """Give this producer up after an error: raise TransactionInterrupted or WriteRefused."""
        try:
            yield
        except (KafkaException, BufferError) as error:
            drop_producer(self.transactional_id)
            open_s = 0.0 if self._began_at is None else time.monotonic() - self._began_at
            if isinstance(error, KafkaException):
                refused = build_kafka_error(f"rows of {self.transactional_id} are refused", error)
                is_refused = not isinstance(refused, PipelineUnavailable)
                # Nobody would fence this producer if the job ends now. Until Kafka aborts its
                # transaction, readers of committed records would get nothing of its partitions.
                if is_refused or error.args[0].txn_requires_abort():
                    self.abort()
                if is_refused:
                    raise WriteRefused(str(refused)) from None
            self._producer.purge()
            text = str(error)
            if open_s >= self._timeout_s:
                text += (
                    f"; the transaction was open for {open_s:.0f} s, and Kafka aborts one after "
                    f"transactionTimeout ({self._timeout_s:g} s): if batches take longer, raise "
                    "transactionTimeout or writers"
                )
            raise TransactionInterrupted(self.transactional_id, text) from None


def _build_config(transactional_id: str, timeout_s: float, max_bytes: int) -> dict[str, Any]:
    """Return librdkafka's properties of a producer.

    A broker that no longer answers is noticed after 6 s, or after the transaction's timeout if that
    is shorter: librdkafka refuses a socket timeout that is longer than the transaction's. A record
    may be retried for as long as the transaction may stay open.
    """
    timeout_ms = int(timeout_s * 1000)
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": timeout_ms,
        "socket.timeout.ms": min(6000, timeout_ms),
        "request.timeout.ms": min(5000, timeout_ms),
        "topic.metadata.refresh.interval.ms": 5000,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 1000,
        "partitioner": "murmur2_random",  # like Spark's Kafka sink and every Java producer
        "compression.type": "lz4",
        "message.max.bytes": max(1000, max_bytes),
        "batch.size": min(MAX_BATCH_BYTES, max(1, max_bytes - BATCH_OVERHEAD_BYTES)),
        "linger.ms": 20,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 131_072,
    }
