"""Records to Kafka: acks of all, idempotent, one batch a partition under way.

By requests of our own, as records are fetched here, because of what aiokafka's producer does
with a fault: a record refused as too large leaves a hole in its sequence, and that partition
refuses everything after it; a batch that cannot be sent is never given up, nor does `stop`
return then; a topic deleted meanwhile is asked for, and so created, again. What becomes of a
batch is decided in `core.outbox`; here it is carried: at most one request a broker at a time,
with a batch of every partition that it leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import (
    RECOVERY_RULES,
    Backoff,
    Cause,
    RecoveryAction,
    cause_from_code,
)
from gateway.core.produce.outbox import Outbox, WriteOutcome, WriteStatus
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import BrokerConnection, ConnectionRole
from gateway.kafka.client.offsets import LEADER_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR, code_from_error
from gateway.kafka.protocol.produce_messages import (
    AppendResult,
    InitProducerIdRequest,
    ProduceRequest,
)
from gateway.telemetry.counts import ProduceCounts
from gateway.telemetry.log_context import create_detached_task

from .pending_records import (
    CODEC_IDS,
    DENIED_CODES,
    RECORD_OVERHEAD_BYTES,
    Compression,
    Headers,
    OffsetResults,
    PendingBatch,
    PendingRecord,
    ProducerRecord,
    build_in_doubt_error,
    build_refused_error,
    encode_batch,
    estimate_size,
)

log = logging.getLogger(__name__)

MAX_PENDING_BYTES = 32 << 20  # bytes that may wait for Kafka, of all partitions
CLOSE_TIMEOUT_S = 5.0  # seconds for what was taken on when the gateway closes
REPLICATION_TIMEOUT_SHARE = 0.8  # of the request timeout: the broker gives up first, and says so
# Another broker may lead it by now.
REFRESH_ACTIONS = frozenset(
    {RecoveryAction.REFRESH, RecoveryAction.RECONNECT, RecoveryAction.WATCH_METADATA}
)


@dataclass(slots=True, eq=False)
class _PartitionQueue:
    tp: TopicPartition
    backoff: Backoff
    outbox: Outbox[PendingRecord] = field(default_factory=Outbox)
    is_busy: bool = False
    retry_at: float = 0.0
    failure: str = "its broker is busy"


class Producer:
    """Writes to any topic of a cluster. Begins with the first record; `close` it in the loop.

    The topics must be watched (`Cluster.metadata`): a leader is not looked for otherwise.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        compression: Compression = "none",
    ) -> None:
        self.writes = ProduceCounts()
        self._cluster = cluster
        self._max_pending_bytes = max_pending_bytes
        self._codec = CODEC_IDS[compression]
        self._pending_bytes = 0
        self._partitions: dict[TopicPartition, _PartitionQueue] = {}
        self._busy_nodes: set[int] = set()  # with a request under way
        self._wake = asyncio.Event()
        self._progress_made = asyncio.Event()  # some were told what became of them
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_task: asyncio.Task[None] | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._closed = False

    def send(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        timeout_s: float,
    ) -> asyncio.Future[int]:
        """Write a record behind those that were put before it. Gives its offset, -1 if Kafka
        has it and does not say where.

        within: seconds. What was not sent by then is not written: BrokerUnavailable. What was
                sent stays until Kafka has said what became of it, for at most two minutes.
        The future raises also AccessDenied, and PartitionFailed with Kafka's code where the record
        is refused; BrokerUnavailable with `timeout` is a record that may have been written.
        Raises BrokerUnavailable where too much is waiting already.
        """
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._enqueue(
            [ProducerRecord(tp, key, value, headers)],
            timeout_s,
            lambda told: _resolve_future(told, written),
        )
        return written

    def send_many(
        self, records: Sequence[ProducerRecord], *, timeout_s: float
    ) -> asyncio.Future[OffsetResults]:
        """As `put`, of several at once, or none of them: the future gives what became of each, in
        their order, and raises nothing.

        100 of 1 KB with three headers took 0.5 ms of CPU, by `put` 1.7 (the embedded broker's
        share in both).
        """
        every: asyncio.Future[OffsetResults] = asyncio.get_running_loop().create_future()

        def told(results: OffsetResults) -> None:
            if not every.done():
                every.set_result(results)

        if records:
            self._enqueue(records, timeout_s, told)
        else:
            told([])
        return every

    def _enqueue(
        self,
        records: Sequence[ProducerRecord],
        timeout_s: float,
        on_done: Callable[[OffsetResults], None],
    ) -> None:
        sizes = _estimate_sizes(records)
        total = sum(sizes)
        if self._closed or (
            self._pending_bytes and self._pending_bytes + total > self._max_pending_bytes
        ):
            for item in records:
                self.writes.records[item.tp.topic, "unsent"] += 1
            why = "the gateway is closing" if self._closed else "too much waits to be written"
            raise BrokerUnavailable(f"{records[0].tp}: {why}; try again", retry_after=1.0)
        parcel = PendingBatch(len(records), time.time(), on_done)
        now = int(parcel.began_at * 1000)
        for place, (item, size) in enumerate(zip(records, sizes, strict=True)):
            tp, key, value, headers, at = item
            letter = PendingRecord(
                key, value, headers, now if at is None else at, size, parcel, place
            )
            parcel.records.setdefault(tp, []).append(letter)
            self._get_queue(tp).outbox.put(letter, size)
        parcel.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire_batch, parcel)
        self._pending_bytes += total
        self._wake.set()
        if self._run_task is None:
            self._run_task = create_detached_task(self._run())

    @property
    def pending_bytes(self) -> int:
        """Bytes that Kafka has yet to answer for."""
        return self._pending_bytes

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let what was taken on be written, for some seconds; the rest fails."""
        self._closed = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._collect_pending() and asyncio.get_running_loop().time() < deadline:
            self._progress_made.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._progress_made.wait()
        tasks = [*self._tasks, *([self._run_task] if self._run_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for letter in self._collect_pending():
            self._finish_record(
                letter, BrokerUnavailable("the gateway closed before Kafka answered")
            )

    def _collect_pending(self) -> list[PendingRecord]:
        return [letter for each in self._partitions.values() for letter in each.outbox.items()]

    def _get_queue(self, tp: TopicPartition) -> _PartitionQueue:
        found = self._partitions.get(tp)
        if found is None:
            floor, ceiling = self._cluster.settings.reconnect
            backoff = Backoff(max_delay=ceiling, random=random.random, min_delay=floor)
            found = self._partitions[tp] = _PartitionQueue(tp, backoff)
        return found

    # who is asked when

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = asyncio.get_running_loop().time()
            for node, due in self._collect_due(now).items():
                self._busy_nodes.add(node)
                self._start_request(node, due)
            try:
                async with asyncio.timeout_at(self._next_retry_at(now)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _collect_due(self, now: float) -> dict[int, list[_PartitionQueue]]:
        """Partitions with something to send, by their leader; of those brokers that are free."""
        nodes: dict[int, list[_PartitionQueue]] = {}
        for each in self._partitions.values():
            if each.outbox and not each.is_busy and each.retry_at <= now:
                leader = self._cluster.leader_for_partition(each.tp)
                if leader is None:
                    self._schedule_retry(each, Cause.NO_LEADER, "it has no leader", now)
                    self._apply_outcome(each, each.outbox.on_not_sent(now), LEADER_NOT_AVAILABLE)
                elif leader[0] not in self._busy_nodes:
                    nodes.setdefault(leader[0], []).append(each)
        return nodes

    def _next_retry_at(self, now: float) -> float | None:
        """When a partition is to be tried again; those that wait for a broker are woken."""
        times = [
            each.retry_at
            for each in self._partitions.values()
            if each.outbox and not each.is_busy and each.retry_at > now
        ]
        return min(times, default=None)

    def _start_request(self, node: int, due: list[_PartitionQueue]) -> None:
        for each in due:
            each.is_busy = True
        self._create_task(self._send_request(node, due))

    def _create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # one request

    async def _send_request(self, node: int, due: list[_PartitionQueue]) -> None:
        """A batch of each partition to their leader; what comes of it is told."""
        try:
            link = await self._cluster.connections.connect(node, ConnectionRole.PRODUCE)
            for each in due:
                if each.outbox.producer is None:
                    await self._init_producer_id(each, link)
            await self._send_batches(
                link, [each for each in due if each.outbox.producer is not None]
            )
        except KafkaError as exc:  # nothing was sent
            now = asyncio.get_running_loop().time()
            for each in due:
                self._schedule_retry(each, cause_from_code(code_from_error(exc)), str(exc), now)
                self._apply_outcome(each, each.outbox.on_not_sent(now), code_from_error(exc))
        except Exception:
            log.exception("records cannot be written to broker %d; it is tried again", node)
            now = asyncio.get_running_loop().time()
            for each in due:
                self._schedule_retry(
                    each, Cause.UNEXPECTED, "the gateway failed; its log says why", now
                )
                self._apply_outcome(each, each.outbox.on_no_response(now), UNKNOWN_SERVER_ERROR)
        finally:
            self._busy_nodes.discard(node)
            for each in due:
                each.is_busy = False
            self._wake.set()

    async def _init_producer_id(self, queue: _PartitionQueue, connection: BrokerConnection) -> None:
        answer = await self._cluster.connections.send_on(connection, InitProducerIdRequest())
        if answer.error in DENIED_CODES:
            self._apply_outcome(queue, queue.outbox.reject_waiting(), answer.error)
        elif answer.error:
            now = asyncio.get_running_loop().time()
            why = f"no producer id (code {answer.error})"
            self._schedule_retry(queue, cause_from_code(answer.error), why, now)
        else:
            queue.outbox.set_producer(answer.producer)

    async def _send_batches(
        self, connection: BrokerConnection, due: Sequence[_PartitionQueue]
    ) -> None:
        cut = [(each, letters) for each in due if (letters := each.outbox.next_batch())]
        if not cut:
            return
        timeout = self._cluster.settings.request_timeout
        request = ProduceRequest(
            {each.tp: encode_batch(each.outbox, letters, self._codec) for each, letters in cut},
            timeout_ms=int(timeout * REPLICATION_TIMEOUT_SHARE * 1000),
        )
        try:
            answer = await self._cluster.connections.send_on(connection, request)
        except KafkaError as exc:
            now = asyncio.get_running_loop().time()
            for each, _ in cut:
                self._schedule_retry(each, cause_from_code(code_from_error(exc)), str(exc), now)
                self._apply_outcome(each, each.outbox.on_no_response(now), code_from_error(exc))
            return
        for each, _ in cut:
            self._on_partition_response(
                each, answer.partitions.get(each.tp, AppendResult(UNKNOWN_SERVER_ERROR, -1))
            )

    def _on_partition_response(self, queue: _PartitionQueue, appended: AppendResult) -> None:
        now = asyncio.get_running_loop().time()
        outcome = queue.outbox.on_response(appended.error, now)
        if outcome.status is WriteStatus.PENDING:
            why = f"Kafka answers code {appended.error}"
            self._schedule_retry(queue, cause_from_code(appended.error), why, now)
        self._apply_outcome(queue, outcome, appended.error, appended.offset)

    def _schedule_retry(self, queue: _PartitionQueue, cause: Cause, why: str, now: float) -> None:
        queue.failure = why
        queue.retry_at = now + queue.backoff.next_delay(cause)
        idle = self._refresh_task is None or self._refresh_task.done()
        if idle and RECOVERY_RULES[cause].action in REFRESH_ACTIONS:
            reason = f"{queue.tp} cannot be written to: {why}"
            self._refresh_task = self._create_task(self._refresh_metadata(reason))

    async def _refresh_metadata(self, reason: str) -> None:
        try:
            await self._cluster.metadata.refresh(reason)
        except KafkaError:
            return  # the partition's own delay runs
        self._wake.set()

    # what has become of it

    def _apply_outcome(
        self,
        queue: _PartitionQueue,
        outcome: WriteOutcome[PendingRecord],
        code: int,
        offset: int = -1,
    ) -> None:
        self._progress_made.set()
        match outcome.status:
            case WriteStatus.WRITTEN:
                queue.backoff.reset()
                self._count_written(queue.tp.topic, outcome.items)
                for index, letter in enumerate(outcome.items):
                    self._finish_record(letter, offset + index if offset >= 0 else -1)
            case WriteStatus.REJECTED:
                self.writes.records[queue.tp.topic, "refused"] += len(outcome.items)
                for letter in outcome.items:
                    self._finish_record(letter, build_refused_error(queue.tp, code))
            case WriteStatus.UNKNOWN:
                self.writes.records[queue.tp.topic, "doubtful"] += len(outcome.items)
                for letter in outcome.items:
                    self._finish_record(letter, build_in_doubt_error(queue.tp, queue.failure))

    def _count_written(self, topic: str, records: Sequence[PendingRecord]) -> None:
        now, waited = time.time(), Counter([letter.batch.began_at for letter in records])
        for began, count in waited.items():
            self.writes.count_written(topic, 0, max(0.0, now - began), count)
        self.writes.bytes[topic] += sum([letter.size for letter in records])

    def _expire_batch(self, batch: PendingBatch) -> None:
        for tp, letters in list(batch.records.items()):
            each = self._partitions[tp]
            for letter in each.outbox.withdraw(letters):
                self.writes.records[tp.topic, "unsent"] += 1
                why = f"{tp} was not written to: {each.failure}; try again"
                self._finish_record(letter, BrokerUnavailable(why, retry_after=1.0))

    def _finish_record(self, record: PendingRecord, result: int | KafkaError) -> None:
        self._pending_bytes -= record.size
        record.batch.set_result(record.index, result)


def _estimate_sizes(records: Sequence[ProducerRecord]) -> list[int]:
    """About, of each; records that share their headers have them measured once. Raises as
    `size_of`."""
    sizes: list[int] = []
    last: Headers | None = None
    beside = 0
    for _, key, value, headers, _ in records:
        if headers is not last:
            last, beside = headers, estimate_size(None, None, headers)
        if type(key) is bytes and type(value) is bytes:
            sizes.append(beside + len(key) + len(value))
        else:
            sizes.append(beside + estimate_size(key, value, ()) - RECORD_OVERHEAD_BYTES)
    return sizes


def _resolve_future(results: OffsetResults, future: asyncio.Future[int]) -> None:
    """What became of the only one of a parcel, to who waits for it."""
    if future.done():
        return
    if isinstance(results[0], int):
        future.set_result(results[0])
    else:
        future.set_exception(results[0])
        future.exception()  # told to who waits; where nobody does, no warning either
