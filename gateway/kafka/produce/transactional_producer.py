"""Write records and offsets of several partitions in Kafka's transactions, all or nothing.

    producer = TransactionalProducer(cluster, "replay-4711")
    await producer.start()       # fences an earlier producer of this id, and ends its transaction
    await producer.commit([ProducerRecord(...)], group="dlq", offsets={tp: OffsetAndMetadata(7)})

One call is one transaction. After a failure the transaction may or may not have been committed.
`start` settles it: Kafka completes a commit that had begun, and aborts everything else. Afterwards,
reading committed records shows which it was.

Requests go over the shared connections. The transactional producer of a library has connections and
a metadata refresh of its own for each transactional id.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TypeAlias, TypeVar

from gateway.core.backoff import BackoffPolicy
from gateway.core.error_code import (
    AUTHORIZATION_ERRORS,
    COORDINATOR_ERRORS,
    COORDINATOR_MOVED_ERRORS,
    TOO_LARGE_ERRORS,
    ErrorCode,
)
from gateway.core.log.record import TopicPartition
from gateway.core.produce import outbox
from gateway.core.produce.outbox import ProducerIdAndEpoch
from gateway.errors import AccessDenied, BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.kafka.client.brokers import find_coordinator
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.group_messages import FindCoordinatorRequest, OffsetAndMetadata
from gateway.kafka.protocol.requests import ErrorResponse, KafkaRequest
from gateway.kafka.protocol.topic_messages import (
    MAX_REQUEST_BYTES,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AppendResult,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TransactionalIdentity,
    TxnOffsetCommitRequest,
)

from .pending_records import CODEC_IDS, ProducerRecord, encode_batch, estimate_size

R = TypeVar("R")

MAX_BATCH_BYTES = 512 << 10  # a larger record is a batch alone
RETRY_TIMEOUT_S = 30.0  # seconds for which one request is repeated while Kafka cannot do it
RETRY_DELAY_S = 0.02  # short: usually the markers of the last transaction are being written
RETRY_BACKOFF = BackoffPolicy(RETRY_DELAY_S, 2.0)  # else: with too few replicas, batches come again
TRANSACTION_KEY_TYPE = 1  # FindCoordinator for a transactional id

FENCED_ERRORS = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)
RETRIABLE_ERRORS = (
    COORDINATOR_ERRORS | outbox.NOT_APPENDED_ERRORS | {ErrorCode.CONCURRENT_TRANSACTIONS}
)
# What a coordinator answers also after it has appended the end of a transaction to its log, where
# the replicas of that log do not follow in time: its successor then completes the transaction.
UNCERTAIN_ERRORS = COORDINATOR_MOVED_ERRORS | {ErrorCode.UNKNOWN_SERVER_ERROR}
# After these the same batch is sent again: some come after the append, too.
APPEND_IN_DOUBT_ERRORS = outbox.RETRIABLE_ERRORS - outbox.NOT_APPENDED_ERRORS


LEFT_OUT = -2

WrittenOffsets: TypeAlias = dict[TopicPartition, list[int]]
"""The offsets of each partition's records, in their order; -1 if Kafka does not say where, and
LEFT_OUT of a record that is not written."""

Shorten: TypeAlias = Callable[[ProducerRecord], ProducerRecord | None]
"""Return what to write in place of a record that is too large; None to leave it out."""


class TransactionalProducer:
    """The only writer with one transactional id.

    Its creator owns it; it has no task and needs no closing. The topics that are written must be
    watched. Call `start` first, and only one method at a time. Between calls no transaction is
    open, unless `is_started` is False after a failure. Kafka aborts a transaction that was not
    ended after `timeout` seconds.

    Attributes:
        may_be_committed: Whether Kafka may have committed the transaction of a `commit` that failed
            or was cancelled: its end was sent, and no answer says that it was refused.
    """

    def __init__(self, cluster: Cluster, id: str, *, timeout: float = 30.0) -> None:
        self.id = id
        self.may_be_committed = False
        self._cluster = cluster
        self._timeout = timeout
        self._coordinator_node: int | None = None
        self._producer: ProducerIdAndEpoch | None = None
        self._sequences: dict[TopicPartition, int] = {}  # the next of each partition, under this id
        # Whether the coordinator may have done its last request: an attempt was sent, and no answer
        # says that it was refused.
        self._may_be_done = False
        # Whether a request of this transaction had no clear answer, so that Kafka may have counted
        # a batch whose sequence numbers are not counted here.
        self._was_in_doubt = False

    @property
    def is_started(self) -> bool:
        """Return whether `commit` may be called; False after a failure of unknown outcome."""
        return self._producer is not None

    async def start(self) -> None:
        """Take over the transactional id: fence an earlier producer and end its transaction."""
        self._producer = None
        self._sequences.clear()
        request = InitProducerIdRequest(self.id, int(self._timeout * 1000))
        response = await self._send_to_coordinator(request)
        self._producer = response.producer

    async def commit(
        self,
        records: Sequence[ProducerRecord] = (),
        *,
        group: str = "",
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        build_followups: Callable[[WrittenOffsets], Sequence[ProducerRecord]] | None = None,
        shorten: Shorten | None = None,
    ) -> WrittenOffsets:
        """Write records and commit offsets in one transaction, and return the records' offsets.

        After an exception call `start` again, unless `is_started` is still True: then Kafka refused
        a record, the transaction was aborted, and the next one may follow.

        Args:
            offsets: The next offset of each partition, to be committed for the group.
            build_followups: Called with the offsets of the records; returns further records to
                write in the same transaction. Their offsets are behind the others in the result.
            shorten: Called with each of the records that is too large for its topic, also when it
                is compressed; without it such a record ends the transaction.

        Raises:
            Fenced: Another producer uses the id. If it took the id over while the transaction was
                being committed, Kafka may have completed that.
            PartitionFailed: A record is refused; with Kafka's error code.
            AccessDenied: The gateway may not write there, or not with this id or group.
            BrokerUnavailable: It was not done in time; or, with `timeout`, the transaction may have
                been committed.
            KafkaError: The producer is not started, or Kafka answers with another error; nothing is
                committed.
        """
        if self._producer is None:
            raise KafkaError(f"the transactional id {self.id} is not started")
        self._was_in_doubt = self.may_be_committed = False
        try:
            written = await self._write_records(
                self._producer, records, group, offsets or {}, shorten
            )
            if build_followups is not None:
                followups = build_followups(written)
                followup_offsets = await self._write_records(self._producer, followups, "", {})
                for tp, tp_offsets in followup_offsets.items():
                    written.setdefault(tp, []).extend(tp_offsets)
            await self._commit_transaction(self._producer)
        except BaseException as error:  # cancellation, too, leaves the transaction open
            # Kafka answered that it refuses: the transaction is aborted. The producer stays usable
            # if nothing was in doubt before; after any other failure only `start` settles it.
            producer, self._producer = self._producer, None
            is_usable = not self._was_in_doubt
            if (
                isinstance(error, PartitionFailed | AccessDenied)
                and await self._abort(producer)
                and is_usable
            ):
                self._producer = producer
            raise
        return written

    async def _commit_transaction(self, producer: ProducerIdAndEpoch) -> None:
        """Commit the open transaction.

        BrokerUnavailable with `timeout` says that it may be committed: an attempt has no answer
        that refuses it, and no error of a later attempt is about the first one.
        """
        request = EndTxnRequest(TransactionalIdentity(self.id, producer), True)
        try:
            await self._send_to_coordinator(request)
        except BaseException as exc:  # also if it is cancelled
            # Fenced: the caller looks at what the other producer has done.
            self.may_be_committed = self._may_be_done or isinstance(exc, Fenced)
            if not self._may_be_done or not isinstance(exc, KafkaError) or isinstance(exc, Fenced):
                raise
            raise BrokerUnavailable(
                f"transaction {self.id}: Kafka does not say whether it is committed: {exc}",
                timeout=True,
                retry_after=1.0,
            ) from exc

    async def _abort(self, producer: ProducerIdAndEpoch) -> bool:
        """Abort the transaction for its readers; False if that failed."""

        def get_error(response: ErrorResponse) -> int:
            # Kafka checks id and epoch before the state, so the id is ours and nothing was open.
            return 0 if response.error == ErrorCode.INVALID_TXN_STATE else response.error

        try:
            await self._send_to_coordinator(
                EndTxnRequest(TransactionalIdentity(self.id, producer), False), get_error
            )
        except Fenced:
            raise
        except KafkaError:
            return False
        return True

    async def _write_records(
        self,
        producer: ProducerIdAndEpoch,
        records: Sequence[ProducerRecord],
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        shorten: Shorten | None = None,
    ) -> WrittenOffsets:
        """Add records and offsets to the open transaction; the first of them opens it."""
        identity = TransactionalIdentity(self.id, producer)
        by_tp: dict[TopicPartition, list[ProducerRecord]] = {}
        for record in records:
            by_tp.setdefault(record.tp, []).append(record)
        # The coordinator must know a partition before records go there, or it would write no marker
        # there at the end (KIP-98).
        if by_tp:
            await self._send_to_coordinator(
                AddPartitionsToTxnRequest(identity, by_tp),
                lambda response: _find_reason(response.errors),
            )
        if offsets:
            await self._send_to_coordinator(AddOffsetsToTxnRequest(identity, group))
            await self._commit_offsets(TxnOffsetCommitRequest(identity, group, offsets))
        written = {}
        # Others may end their watch meanwhile.
        with self._cluster.metadata.watching(tp.topic for tp in by_tp):
            for tp, tp_records in by_tp.items():
                written[tp] = await self._write_partition(producer, tp, tp_records, shorten)
        return written

    async def _commit_offsets(self, request: TxnOffsetCommitRequest) -> None:
        coordinators = self._cluster.coordinators

        async def attempt() -> int:
            error = _find_reason((await coordinators.send(request.group, request)).errors)
            if error in COORDINATOR_MOVED_ERRORS:
                coordinators.forget(request.group)
            return error

        await self._retry_until_done(attempt, request.API.name)

    async def _write_partition(
        self,
        producer: ProducerIdAndEpoch,
        tp: TopicPartition,
        records: Iterable[ProducerRecord],
        shorten: Shorten | None,
    ) -> list[int]:
        """Write the records of one partition in batches, and return their offsets.

        A batch that is too large for the topic is halved. A record that `shorten` may change is
        compressed first: it may be the copy of one from a compressed batch. A transaction goes on
        after such a refusal.
        """
        written: list[int] = []
        batches = deque((batch, CODEC_IDS["none"]) for batch in _iter_batches(records))
        while batches:
            batch, codec = batches.popleft()
            sequence = self._sequences.get(tp, 0)
            encode = partial(
                encode_batch, producer, sequence, batch, codec=codec, is_transactional=True
            )
            try:
                # Compressed are single records that were too large, of up to a gigabyte.
                data = await asyncio.to_thread(encode) if codec else encode()
                offset = await self._send_batch(tp, data)
            except PartitionFailed as exc:
                if exc.code not in TOO_LARGE_ERRORS:
                    raise
                if len(batch) > 1:
                    middle = len(batch) // 2
                    batches.extendleft(((batch[middle:], codec), (batch[:middle], codec)))
                elif shorten is None:
                    raise
                elif codec != CODEC_IDS["gzip"]:
                    batches.appendleft((batch, CODEC_IDS["gzip"]))
                elif (shorter := shorten(batch[0])) is not None:
                    batches.appendleft(([shorter], CODEC_IDS["none"]))
                else:
                    written.append(LEFT_OUT)
                continue
            # After a failure the number stays. That is right whether the batch was refused (Kafka
            # counts it no more than we do) or is in doubt: then `start` clears all numbers.
            self._sequences[tp] = (sequence + len(batch)) & 0x7FFFFFFF  # wraps to 0
            written += [offset + index if offset >= 0 else -1 for index in range(len(batch))]
        return written

    async def _send_batch(self, tp: TopicPartition, batch: bytes) -> int:
        """Send a batch until the broker has it, and return the offset of its first record.

        A repeated batch is a duplicate to Kafka, because its sequence numbers are the same.
        """
        if len(batch) > MAX_REQUEST_BYTES:
            raise self._build_error(ErrorCode.MESSAGE_TOO_LARGE, f"{tp}")
        connections, offset = self._cluster.connections, -1
        # 0.8 of the request timeout, in ms: the broker gives up first, and says so.
        timeout_ms = int(self._cluster.settings.request_timeout * 800)
        request = ProduceRequest({tp: batch}, timeout_ms, transactional_id=self.id)

        async def attempt() -> int:
            nonlocal offset
            leader = self._cluster.leader_for_partition(tp)
            if leader is None:
                raise BrokerUnavailable(f"{tp} has no leader", retry_after=RETRY_DELAY_S)
            connection = await connections.connect(leader[0], ConnectionRole.PRODUCE)
            response = await connections.send_on(connection, request)
            # As in `_send_to_coordinator`, the answer may be to a second attempt.
            self._was_in_doubt |= not connection.is_open
            error, offset, _ = response.partitions.get(
                tp, AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR)
            )
            if error in APPEND_IN_DOUBT_ERRORS:
                raise BrokerUnavailable(f"{tp} answers code {error}", retry_after=RETRY_DELAY_S)
            # A duplicate: the broker has the batch, but does not say where.
            return 0 if error == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else error

        await self._retry_until_done(attempt, f"{tp}")
        return offset

    # Requests, repeated until they are done.

    async def _send_to_coordinator(
        self, request: KafkaRequest[R], get_error: Callable[[R], int] = attrgetter("error")
    ) -> R:
        """Send a request until it is done. `_may_be_done` matters after an error."""
        connections = self._cluster.connections
        responses: list[R] = []
        self._may_be_done = False

        async def attempt() -> int:
            if self._coordinator_node is None:
                self._coordinator_node = await find_coordinator(
                    connections,
                    self._cluster.metadata,
                    FindCoordinatorRequest(self.id, TRANSACTION_KEY_TYPE),
                    f"the transactional id {self.id}",
                )
            try:
                connection = await connections.connect(self._coordinator_node, ConnectionRole.GROUP)
                was_in_doubt, self._may_be_done = self._may_be_done, True
                response = await connections.send_on(connection, request)
            except BrokerUnavailable:
                self._coordinator_node = None
                raise
            error = get_error(response)
            # Where the broker closed the connection, the answer may be to a second attempt, which
            # `send_on` made on another one.
            self._may_be_done = was_in_doubt or error in UNCERTAIN_ERRORS or not connection.is_open
            if error in COORDINATOR_MOVED_ERRORS:
                self._coordinator_node = None
            responses.append(response)
            return error

        await self._retry_until_done(attempt, request.API.name)
        return responses[-1]

    async def _retry_until_done(
        self, attempt: Callable[[], Awaitable[int]], operation: str
    ) -> None:
        """Repeat an operation while its errors are transient, for RETRY_TIMEOUT_S.

        `attempt` returns Kafka's error code. `operation` is the name of a request, or the partition
        that is written (`_build_error` reads it).
        """
        loop = asyncio.get_running_loop()
        deadline, failures = loop.time() + RETRY_TIMEOUT_S, 0
        while True:
            failures += 1
            delay = RETRY_BACKOFF.compute_delay(failures, random.random)
            try:
                error = await attempt()
                if not error:
                    return
                if error not in RETRIABLE_ERRORS:
                    raise self._build_error(error, operation)
                reason = f"Kafka answers code {error}"
                if error == ErrorCode.CONCURRENT_TRANSACTIONS:
                    delay = RETRY_DELAY_S
            except BrokerUnavailable as exc:
                self._was_in_doubt = True
                error, reason, delay = 0, str(exc), max(delay, exc.retry_after or 0.0)
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                with suppress(KafkaError):  # it is tried again as long as there is time
                    await self._cluster.metadata.refresh(reason)
            if loop.time() + delay > deadline:
                raise BrokerUnavailable(
                    f"transaction {self.id}: {operation} is not done in time: {reason}"
                )
            await asyncio.sleep(delay)

    def _build_error(self, error: int, operation: str) -> KafkaError:
        if error in FENCED_ERRORS:
            return Fenced(f"another producer writes as {self.id} by now (code {error})")
        if error in AUTHORIZATION_ERRORS:
            denied = (
                self.id if error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else operation
            )
            return AccessDenied(f"the gateway may not write in a transaction: {denied}; allow it")
        # An operation is either the name of a request or, as here, a partition ("orders-3").
        topic, _, partition = operation.rpartition("-")
        # A broker that failed unexpectedly has refused nothing, and may have appended the records.
        if topic and partition.isdecimal() and error != ErrorCode.UNKNOWN_SERVER_ERROR:
            return PartitionFailed(
                f"{operation} refuses the records (code {error})",
                topic=topic, partition=int(partition), code=error,
            )  # fmt: skip
        return KafkaError(f"transaction {self.id}: {operation} fails with Kafka's code {error}")


def _find_reason(errors: Mapping[TopicPartition, int]) -> int:
    """Return the code that says why a request failed, or 0. A final code counts first.

    A partition that was not attempted only says that another one has the reason.
    """
    codes = [code for code in errors.values() if code]
    reasons = [code for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED] or codes
    final = [code for code in reasons if code not in RETRIABLE_ERRORS]
    return (final or reasons or [0])[0]


def find_left_out(records: Sequence[ProducerRecord], written: WrittenOffsets) -> set[int]:
    """Return the indexes of the records that a commit left out, by the offsets it returned."""
    offsets = {tp: iter(tp_offsets) for tp, tp_offsets in written.items()}
    return {index for index, record in enumerate(records) if next(offsets[record.tp]) == LEFT_OUT}


def _iter_batches(records: Iterable[ProducerRecord]) -> Iterable[list[ProducerRecord]]:
    batch: list[ProducerRecord] = []
    bytes_left = MAX_BATCH_BYTES
    for record in records:
        size = estimate_size(record.key, record.value, record.headers)
        if batch and size > bytes_left:
            yield batch
            batch, bytes_left = [], MAX_BATCH_BYTES
        batch.append(record)
        bytes_left -= size
    if batch:
        yield batch
