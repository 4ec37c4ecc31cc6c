"""One replay at work, by its owner, until it is over or another's.

To a topic, the copies and how far they have come are one transaction: each record is there once,
whoever goes on after whatever crash. To a back end, what it was sent and has not been noted yet is
sent again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from gateway.core.delivery.replay import Replay, ReplayState, Span
from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import BrokerUnavailable, Fenced, GatewayError, KafkaError
from gateway.kafka.fetch.committed_read import CommittedRead, read_committed
from gateway.kafka.produce.partitioner import compute_partition
from gateway.kafka.produce.transactional_producer import TransactionalProducer, TransactionRecord
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context

from .store import ReplayStore

log = logging.getLogger(__name__)

REPLAY_ID_HEADER = "X-Replay-Id"
REPLAY_TOPIC_HEADER = "X-Replay-Topic"
REPLAY_PARTITION_HEADER = "X-Replay-Partition"
REPLAY_OFFSET_HEADER = "X-Replay-Offset"

HEARTBEAT_INTERVAL_S = 1.0  # seconds in which an owner says that it is there

Headers = tuple[tuple[str, bytes | None], ...]


class DeliveryResult(NamedTuple):
    """The first so many records are done with; so many of them failed. why: what holds it up."""

    records: int
    dead_letters: int = 0
    reason: str = ""


class ReplayDelivery(Protocol):
    """Records to the back end."""

    def restart(self) -> None:
        """Nothing is under way any more."""

    async def __call__(self, records: Sequence[Record], timeout_s: float) -> DeliveryResult:
        """What is done with after at most so many seconds; the rest is given again then."""


class ReplayJob:
    """deliver: to the back end; None: to a topic. owner: this process.

    transactions: started, where the owner is it already.
    """

    def __init__(
        self,
        context: Context,
        store: ReplayStore,
        id: str,
        owner: str,
        delivery: ReplayDelivery | None = None,
        *,
        transactions: TransactionalProducer | None = None,
    ) -> None:
        self.id = id
        self._context = context
        self._store = store
        self._owner = owner
        self._delivery = delivery
        self._transactions = transactions or store.create_transactions(id)
        self._replay: Replay | None = None
        self._saved_at = 0.0
        self._step_count = 0
        self._stopping = False

    async def run(self) -> None:
        """Until it is over, or somebody else's."""
        backoff, outages = Backoff(5.0, random.random, 0.1), self._context.cluster.outages
        try:
            while True:
                try:
                    return await self._work()
                except BrokerUnavailable as error:
                    outages.report_error(self._label, error)
                    await asyncio.sleep(
                        max(error.retry_after or 0, backoff.next_delay(Cause.TIMEOUT))
                    )
        except Fenced:
            log.info("replay %s is another's by now", self.id)
        except GatewayError as error:
            await self._fail(str(error))
        finally:
            outages.report_recovery(self._label, "waits no more")

    @property
    def _label(self) -> str:
        return f"replay={self.id}"

    def stop(self) -> None:
        """`run` ends after the step that is under way, and gives it free."""
        self._stopping = True

    async def _work(self) -> None:
        if not await self._take_ownership():
            return
        while (replay := self._replay) is not None and not replay.is_done:
            if self._stopping:
                return await self._save(replay.with_owner("", _now()))
            await self._step(replay)
        if replay is not None:
            log.info("replay %s is done: %d records", self.id, replay.records)
            await self._save(replay.with_end(ReplayState.DONE, _now()))

    async def _take_ownership(self) -> bool:
        """Be its owner; False where there is nothing to own."""
        if not self._transactions.is_started:
            known = self._store.replays.get(self.id)
            if known is None or not known.is_running or self._is_owned_elsewhere(known):
                return False
            await self._transactions.start()
        await self._store.wait_until_read()
        known = self._store.replays.get(self.id)
        if known is None or not known.is_running:
            return False
        await self._context.get_topic(known.topic)
        if known.target:
            await self._context.get_topic(known.target)
        if self._delivery is not None:
            self._delivery.restart()
        await self._save(known.with_owner(self._owner, _now()))
        return True

    def _is_owned_elsewhere(self, known: Replay) -> bool:
        """Taken over while this one had trouble."""
        return self._replay is not None and known.owner not in ("", self._owner)

    async def _step(self, replay: Replay) -> None:
        """A piece of one partition, in turns."""
        left = replay.list_remaining()
        self._step_count += 1
        tp, span = left[self._step_count % len(left)]
        got = await read_committed(self._context.cluster, tp, span.next_offset)
        if got.lost_until is not None:
            log.warning("replay %s: %s has nothing before %d any more", self.id, tp, got.lost_until)
            await self._save(replay.with_missing(tp.partition, got.lost_until, _now()))
        elif got.next_offset == span.next_offset:
            await self._send_heartbeat(replay)  # an open transaction stands before it
        elif self._delivery is None:
            await self._copy_records(replay, tp, span, got)
        else:
            await self._deliver_records(replay, tp, span, got, self._delivery)

    async def _copy_records(
        self, replay: Replay, tp: TopicPartition, span: Span, committed_read: CommittedRead
    ) -> None:
        records = [each for each in committed_read.records if each.offset < span.end]
        known = await self._context.get_topic(replay.target)
        writes = [build_copy(self.id, each, known) for each in records]
        next, size = min(committed_read.next_offset, span.end), sum(map(_size, records))
        await self._save(
            replay.with_progress(tp.partition, next, len(records), size, _now()), writes
        )

    async def _deliver_records(
        self,
        replay: Replay,
        tp: TopicPartition,
        span: Span,
        committed_read: CommittedRead,
        delivery: ReplayDelivery,
    ) -> None:
        records = [
            add_origin_headers(self.id, each)
            for each in committed_read.records
            if each.offset < span.end
        ]
        while records:
            done = await delivery(records, HEARTBEAT_INTERVAL_S)
            if self._stopping and not done.records:
                return
            some, records = records[: done.records], records[done.records :]
            if not some:
                replay = replace(replay, error=done.reason)
                await self._send_heartbeat(replay)
                continue
            next, size = some[-1].next_offset, sum(map(_size, some))
            replay = replay.with_progress(
                tp.partition, next, len(some), size, _now(), done.dead_letters
            )
            await self._save(replay)
        if replay.spans[tp.partition].next_offset < min(committed_read.next_offset, span.end):
            next = min(committed_read.next_offset, span.end)
            await self._save(replay.with_progress(tp.partition, next, 0, 0, _now()))

    async def _send_heartbeat(self, replay: Replay) -> None:
        if time.monotonic() - self._saved_at >= HEARTBEAT_INTERVAL_S:
            await self._save(replay.with_owner(self._owner, _now()))

    async def _save(self, replay: Replay, writes: Sequence[TransactionRecord] = ()) -> None:
        await self._transactions.commit([*writes, self._store.build_write(replay)])
        self._replay, self._saved_at = replay, time.monotonic()
        self._context.cluster.outages.report_recovery(self._label, "goes on")

    async def _fail(self, why: str) -> None:
        log.error("replay %s failed: %s", self.id, why)
        await self._end(ReplayState.FAILED, why)

    async def _end(self, state: ReplayState, why: str = "") -> None:
        try:
            await end_replay(self._store, self._transactions, self.id, state, why)
        except KafkaError as error:  # whoever takes it over meets the same
            log.warning("replay %s cannot be ended: %s", self.id, error)


async def end_replay(
    store: ReplayStore,
    transactions: TransactionalProducer,
    id: str,
    state: ReplayState,
    why: str = "",
) -> Replay | None:
    """Whoever works on it writes nothing more from here on. None: there is none that runs.

    Raises KafkaError.
    """
    if not transactions.is_started:
        await transactions.start()
    await store.wait_until_read()
    known = store.replays.get(id)
    if known is None or not known.is_running:
        return None
    ended = known.with_end(state, _now(), why)
    await transactions.commit([store.build_write(ended)])
    return ended


def add_origin_headers(id: str, record: Record) -> Record:
    """With the headers that say where it is from."""
    return record._replace(headers=(*record.headers, *build_origin_headers(id, record)))


def build_origin_headers(id: str, record: Record) -> Headers:
    return (
        (REPLAY_ID_HEADER, id.encode()),
        (REPLAY_TOPIC_HEADER, record.tp.topic.encode()),
        (REPLAY_PARTITION_HEADER, str(record.tp.partition).encode()),
        (REPLAY_OFFSET_HEADER, str(record.offset).encode()),
    )


def build_copy(id: str, record: Record, target: TopicMetadata) -> TransactionRecord:
    """In the partition of the same number where there is one, else as its key says."""
    count, number = len(target.partitions), record.tp.partition
    if number not in target.partitions:
        number = number % count if record.key is None else compute_partition(record.key, count)
    headers = (*record.headers, *build_origin_headers(id, record))
    tp = TopicPartition(target.name, number)
    return TransactionRecord(tp, record.key, record.value, headers, record.timestamp)


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _now() -> int:
    return time.time_ns() // 1_000_000
