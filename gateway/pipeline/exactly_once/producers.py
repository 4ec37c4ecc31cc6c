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
from gateway.pipeline.run.failures import of_kafka
from gateway.pipeline.topics import MAX_MESSAGE_BYTES

from .letters import FRAME

MARK = "[transaction]"  # what the driver knows an error by that is worth another try


LARGEST_BATCH = 1_000_000  # bytes


class WriteRefused(PipelineError):
    """Kafka refuses what is written, now and at every other try; nothing of it was committed."""


class Interrupted(PipelineUnavailable):
    """A transaction did not come to its end; who runs it again finds out if it was committed."""

    def __init__(self, identity: str, error: object) -> None:
        super().__init__(f"{MARK} {identity}: {error}")


_kept: dict[tuple[Any, ...], Transactional] = {}
_process: tuple[int, str] = (0, "")


def process() -> str:
    """This process's name; another one after a fork."""
    global _process
    if _process[0] != os.getpid():
        _process = (os.getpid(), uuid.uuid4().hex)
        _kept.clear()
    return _process[1]


def kept(identity: str, client: Mapping[str, Any], generation: int) -> Transactional | None:
    process()
    return _kept.get((identity, generation, _bootstrap(client)))


def keep(producer: Transactional, client: Mapping[str, Any], generation: int) -> None:
    drop(producer.identity)
    process()
    _kept[(producer.identity, generation, _bootstrap(client))] = producer


def drop(identity: str) -> None:
    for key in [key for key in _kept if key[0] == identity]:
        del _kept[key]


def _bootstrap(client: Mapping[str, Any]) -> str:
    return str(client.get("bootstrap.servers"))


class Transactional:
    """One transactional id. Making it fences whoever had that id, and ends what they left open.

    topic: one that is there, to be asked for. timeout: s; Kafka gives up a transaction that is
    open for longer. limit: bytes of a batch, that the topics which are written take. Raises
    Interrupted, here and below: nothing was written, or it is unknown whether it was; this one is
    of no more use. Raises WriteRefused where another try would not help, and PipelineError for
    settings that Kafka's client refuses.
    """

    def __init__(
        self,
        identity: str,
        client: Mapping[str, Any],
        topic: str,
        timeout: float,
        limit: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.identity = identity
        self._timeout = timeout
        try:
            self._producer = Producer({**client, **_options(identity, timeout, limit)})
        except KafkaException as error:  # of its settings, which another try would not change
            raise PipelineError(f"Kafka's client does not take its settings: {error}") from None
        try:
            self._connect(topic)
            self._producer.init_transactions(timeout + 30)
        except KafkaException as error:
            self._interrupted(error)

    def _connect(self, topic: str) -> None:
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
            self._interrupted(error)

    def rows(
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
                    self._waited(topic, value, key, tags)
            self._producer.poll(0)
        except KafkaException as error:
            self._interrupted(error)

    def plain(self, topic: str, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """The same without headers, to one topic."""
        produce = self._producer.produce
        try:
            for key, value in zip(keys, values, strict=True):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._waited(topic, value, key, None)
            self._producer.poll(0)
        except KafkaException as error:
            self._interrupted(error)

    def entry(self, topic: str, partition: int, key: str, value: Mapping[str, Any] | None) -> None:
        """A record of the ledger. value: None removes the key."""
        text = None if value is None else json.dumps(value, separators=(",", ":"))
        try:
            self._producer.produce(topic, text, key, partition=partition)
        except (KafkaException, BufferError) as error:
            self._interrupted(error)

    def commit(self) -> None:
        try:
            self._producer.commit_transaction(self._timeout + 10)
        except KafkaException as error:
            self._interrupted(error)

    def abort(self) -> None:
        """At once; what fails here is ended by Kafka's timeout, or by the next of this id."""
        drop(self.identity)
        try:
            self._producer.abort_transaction(5)
        except KafkaException:
            self._producer.purge()

    def _waited(self, topic: str, value: Any, key: Any, headers: Any) -> None:
        """The buffer is full: what is sent makes room. librdkafka gives up what it cannot send."""
        while True:
            self._producer.poll(0.05)
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                continue

    def _interrupted(self, error: object) -> NoReturn:
        drop(self.identity)
        self._producer.purge()
        if isinstance(error, KafkaException):
            refused = of_kafka(f"rows of {self.identity} are refused", error)
            if not isinstance(refused, PipelineUnavailable):
                raise WriteRefused(str(refused)) from None
        raise Interrupted(self.identity, error) from None


def _options(identity: str, timeout: float, limit: int) -> dict[str, Any]:
    """A frozen broker is noticed after 6 s, or with the transaction; a record has as long as that.
    librdkafka refuses a socket that waits longer than its transaction."""
    whole = int(timeout * 1000)
    return {
        "transactional.id": identity,
        "transaction.timeout.ms": whole,
        "message.timeout.ms": whole,
        "socket.timeout.ms": min(6000, whole),
        "request.timeout.ms": min(5000, whole),
        "topic.metadata.refresh.interval.ms": 5000,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 1000,
        "partitioner": "murmur2_random",  # as Spark's sink, and every Java producer
        "compression.type": "lz4",
        "message.max.bytes": max(1000, limit),
        "batch.size": min(LARGEST_BATCH, max(1, limit - FRAME)),
        "linger.ms": 20,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 131_072,
    }
