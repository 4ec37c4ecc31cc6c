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
from gateway.core.produce.outbox import Producer
from gateway.errors import AccessDenied, BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Role
from gateway.kafka.client.coordinators import DENIED as GROUP_DENIED
from gateway.kafka.protocol.group_messages import FindCoordinatorRequest
from gateway.kafka.protocol.produce_messages import Appended, InitProducerIdRequest, ProduceRequest
from gateway.kafka.protocol.requests import Request
from gateway.kafka.protocol.transaction_messages import (
    AddOffsetsRequest,
    AddPartitionsRequest,
    CommitOffsetsRequest,
    EndRequest,
    Identity,
    Said,
)

from .pending_records import Headers, size_of

R = TypeVar("R")

BATCH = 512 << 10  # bytes; a larger record is a batch alone
WITHIN = 30.0  # seconds for Kafka to get over what passes
AGAIN = 0.02  # seconds; the markers of the last transaction are being written
TRANSACTION = 1  # the type of a coordinator's key

INVALID_TXN_STATE = 48
FENCED = frozenset({47, INVALID_TXN_STATE, 49, 90})  # epoch, state, id mapping, PRODUCER_FENCED
# CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION of a new topic
PASSING = frozenset({51, 14, 3})
MOVED = frozenset({15, 16})  # COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
ID_DENIED = 53
DENIED = frozenset({29, 31, GROUP_DENIED, ID_DENIED})
DUPLICATE = 46  # it has the batch, and does not say where
LEADERLESS = frozenset({5, 6})
NOT_ATTEMPTED = 55  # OPERATION_NOT_ATTEMPTED


class Write(NamedTuple):
    """A record to be. timestamp in milliseconds."""

    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


Placed: TypeAlias = dict[TopicPartition, list[int]]
"""Offsets, in the order in which they were asked for; -1 where Kafka does not say."""


class Transactions:
    """See the module. One `commit` at a time.

    timeout: seconds after which Kafka undoes what nobody ends.
    """

    def __init__(self, cluster: Cluster, id: str, *, timeout: float = 30.0) -> None:
        self.id = id
        self._cluster = cluster
        self._timeout = timeout
        self._node: int | None = None
        self._producer: Producer | None = None
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def started(self) -> bool:
        """False again after a failure that leaves open what became of the transaction."""
        return self._producer is not None

    async def start(self) -> None:
        """Raises BrokerUnavailable, AccessDenied."""
        self._producer = None
        self._sequences.clear()
        request = InitProducerIdRequest(self.id, int(self._timeout * 1000))
        answer = await self._asked(request, lambda answer: answer.error)
        self._producer = answer.producer

    async def commit(
        self,
        writes: Sequence[Write] = (),
        *,
        group: str = "",
        offsets: Mapping[TopicPartition, int] | None = None,
        then: Callable[[Placed], Sequence[Write]] | None = None,
    ) -> Placed:
        """The offsets of what was written, in the order of `writes`, and of `then` behind them;
        topics must be watched.

        then: what is to be written besides, once it is known where the others are.
        Raises Fenced: somebody else has the id; PartitionFailed with Kafka's code where a record is
        refused, AccessDenied, BrokerUnavailable. `start` again unless it is still `started`.
        """
        if self._producer is None:
            raise KafkaError(f"the transactional id {self.id} is not started")
        try:
            placed = await self._write(self._producer, writes, group, offsets or {})
            if then is not None:
                besides = await self._write(self._producer, then(placed), "", {})
                for tp, more in besides.items():
                    placed.setdefault(tp, []).extend(more)
            request = EndRequest(Identity(self.id, self._producer), True)
            await self._asked(request, lambda answer: answer.error)
        except BaseException as error:
            producer, self._producer = self._producer, None
            if isinstance(error, PartitionFailed | AccessDenied) and await self._undo(producer):
                self._producer = producer
            raise
        return placed

    async def _undo(self, producer: Producer) -> bool:
        """Return whether it is undone, and the id still ours. Raises Fenced where it is not.

        At once, so that readers of committed records need not wait for the next start.
        """

        def error_of(answer: Said) -> int:
            # Kafka looks at the state after id and epoch: nothing was open.
            return 0 if answer.error == INVALID_TXN_STATE else answer.error

        try:
            await self._asked(EndRequest(Identity(self.id, producer), False), error_of)
        except Fenced:
            raise
        except KafkaError:
            return False
        return True

    async def _write(
        self,
        producer: Producer,
        writes: Sequence[Write],
        group: str,
        offsets: Mapping[TopicPartition, int],
    ) -> Placed:
        writer = Identity(self.id, producer)
        by_tp: dict[TopicPartition, list[Write]] = {}
        for write in writes:
            by_tp.setdefault(write.tp, []).append(write)
        if by_tp:
            await self._asked(AddPartitionsRequest(writer, by_tp), lambda a: _find_reason(a.errors))
        if offsets:
            await self._asked(AddOffsetsRequest(writer, group), lambda answer: answer.error)
            await self._committed(CommitOffsetsRequest(writer, group, offsets))
        placed = {}
        for tp, some in by_tp.items():
            placed[tp] = await self._partition(producer, tp, some)
        return placed

    async def _committed(self, request: CommitOffsetsRequest) -> None:
        coordinators = self._cluster.coordinators

        async def ask() -> int:
            error = _find_reason((await coordinators.send(request.group, request)).errors)
            if error in MOVED:
                coordinators.forget(request.group)
            return error

        await self._until_done(ask, request.NAME)

    async def _partition(
        self, producer: Producer, tp: TopicPartition, writes: Iterable[Write]
    ) -> list[int]:
        placed: list[int] = []
        for some in _cut(writes):
            sequence = self._sequences.get(tp, 0)
            batch = _encoded(producer, sequence, some)
            offset = await self._sent(tp, batch)
            self._sequences[tp] = (sequence + len(some)) & 0x7FFFFFFF
            placed += [offset + index if offset >= 0 else -1 for index in range(len(some))]
        return placed

    async def _sent(self, tp: TopicPartition, batch: bytes) -> int:
        """The offset of its first record. The same batch again is not another one to Kafka."""
        connections, offset = self._cluster.connections, -1
        timeout = int(self._cluster.settings.request_timeout * 800)
        request = ProduceRequest({tp: batch}, timeout, transactional_id=self.id)

        async def ask() -> int:
            nonlocal offset
            leader = self._cluster.leader(tp)
            if leader is None:
                raise BrokerUnavailable(f"{tp} has no leader", retry_after=AGAIN)
            answer = await connections.send(leader[0], Role.PRODUCE, request)
            error, offset = answer.partitions.get(tp, Appended(-1, -1))
            if error in LEADERLESS:
                raise BrokerUnavailable(f"{tp} is led by another broker", retry_after=AGAIN)
            return 0 if error == DUPLICATE else error

        await self._until_done(ask, f"{tp}")
        return offset

    # asking until it is done

    async def _asked(self, request: Request[R], error_of: Callable[[R], int]) -> R:
        """Of the coordinator of the id."""
        answers: list[R] = []

        async def ask() -> int:
            if self._node is None:
                self._node = await self._find()
            try:
                answer = await self._cluster.connections.send(self._node, Role.GROUP, request)
            except BrokerUnavailable:
                self._node = None
                raise
            error = error_of(answer)
            if error in MOVED:
                self._node = None
            answers.append(answer)
            return error

        await self._until_done(ask, request.NAME)
        return answers[-1]

    async def _until_done(self, ask: Callable[[], Awaitable[int]], what: str) -> None:
        """What passes is waited for. Raises as `commit`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WITHIN
        while True:
            wait = AGAIN
            try:
                error = await ask()
                if not error:
                    return
                if error not in PASSING | MOVED:
                    raise self._refusal(error, what)
                why = f"Kafka answers code {error}"
            except BrokerUnavailable as exc:
                why, wait = str(exc), max(AGAIN, exc.retry_after or 0.0)
                await self._refresh(why)
            if loop.time() + wait > deadline:
                raise BrokerUnavailable(
                    f"transaction {self.id}: {what} is not done in time: {why}", timeout=True
                )
            await asyncio.sleep(wait)

    async def _refresh(self, why: str) -> None:
        try:
            await self._cluster.metadata.refresh(why)
        except KafkaError:
            return  # it is tried again as long as there is time

    def _refusal(self, error: int, what: str) -> KafkaError:
        if error in FENCED:
            return Fenced(f"another one writes as {self.id} by now (code {error})")
        if error in DENIED:
            which = self.id if error == ID_DENIED else what
            return AccessDenied(f"the gateway may not write in a transaction: {which}; allow it")
        topic, _, partition = what.rpartition("-")
        if topic and partition.isdecimal():
            return PartitionFailed(
                f"{what} refuses the records (code {error})",
                topic=topic, partition=int(partition), code=error,
            )  # fmt: skip
        return KafkaError(f"transaction {self.id}: {what} fails with Kafka's code {error}")

    async def _find(self) -> int:
        metadata, connections = self._cluster.metadata, self._cluster.connections
        if not metadata.brokers:
            await metadata.refresh("looking for a coordinator")
        first, failure = metadata.answered, "no broker is known"
        for node in sorted(metadata.brokers, key=lambda node: (node != first, node)):
            request = FindCoordinatorRequest(self.id, TRANSACTION)
            try:
                answer = await connections.send(node, Role.CONTROL, request)
            except BrokerUnavailable as exc:
                failure = str(exc)
                continue
            if answer.error in DENIED:
                raise self._refusal(answer.error, "FindCoordinator")
            if not answer.error:
                connections.know({answer.node: (answer.host, answer.port)})
                return answer.node
            failure = answer.message or f"code {answer.error}"
        raise BrokerUnavailable(f"{self.id} has no coordinator now: {failure}", retry_after=0.1)


def _find_reason(errors: Mapping[TopicPartition, int]) -> int:
    """Return the code that says why a request failed, or 0.

    A code that is final counts before one that may pass. That a partition was not attempted only
    says that another one has the reason.
    """
    found = [code for code in errors.values() if code]
    reasons = [code for code in found if code != NOT_ATTEMPTED] or found
    final = [code for code in reasons if code not in PASSING | MOVED]
    return (final or reasons or [0])[0]


def _cut(writes: Iterable[Write]) -> Iterable[list[Write]]:
    batch: list[Write] = []
    room = BATCH
    for write in writes:
        size = size_of(write.key, write.value, write.headers)
        if batch and size > room:
            yield batch
            batch, room = [], BATCH
        batch.append(write)
        room -= size
    if batch:
        yield batch


def _encoded(producer: Producer, sequence: int, writes: Sequence[Write]) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        batch_size=1 << 30,  # it was cut before
    )
    for index, write in enumerate(writes):
        builder.append(index, write.timestamp, write.key, write.value, list(write.headers))
    return bytes(builder.build())
