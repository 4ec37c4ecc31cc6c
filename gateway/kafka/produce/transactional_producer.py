"""Records and offsets that are there as a whole, or not at all, by one who has the id alone.

    writer = Transactions(cluster, "replay-4711")
    await writer.start()                       # fences whoever had the id, and ends what it left
    await writer.commit([Write(...)], offsets={tp: 7}, group="billing.dlq")

One call is one transaction. After any failure what was asked may or may not have been done: `start`
settles it (Kafka finishes a commit that was begun, and undoes all else), and whoever reads
committed records afterwards sees which. By requests of our own over the shared connections: a
transactional producer of a library has connections, and a refresh of metadata, for each id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch
from gateway.errors import AccessDenied, BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.coordinators import GROUP_AUTHORIZATION_FAILED as GROUP_DENIED
from gateway.kafka.protocol.group_messages import FindCoordinatorRequest
from gateway.kafka.protocol.produce_messages import (
    AppendResult,
    InitProducerIdRequest,
    ProduceRequest,
)
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.kafka.protocol.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionalIdentity,
    TransactionResponse,
    TxnOffsetCommitRequest,
)

from .pending_records import Headers, estimate_size

R = TypeVar("R")

MAX_BATCH_BYTES = 512 << 10  # bytes; a larger record is a batch alone
RETRY_TIMEOUT_S = 30.0  # seconds for Kafka to get over what passes
RETRY_DELAY_S = 0.02  # seconds; the markers of the last transaction are being written
TRANSACTION_KEY_TYPE = 1  # the type of a coordinator's key

INVALID_TXN_STATE = 48
FENCED_CODES = frozenset(
    {47, INVALID_TXN_STATE, 49, 90}
)  # epoch, state, id mapping, PRODUCER_FENCED
# CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION of a new topic
RETRIABLE_CODES = frozenset({51, 14, 3})
COORDINATOR_MOVED_CODES = frozenset({15, 16})  # COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
DENIED = frozenset({29, 31, GROUP_DENIED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
DUPLICATE_SEQUENCE_NUMBER = 46  # it has the batch, and does not say where
LEADER_CHANGED_CODES = frozenset({5, 6})
OPERATION_NOT_ATTEMPTED = 55  # OPERATION_NOT_ATTEMPTED


class TransactionRecord(NamedTuple):
    """A record to be. timestamp in milliseconds."""

    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


WrittenOffsets: TypeAlias = dict[TopicPartition, list[int]]
"""Offsets, in the order in which they were asked for; -1 where Kafka does not say."""


class TransactionalProducer:
    """See the module. One `commit` at a time.

    timeout: seconds after which Kafka undoes what nobody ends.
    """

    def __init__(self, cluster: Cluster, id: str, *, timeout: float = 30.0) -> None:
        self.id = id
        self._cluster = cluster
        self._timeout = timeout
        self._coordinator_node: int | None = None
        self._producer: ProducerIdAndEpoch | None = None
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def is_started(self) -> bool:
        """False again after a failure that leaves open what became of the transaction."""
        return self._producer is not None

    async def start(self) -> None:
        """Raises BrokerUnavailable, AccessDenied."""
        self._producer = None
        self._sequences.clear()
        request = InitProducerIdRequest(self.id, int(self._timeout * 1000))
        answer = await self._send_to_coordinator(request, lambda answer: answer.error)
        self._producer = answer.producer

    async def commit(
        self,
        records: Sequence[TransactionRecord] = (),
        *,
        group: str = "",
        offsets: Mapping[TopicPartition, int] | None = None,
        build_followups: Callable[[WrittenOffsets], Sequence[TransactionRecord]] | None = None,
    ) -> WrittenOffsets:
        """The offsets of what was written, in the order of `writes`, and of `then` behind them;
        topics must be watched.

        then: what is to be written besides, once it is known where the others are.
        Raises Fenced: somebody else has the id; PartitionFailed with Kafka's code where a record is
        refused, AccessDenied, BrokerUnavailable. `start` again unless it is still `started`.
        """
        if self._producer is None:
            raise KafkaError(f"the transactional id {self.id} is not started")
        try:
            placed = await self._write_records(self._producer, records, group, offsets or {})
            if build_followups is not None:
                besides = await self._write_records(self._producer, build_followups(placed), "", {})
                for tp, more in besides.items():
                    placed.setdefault(tp, []).extend(more)
            request = EndTxnRequest(TransactionalIdentity(self.id, self._producer), True)
            await self._send_to_coordinator(request, lambda answer: answer.error)
        except BaseException as error:
            producer, self._producer = self._producer, None
            if isinstance(error, PartitionFailed | AccessDenied) and await self._abort(producer):
                self._producer = producer
            raise
        return placed

    async def _abort(self, producer: ProducerIdAndEpoch) -> bool:
        """Return whether it is undone, and the id still ours. Raises Fenced where it is not.

        At once, so that readers of committed records need not wait for the next start.
        """

        def error_of(answer: TransactionResponse) -> int:
            # Kafka looks at the state after id and epoch: nothing was open.
            return 0 if answer.error == INVALID_TXN_STATE else answer.error

        try:
            await self._send_to_coordinator(
                EndTxnRequest(TransactionalIdentity(self.id, producer), False), error_of
            )
        except Fenced:
            raise
        except KafkaError:
            return False
        return True

    async def _write_records(
        self,
        producer: ProducerIdAndEpoch,
        records: Sequence[TransactionRecord],
        group: str,
        offsets: Mapping[TopicPartition, int],
    ) -> WrittenOffsets:
        writer = TransactionalIdentity(self.id, producer)
        by_tp: dict[TopicPartition, list[TransactionRecord]] = {}
        for write in records:
            by_tp.setdefault(write.tp, []).append(write)
        if by_tp:
            await self._send_to_coordinator(
                AddPartitionsToTxnRequest(writer, by_tp), lambda a: _find_reason(a.errors)
            )
        if offsets:
            await self._send_to_coordinator(
                AddOffsetsToTxnRequest(writer, group), lambda answer: answer.error
            )
            await self._commit_offsets(TxnOffsetCommitRequest(writer, group, offsets))
        placed = {}
        for tp, some in by_tp.items():
            placed[tp] = await self._write_partition(producer, tp, some)
        return placed

    async def _commit_offsets(self, request: TxnOffsetCommitRequest) -> None:
        coordinators = self._cluster.coordinators

        async def ask() -> int:
            error = _find_reason((await coordinators.send(request.group, request)).errors)
            if error in COORDINATOR_MOVED_CODES:
                coordinators.forget(request.group)
            return error

        await self._retry_until_done(ask, request.NAME)

    async def _write_partition(
        self, producer: ProducerIdAndEpoch, tp: TopicPartition, records: Iterable[TransactionRecord]
    ) -> list[int]:
        placed: list[int] = []
        for some in _iter_batches(records):
            sequence = self._sequences.get(tp, 0)
            batch = _encode_batch(producer, sequence, some)
            offset = await self._send_batch(tp, batch)
            self._sequences[tp] = (sequence + len(some)) & 0x7FFFFFFF
            placed += [offset + index if offset >= 0 else -1 for index in range(len(some))]
        return placed

    async def _send_batch(self, tp: TopicPartition, batch: bytes) -> int:
        """The offset of its first record. The same batch again is not another one to Kafka."""
        connections, offset = self._cluster.connections, -1
        timeout = int(self._cluster.settings.request_timeout * 800)
        request = ProduceRequest({tp: batch}, timeout, transactional_id=self.id)

        async def ask() -> int:
            nonlocal offset
            leader = self._cluster.leader_for_partition(tp)
            if leader is None:
                raise BrokerUnavailable(f"{tp} has no leader", retry_after=RETRY_DELAY_S)
            answer = await connections.send(leader[0], ConnectionRole.PRODUCE, request)
            error, offset = answer.partitions.get(tp, AppendResult(-1, -1))
            if error in LEADER_CHANGED_CODES:
                raise BrokerUnavailable(f"{tp} is led by another broker", retry_after=RETRY_DELAY_S)
            return 0 if error == DUPLICATE_SEQUENCE_NUMBER else error

        await self._retry_until_done(ask, f"{tp}")
        return offset

    # asking until it is done

    async def _send_to_coordinator(
        self, request: KafkaRequest[R], get_error: Callable[[R], int]
    ) -> R:
        """Of the coordinator of the id."""
        answers: list[R] = []

        async def ask() -> int:
            if self._coordinator_node is None:
                self._coordinator_node = await self._find_coordinator()
            try:
                answer = await self._cluster.connections.send(
                    self._coordinator_node, ConnectionRole.GROUP, request
                )
            except BrokerUnavailable:
                self._coordinator_node = None
                raise
            error = get_error(answer)
            if error in COORDINATOR_MOVED_CODES:
                self._coordinator_node = None
            answers.append(answer)
            return error

        await self._retry_until_done(ask, request.NAME)
        return answers[-1]

    async def _retry_until_done(
        self, attempt: Callable[[], Awaitable[int]], operation: str
    ) -> None:
        """What passes is waited for. Raises as `commit`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_TIMEOUT_S
        while True:
            wait = RETRY_DELAY_S
            try:
                error = await attempt()
                if not error:
                    return
                if error not in RETRIABLE_CODES | COORDINATOR_MOVED_CODES:
                    raise self._build_error(error, operation)
                why = f"Kafka answers code {error}"
            except BrokerUnavailable as exc:
                why, wait = str(exc), max(RETRY_DELAY_S, exc.retry_after or 0.0)
                await self._refresh_metadata(why)
            if loop.time() + wait > deadline:
                raise BrokerUnavailable(
                    f"transaction {self.id}: {operation} is not done in time: {why}", timeout=True
                )
            await asyncio.sleep(wait)

    async def _refresh_metadata(self, reason: str) -> None:
        try:
            await self._cluster.metadata.refresh(reason)
        except KafkaError:
            return  # it is tried again as long as there is time

    def _build_error(self, error: int, operation: str) -> KafkaError:
        if error in FENCED_CODES:
            return Fenced(f"another one writes as {self.id} by now (code {error})")
        if error in DENIED:
            which = self.id if error == TRANSACTIONAL_ID_AUTHORIZATION_FAILED else operation
            return AccessDenied(f"the gateway may not write in a transaction: {which}; allow it")
        topic, _, partition = operation.rpartition("-")
        if topic and partition.isdecimal():
            return PartitionFailed(
                f"{operation} refuses the records (code {error})",
                topic=topic, partition=int(partition), code=error,
            )  # fmt: skip
        return KafkaError(f"transaction {self.id}: {operation} fails with Kafka's code {error}")

    async def _find_coordinator(self) -> int:
        metadata, connections = self._cluster.metadata, self._cluster.connections
        if not metadata.brokers:
            await metadata.refresh("looking for a coordinator")
        first, failure = metadata.last_responder, "no broker is known"
        for node in sorted(metadata.brokers, key=lambda node: (node != first, node)):
            request = FindCoordinatorRequest(self.id, TRANSACTION_KEY_TYPE)
            try:
                answer = await connections.send(node, ConnectionRole.CONTROL, request)
            except BrokerUnavailable as exc:
                failure = str(exc)
                continue
            if answer.error in DENIED:
                raise self._build_error(answer.error, "FindCoordinator")
            if not answer.error:
                connections.update_addresses({answer.node: (answer.host, answer.port)})
                return answer.node
            failure = answer.message or f"code {answer.error}"
        raise BrokerUnavailable(f"{self.id} has no coordinator now: {failure}", retry_after=0.1)


def _find_reason(errors: Mapping[TopicPartition, int]) -> int:
    """Return the code that says why a request failed, or 0.

    A code that is final counts before one that may pass. That a partition was not attempted only
    says that another one has the reason.
    """
    found = [code for code in errors.values() if code]
    reasons = [code for code in found if code != OPERATION_NOT_ATTEMPTED] or found
    final = [code for code in reasons if code not in RETRIABLE_CODES | COORDINATOR_MOVED_CODES]
    return (final or reasons or [0])[0]


def _iter_batches(records: Iterable[TransactionRecord]) -> Iterable[list[TransactionRecord]]:
    batch: list[TransactionRecord] = []
    room = MAX_BATCH_BYTES
    for write in records:
        size = estimate_size(write.key, write.value, write.headers)
        if batch and size > room:
            yield batch
            batch, room = [], MAX_BATCH_BYTES
        batch.append(write)
        room -= size
    if batch:
        yield batch


def _encode_batch(
    producer: ProducerIdAndEpoch, sequence: int, records: Sequence[TransactionRecord]
) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        batch_size=1 << 30,  # it was cut before
    )
    for index, write in enumerate(records):
        builder.append(index, write.timestamp, write.key, write.value, list(write.headers))
    return bytes(builder.build())
