"""Lines become records: the producer behind `gateway produce`.

Fast, because it fills aiokafka's batches itself: one future a batch instead of one a record.
Safe, because the producer is idempotent with acks=all, and every batch's answer is counted.
A chunk of input is sent as soon as it is read, so `tail -f | gateway produce` has no delay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from gateway.errors import AccessDenied, BrokerUnavailable, GatewayError, KafkaError, UnknownTopic

from .line_format import LineFormat, ValueDigest, iter_line_chunks
from .partitioner import compute_partition

MAX_BATCH_BYTES = 1 << 19  # bytes before compression; brokers take batches up to 1 MiB by default
TOPIC_TIMEOUT_S = 10.0  # seconds; a broker that creates topics by itself needs one or two


@dataclass(slots=True)
class ProduceProgress:
    """What has become of the input so far.

    read:         bytes of input.            lines: of them.
    acknowledged: records Kafka has acknowledged.
    value_bytes:  bytes of their values, as handed over.
    failure:      the first thing that went wrong; nothing was read after it.
    interrupted:  by ^C; what had been read by then was still sent.
    """

    bytes_read: int = 0
    lines: int = 0
    acknowledged_records: int = 0
    value_bytes: int = 0
    seconds: float = 0.0
    digest: ValueDigest = field(default_factory=ValueDigest)
    failure: GatewayError | None = None
    interrupted: bool = False


def produce_lines(topic: str, source: BinaryIO, **options: Any) -> ProduceProgress:
    """`produce`, for a caller without a loop. ^C ends the input, not the sending."""
    return asyncio.run(produce(topic, source, **options))


async def produce(
    topic: str,
    source: BinaryIO,
    *,
    servers: Sequence[str],
    lines: LineFormat | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
    partition: int | None = None,
    credentials: Mapping[str, Any] | None = None,
    progress: Callable[[ProduceProgress], None] | None = None,
) -> ProduceProgress:
    """Send every line of `source` to `topic`, in order within a partition.

    lines:       how a line becomes key and value; by default it is the value.
    partition:   for all records; else by the key as Java's clients do it, or in turns.
    credentials: aiokafka's security_protocol, ssl_context and sasl_* arguments.
    progress:    called after each chunk.
    Raises BrokerUnavailable, UnknownTopic, AccessDenied or KafkaError before the first record;
    later failures are in the answer, beside what was acknowledged.
    """
    done = ProduceProgress()
    started = time.monotonic()
    async with _open_producer(topic, servers, credentials or {}) as producer:
        count = await _count_partitions(producer, topic, partition)
        batches = _OpenBatches(producer, topic, count, partition, headers, done)
        try:
            await _send_lines(source, lines or LineFormat(), batches, progress)
        except asyncio.CancelledError:
            done.interrupted = True
        except kafka_errors.KafkaError as exc:
            done.failure = done.failure or _translate_error(exc, topic)
        except GatewayError as exc:
            done.failure = done.failure or exc
        await batches.wait_for_acknowledgements()
    done.seconds = time.monotonic() - started
    return done


@asynccontextmanager
async def _open_producer(
    topic: str, servers: Sequence[str], credentials: Mapping[str, Any]
) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=list(servers),
        client_id="gateway-produce",
        enable_idempotence=True,
        compression_type="lz4",
        max_batch_size=MAX_BATCH_BYTES,
        request_timeout_ms=30_000,
        **credentials,
    )
    try:
        await producer.start()
    except (kafka_errors.KafkaConnectionError, OSError) as exc:
        await producer.stop()
        raise BrokerUnavailable(
            f"no broker of {', '.join(servers)} let us in; check the address, the credentials, and"
            " whether the listener wants TLS or SASL"
        ) from exc
    except kafka_errors.KafkaError as exc:
        await producer.stop()
        raise _translate_error(exc, topic) from exc
    try:
        yield producer
    finally:
        await producer.stop()


async def _count_partitions(producer: AIOKafkaProducer, topic: str, partition: int | None) -> int:
    try:
        known = await asyncio.wait_for(producer.partitions_for(topic), TOPIC_TIMEOUT_S)
    except (TimeoutError, kafka_errors.UnknownTopicOrPartitionError) as exc:
        raise UnknownTopic(
            f"no broker knows topic '{topic}'; create it first, or check its name", topic=topic
        ) from exc
    except kafka_errors.KafkaError as exc:
        raise _translate_error(exc, topic) from exc
    if partition is not None and partition not in known:
        raise KafkaError(
            f"topic '{topic}' has no partition {partition}; it has 0 to {len(known) - 1}"
        )
    return len(known)


async def _send_lines(
    source: BinaryIO,
    lines: LineFormat,
    batches: _OpenBatches,
    progress: Callable[[ProduceProgress], None] | None,
) -> None:
    done = batches.result
    async with aclosing(iter_line_chunks(source)) as coming:
        async for chunk in coming:
            for line in chunk:
                done.lines += 1
                done.bytes_read += len(line) + 1
                full = batches.add_record(*lines.parse_line(line, done.lines))
                if full is not None:
                    await batches.send_batches([full])
            await batches.flush()
            if progress is not None:
                progress(done)
            if done.failure is not None:
                return


class _OpenBatches:
    """The batch being filled of each partition, and those on their way."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        partition_count: int,
        partition: int | None,
        headers: Sequence[tuple[str, bytes]],
        result: ProduceProgress,
    ) -> None:
        self.result = result
        self._producer = producer
        self._topic = topic
        self._partition_count = partition_count
        self._fixed_partition = partition
        self._rotation = 0
        self._headers = list(headers)
        self._open_batches: dict[int, Any] = {}
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._send_future: asyncio.Future[Any] = asyncio.gather()

    def add_record(self, key: bytes | None, value: bytes | None) -> tuple[int, Any] | None:
        """Put a record into its batch. The partition and batch to send first, if one is full."""
        partition = self._choose_partition(key)
        full = None
        batch = self._open_batches.get(partition)
        if batch is None or not self._append_record(batch, key, value):
            full = batch and (partition, batch)
            batch = self._open_batches[partition] = self._producer.create_batch()
            self._append_record(batch, key, value)  # the first of a batch fits, whatever its size
            self._rotation += full is not None
        self.result.digest.add(value)
        self.result.value_bytes += len(value or b"")
        return full

    def _append_record(self, batch: Any, key: bytes | None, value: bytes | None) -> bool:
        added = batch.append(timestamp=None, key=key, value=value, headers=self._headers)
        return added is not None

    def _choose_partition(self, key: bytes | None) -> int:
        if self._fixed_partition is not None:
            return self._fixed_partition
        if key is None:
            return self._rotation % self._partition_count
        return compute_partition(key, self._partition_count)

    async def flush(self) -> None:
        """Send what is open. At once for all: sent one by one, each would be a request."""
        ready, self._open_batches = list(self._open_batches.items()), {}
        self._rotation += 1
        await self.send_batches(ready)

    async def send_batches(self, batches: Sequence[tuple[int, Any]]) -> None:
        """Hand batches over; waits while their partitions have one that is not on its way."""
        self._send_future = asyncio.gather(*(self._send_batch(*one) for one in batches))
        await asyncio.shield(self._send_future)  # what was read is sent, also when ^C comes now

    async def _send_batch(self, partition: int, batch: Any) -> None:
        records = batch.record_count()
        future = await self._producer.send_batch(batch, self._topic, partition=partition)
        self._in_flight.add(future)
        future.add_done_callback(lambda ended: self._on_acknowledged(ended, records))

    def _on_acknowledged(self, future: asyncio.Future[Any], records: int) -> None:
        self._in_flight.discard(future)
        failure = None if future.cancelled() else future.exception()
        if failure is None:
            self.result.acknowledged_records += records
        elif self.result.failure is None:
            self.result.failure = _translate_error(failure, self._topic)

    async def wait_for_acknowledgements(self) -> None:
        """Send what was read unless Kafka has refused some, and wait for every answer."""
        try:
            await self._send_future
            if not isinstance(self.result.failure, KafkaError):
                await self.flush()
        except kafka_errors.KafkaError as exc:
            self.result.failure = _translate_error(exc, self._topic)
        while self._in_flight:
            await asyncio.wait(self._in_flight)


def _translate_error(failure: BaseException, topic: str) -> KafkaError:
    """aiokafka's error in our tree, with what to do."""
    match failure:
        case (
            kafka_errors.TopicAuthorizationFailedError()
            | kafka_errors.ClusterAuthorizationFailedError()  # no topic at all (KIP-679)
        ):
            return AccessDenied(f"topic '{topic}' may not be written to; grant WRITE", topic=topic)
        case kafka_errors.MessageSizeTooLargeError() | kafka_errors.RecordTooLargeError():
            return KafkaError(
                f"a record is larger than topic '{topic}' takes; raise its max.message.bytes"
            )
        case kafka_errors.InvalidRecordError():
            return KafkaError(f"topic '{topic}' takes no record without a key; give --key")
        case _:
            return KafkaError(f"topic '{topic}': {failure or type(failure).__name__}")
