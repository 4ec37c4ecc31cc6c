"""Transactional producers, kept in each Python worker from batch to batch.

The driver says which process served a writer last. A producer that is kept is used if that was
this one, otherwise somebody fenced it meanwhile: a new one is made, which fences that somebody
(0.08 s, at times 0.5 s, where Spark hands a partition to another worker). The module is imported
by the workers, because what a pickled function has as globals is anew in every task.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from confluent_kafka import KafkaException, Producer

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.run.failures import build_kafka_error
from gateway.pipeline.topics import DEFAULT_MAX_MESSAGE_BYTES

from .large_rows import BATCH_OVERHEAD_BYTES

RETRY_MARKER = "[transaction]"  # what the driver knows an error by that is worth another try


MAX_BATCH_BYTES = 1_000_000  # bytes


class WriteRefused(PipelineError):
    """Kafka refuses what is written, now and at every other try; nothing of it was committed."""


class TransactionInterrupted(PipelineUnavailable):
    """A transaction did not come to its end; who runs it again finds out if it was committed."""

    def __init__(self, transactional_id: str, error: object) -> None:
        super().__init__(f"{RETRY_MARKER} {transactional_id}: {error}")


_producers: dict[tuple[Any, ...], LedgerProducer] = {}
_current_process: tuple[int, str] = (0, "")


def get_process_name() -> str:
    """This process's name; another one after a fork."""
    global _current_process
    if _current_process[0] != os.getpid():
        _current_process = (os.getpid(), uuid.uuid4().hex)
        _producers.clear()
    return _current_process[1]


def get_producer(
    transactional_id: str, client_config: Mapping[str, Any], generation: int
) -> LedgerProducer | None:
    get_process_name()
    return _producers.get((transactional_id, generation, _get_bootstrap_servers(client_config)))


def store_producer(
    producer: LedgerProducer, client_config: Mapping[str, Any], generation: int
) -> None:
    drop_producer(producer.transactional_id)
    get_process_name()
    _producers[(producer.transactional_id, generation, _get_bootstrap_servers(client_config))] = (
        producer
    )


def drop_producer(transactional_id: str) -> None:
    for key in [key for key in _producers if key[0] == transactional_id]:
        del _producers[key]


def _get_bootstrap_servers(client_config: Mapping[str, Any]) -> str:
    return str(client_config.get("bootstrap.servers"))


class LedgerProducer:
    """One transactional id. Making it fences whoever had that id, and ends what they left open.

    topic: one that is there, to be asked for. timeout: s; Kafka gives up a transaction that is
    open for longer. limit: bytes of a batch, that the topics which are written take. Raises
    Interrupted, here and below: nothing was written, or it is unknown whether it was; this one is
    of no more use. Raises WriteRefused where another try would not help, and PipelineError for
    settings that Kafka's client refuses.
    """

    def __init__(
        self,
        transactional_id: str,
        client_config: Mapping[str, Any],
        topic: str,
        timeout_s: float,
        max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self.transactional_id = transactional_id
        self._timeout_s = timeout_s
        try:
            self._producer = Producer(
                {**client_config, **_build_config(transactional_id, timeout_s, max_bytes)}
            )
        except KafkaException as error:  # of its settings, which another try would not change
            raise PipelineError(f"Kafka's client does not take its settings: {error}") from None
        try:
            self._await_broker(topic)
            self._producer.init_transactions(timeout_s + 30)
        except KafkaException as error:
            self._raise_interrupted(error)

    def _await_broker(self, topic: str) -> None:
        """librdkafka lets go of the broker it began with as soon as it knows its number; who looks
        for the coordinator just then asks again after 0.5 s (2.16). So the one that is known is
        waited for: a producer is then ready within 0.03 s."""
        with suppress(KafkaException):  # what does not answer now is waited for by what follows
            for _ in range(10):
                if self._producer.list_topics(topic, timeout=10).orig_broker_id >= 0:
                    return
                time.sleep(0.005)

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            self._raise_interrupted(error)

    def write_rows(
        self,
        topics: Sequence[str],
        keys: Sequence[Any],
        values: Sequence[Any],
        headers: Sequence[Any],
    ) -> None:
        """Columns of records. Done in C but for this loop: 0.4 to 0.7 million rows a second."""
        produce = self._producer.produce
        try:
            for topic, key, value, tags in zip(topics, keys, values, headers, strict=True):
                try:
                    produce(topic, value, key, headers=tags)
                except BufferError:
                    self._produce_when_free(topic, value, key, tags)
            self._producer.poll(0)
        except KafkaException as error:
            self._raise_interrupted(error)

    def write_to_topic(self, topic: str, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """The same without headers, to one topic."""
        produce = self._producer.produce
        try:
            for key, value in zip(keys, values, strict=True):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._produce_when_free(topic, value, key, None)
            self._producer.poll(0)
        except KafkaException as error:
            self._raise_interrupted(error)

    def write_entry(
        self, topic: str, partition: int, key: str, value: Mapping[str, Any] | None
    ) -> None:
        """A record of the ledger. value: None removes the key."""
        text = None if value is None else json.dumps(value, separators=(",", ":"))
        try:
            self._producer.produce(topic, text, key, partition=partition)
        except (KafkaException, BufferError) as error:
            self._raise_interrupted(error)

    def commit(self) -> None:
        try:
            self._producer.commit_transaction(self._timeout_s + 10)
        except KafkaException as error:
            self._raise_interrupted(error)

    def abort(self) -> None:
        """At once; what fails here is ended by Kafka's timeout, or by the next of this id."""
        drop_producer(self.transactional_id)
        try:
            self._producer.abort_transaction(5)
        except KafkaException:
            self._producer.purge()

    def _produce_when_free(self, topic: str, value: Any, key: Any, headers: Any) -> None:
        """The buffer is full: what is sent makes room. librdkafka gives up what it cannot send."""
        while True:
            self._producer.poll(0.05)
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                continue

    def _raise_interrupted(self, error: object) -> NoReturn:
        drop_producer(self.transactional_id)
        self._producer.purge()
        if isinstance(error, KafkaException):
            refused = build_kafka_error(f"rows of {self.transactional_id} are refused", error)
            if not isinstance(refused, PipelineUnavailable):
                raise WriteRefused(str(refused)) from None
        raise TransactionInterrupted(self.transactional_id, error) from None


def _build_config(transactional_id: str, timeout_s: float, max_bytes: int) -> dict[str, Any]:
    """A frozen broker is noticed after 6 s, or with the transaction; a record has as long as that.
    librdkafka refuses a socket that waits longer than its transaction."""
    whole = int(timeout_s * 1000)
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": whole,
        "message.timeout.ms": whole,
        "socket.timeout.ms": min(6000, whole),
        "request.timeout.ms": min(5000, whole),
        "topic.metadata.refresh.interval.ms": 5000,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 1000,
        "partitioner": "murmur2_random",  # as Spark's sink, and every Java producer
        "compression.type": "lz4",
        "message.max.bytes": max(1000, max_bytes),
        "batch.size": min(MAX_BATCH_BYTES, max(1, max_bytes - BATCH_OVERHEAD_BYTES)),
        "linger.ms": 20,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 131_072,
    }
