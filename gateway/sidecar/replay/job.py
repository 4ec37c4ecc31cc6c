"""Work on one replay until it is done or belongs to another process.

With a topic as the destination, the copies and the progress are written in one transaction, so each
record is copied exactly once, whichever process continues after a crash. With a back end, records
whose outcome is not written yet are sent again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import httpx

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.delivery_queue import SettledRecords
from gateway.core.delivery.replay import MAX_MISSING_RANGES, Replay, ReplayState, Span
from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import (
    BrokerUnavailable,
    Fenced,
    GatewayError,
    KafkaError,
    RecordTooLarge,
    UnknownTopic,
)
from gateway.kafka.fetch.bounded_read import PartitionRead, read_committed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import (
    TransactionalProducer,
    WrittenOffsets,
    find_left_out,
)
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context
from gateway.sidecar.lookups import choose_partition
from gateway.sidecar.reactive.lanes import LaneContext, LaneRunner, build_rules

from .store import ReplayStore

log = logging.getLogger(__name__)

REPLAY_ID_HEADER = "X-Replay-Id"
REPLAY_TOPIC_HEADER = "X-Replay-Topic"
REPLAY_PARTITION_HEADER = "X-Replay-Partition"
REPLAY_OFFSET_HEADER = "X-Replay-Offset"

ORIGIN_HEADER_COUNT = 4  # of these

HEARTBEAT_INTERVAL_S = 1.0  # in which an owner writes that it still works on the replay
# Copies of a job's first transaction; later ones have as many as take `HEARTBEAT_INTERVAL_S`. Many
# that are refused as too large would take longer than Kafka and other processes wait, and whoever
# takes the replay over begins anew with these few.
FIRST_COPIES = 500
MAX_COPIES = 4000  # that are built in one turn: 0.1 s


class DeliveryResult(NamedTuple):
    """The progress of a delivery.

    Attributes:
        records: How many of the records, from the first on, are done.
        dead_letters: How many of those have failed.
        reason: What holds up the others; empty if nothing does.
    """

    records: int
    dead_letters: int = 0
    reason: str = ""


class BackendDelivery:
    """Deliver portions of records to the back end of a reactive group, by a lane of its own.

    It has the group's formats, batches, retries and dead letters. Only headers differ: one of each
    batch and some of each record name the replay. The group's offsets stay: the job writes the
    progress, and gives the lane the next records after that, which bounds how many are sent again.
    """

    def __init__(
        self, context: Context, settings: Group, client: httpx.AsyncClient, id: str
    ) -> None:
        self._rules = build_rules(settings)
        self._lane_context = LaneContext.from_group(
            context, settings, client, on_settled=self._on_settled, headers={REPLAY_ID_HEADER: id}
        )
        self._runner: LaneRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_flight = 0  # records in the lane whose outcome was not returned yet
        self._settled_batches: list[SettledRecords] = []
        self._has_settled = asyncio.Event()

    def restart(self) -> None:
        self.close()
        self._runner = LaneRunner(self._rules, self._lane_context, lambda runner: None)
        self._in_flight, self._settled_batches = 0, []
        self._task = asyncio.create_task(self._runner.run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def deliver(self, records: Sequence[Record], timeout_s: float) -> DeliveryResult:
        """Return how many are done after at most `timeout_s` seconds; pass the rest again."""
        runner = self._runner
        assert runner is not None, "call restart first"
        # The caller passes records that are not settled again; the lane has them already.
        if not self._in_flight:
            self._in_flight = len(records)
            runner.queue.put(records)
            runner.wake()
        if not self._settled_batches:
            self._has_settled.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._has_settled.wait()
            except TimeoutError:  # the lane goes on; the caller asks again
                return DeliveryResult(0, reason=runner.queue.problem)
        batches, self._settled_batches = self._settled_batches, []
        settled = sum(len(batch.processed) + len(batch.dead_letters) for batch in batches)
        self._in_flight -= settled
        return DeliveryResult(settled, sum(len(batch.dead_letters) for batch in batches))

    def _on_settled(self, settled: SettledRecords) -> None:
        self._settled_batches.append(settled)
        self._has_settled.set()


class ReplayJob:
    """Own one replay and carry it out.

    The component creates it and runs `run`. The transactional id of the replay decides who owns it:
    a process that takes the replay over fences the one before. Started `transactions` are passed by
    the process that has just created the replay.
    """

    def __init__(
        self,
        context: Context,
        store: ReplayStore,
        id: str,
        owner: str,
        delivery: BackendDelivery | None = None,
        *,
        transactions: TransactionalProducer | None = None,
    ) -> None:
        self.id = id
        self._context = context
        self._store = store
        self._owner = owner
        self._delivery = delivery
        self._transactions = transactions or store.create_transactions(id)
        self._replay: Replay | None = None  # as it was written last; None before this one owns it
        self._saved_at = 0.0  # in seconds of the monotonic clock
        self._step_count = 0
        self._open_transactions: dict[TopicPartition, int] = {}  # that were logged, by offset
        self._max_copies = FIRST_COPIES  # of a transaction
        self._stopping = False

    async def run(self) -> None:
        """Work until the replay is done, failed, released, or another process has it."""
        backoff, outages = Backoff(5.0, random.random, 0.1), self._context.cluster.outages
        try:
            while True:
                try:
                    return await self._work()
                except BrokerUnavailable as error:
                    # Start again with the ownership: whether the last transaction was committed is
                    # known only when the state is read again.
                    outages.report_error(self._label, error)
                    await asyncio.sleep(
                        max(error.retry_after or 0, backoff.next_delay(Cause.TIMEOUT))
                    )
        except Fenced:
            seconds = time.monotonic() - self._saved_at
            level = (
                logging.WARNING if seconds > self._store.replays.silence_timeout_s else logging.INFO
            )
            log.log(
                level,
                "replay %s belongs to another process now; its last progress was %.0f s ago",
                self.id, seconds,
            )  # fmt: skip
        except GatewayError as error:
            log.error("replay %s failed: %s", self.id, error)
            # If this fails, too, the process that takes the replay over meets the same error.
            try:
                await end_replay(
                    self._store, self._transactions, self.id, ReplayState.FAILED, str(error)
                )
            except KafkaError as failure:
                log.warning("replay %s cannot be ended: %s", self.id, failure)
        finally:
            outages.report_recovery(self._label, "waits no more")

    @property
    def _label(self) -> str:
        return f"replay={self.id}"

    def stop(self) -> None:
        """Let `run` end after the current step, and release the replay."""
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
        if not self._transactions.is_started:
            replay = self._store.replays.get(self.id)
            if replay is None or not replay.is_running:
                return False
            if self._replay is not None and replay.owner not in ("", self._owner):
                return False  # another process took it over while this one could not write
            await self._transactions.start()
        # The start of the id has fenced the owner before, so what is read now is the latest state.
        await self._store.wait_until_read()
        replay = self._store.replays.get(self.id)
        if replay is None or not replay.is_running:
            return False
        await self._check_topics(replay)
        if self._delivery is not None:
            self._delivery.restart()
        await self._save(replay.with_owner(self._owner, _now()))
        return True

    async def _check_topics(self, replay: Replay) -> None:
        """Raise UnknownTopic if a topic is not the one any more that the replay was started with.

        Its offsets and its copies are of the former one.
        """
        for name in filter(None, (replay.target, replay.topic)):
            topic, id = await self._context.get_topic(name), replay.topic_ids.get(name)
            if id and topic.topic_id is not None and id != str(topic.topic_id):
                problem = f"{name} was deleted and created again; start another replay"
                raise UnknownTopic(problem, topic=name)

    async def _step(self, replay: Replay) -> None:
        remaining = replay.list_remaining()
        self._step_count += 1
        tp, span = remaining[self._step_count % len(remaining)]
        await self._check_topics(replay)
        batch = await read_committed(self._context.cluster, tp, span.next_offset)
        if batch.lost_until is not None:
            log.warning(
                "replay %s: %s has nothing before %d any more", self.id, tp, batch.lost_until
            )
            await self._save(replay.with_missing(tp.partition, batch.lost_until, _now()))
        elif batch.next_offset == span.next_offset:
            if self._open_transactions.get(tp) != span.next_offset:
                self._open_transactions[tp] = span.next_offset
                log.warning(
                    "replay %s: waits at offset %d of %s, where a transaction is open",
                    *(self.id, span.next_offset, tp),
                )
            await self._send_heartbeat(replay)
        elif self._delivery is None:
            await self._copy_records(replay, tp, span, batch)
        else:
            await self._deliver_records(replay, tp, span, batch, self._delivery)

    async def _copy_records(
        self, replay: Replay, tp: TopicPartition, span: Span, committed_read: PartitionRead
    ) -> None:
        # A batch of Kafka may reach beyond the end of the span.
        records = [record for record in committed_read.records if record.offset < span.end]
        target = await self._context.get_topic(replay.target)
        while not self._stopping:
            part, records = records[: self._max_copies], records[self._max_copies :]
            # What follows the last record (control records, compacted ones) is done with, too.
            end = records[0].offset if records else min(committed_read.next_offset, span.end)
            began_at = time.monotonic()
            replay = await self._copy_part(replay, tp, part, end, target)
            seconds = time.monotonic() - began_at
            if seconds > HEARTBEAT_INTERVAL_S:
                self._max_copies = max(1, int(len(part) * HEARTBEAT_INTERVAL_S / seconds))
            elif len(part) == self._max_copies:
                self._max_copies = min(MAX_COPIES, 2 * self._max_copies)
            if not records:
                return

    async def _copy_part(
        self,
        replay: Replay,
        tp: TopicPartition,
        records: Sequence[Record],
        next_offset: int,
        target: TopicMetadata,
    ) -> Replay:
        """Write copies and the progress up to `next_offset` in one transaction."""
        copies = [build_copy(self.id, record, target) for record in records]
        after = replay

        def build_state(written: WrittenOffsets) -> Sequence[ProducerRecord]:
            nonlocal after
            left_out = find_left_out(copies, written)
            done = [record for index, record in enumerate(records) if index not in left_out]
            size = sum(record.payload_size for record in done)
            after = replay.with_refused(
                tp.partition, [records[index].offset for index in sorted(left_out)]
            )
            if len(after.lacks) > MAX_MISSING_RANGES:
                problem = f"over {MAX_MISSING_RANGES} records are too large for {replay.target}"
                raise RecordTooLarge(f"{problem}; raise its max.message.bytes")
            after = after.with_progress(tp.partition, next_offset, len(done), size, _now())
            return [self._store.build_write(after)]

        await self._transactions.commit(
            copies, build_followups=build_state, shorten=self._shorten_copy
        )
        for missing in after.lacks[len(replay.lacks) :]:
            log.warning(
                "replay %s: %s does not take %s offsets %d to %d, as they are too large",
                self.id, replay.target, tp, missing.offset, missing.next_offset - 1,
            )  # fmt: skip
        self._note_saved(after)
        return after

    def _shorten_copy(self, copy: ProducerRecord) -> ProducerRecord | None:
        """Remove the headers that were added to a copy; None if they are gone already."""
        start = len(copy.headers) - ORIGIN_HEADER_COUNT
        if start < 0 or copy.headers[start] != (REPLAY_ID_HEADER, self.id.encode()):
            return None
        return copy._replace(headers=copy.headers[:start])

    async def _deliver_records(
        self,
        replay: Replay,
        tp: TopicPartition,
        span: Span,
        committed_read: PartitionRead,
        delivery: BackendDelivery,
    ) -> None:
        """Deliver records to the back end, and write the progress after each answer."""
        records = [
            add_origin_headers(self.id, record)
            for record in committed_read.records
            if record.offset < span.end
        ]
        while records:
            result = await delivery.deliver(records, HEARTBEAT_INTERVAL_S)
            if self._stopping and not result.records:
                return  # `_work` releases the replay
            settled, records = records[: result.records], records[result.records :]
            if not settled:
                replay = replace(replay, error=result.reason)
                await self._send_heartbeat(replay)
                continue
            next_offset = settled[-1].next_offset
            size = sum(record.payload_size for record in settled)
            replay = replay.with_progress(
                tp.partition, next_offset, len(settled), size, _now(), result.dead_letters
            )
            await self._save(replay)
        # What follows the last record (control records, compacted ones) is done with, too.
        if replay.spans[tp.partition].next_offset < min(committed_read.next_offset, span.end):
            next_offset = min(committed_read.next_offset, span.end)
            await self._save(replay.with_progress(tp.partition, next_offset, 0, 0, _now()))

    async def _send_heartbeat(self, replay: Replay) -> None:
        """Write that the replay is still worked on, if nothing was written for a while."""
        if time.monotonic() - self._saved_at >= HEARTBEAT_INTERVAL_S:
            await self._save(replay.with_owner(self._owner, _now()))

    async def _save(self, replay: Replay) -> None:
        await self._transactions.commit([self._store.build_write(replay)])
        self._note_saved(replay)

    def _note_saved(self, replay: Replay) -> None:
        self._replay, self._saved_at = replay, time.monotonic()
        self._context.cluster.outages.report_recovery(self._label, "goes on")


async def end_replay(
    store: ReplayStore,
    transactions: TransactionalProducer,
    id: str,
    state: ReplayState,
    reason: str = "",
) -> Replay | None:
    """End a replay, and fence the process that works on it. None if none is running with this id.

    Raises:
        BrokerUnavailable: With `timeout`, it may be ended.
        KafkaError: It is not ended.
    """
    if not transactions.is_started:
        await transactions.start()
    await store.wait_until_read()
    replay = store.replays.get(id)
    if replay is None or not replay.is_running:
        return None
    ended = replay.with_end(state, _now(), reason)
    await transactions.commit([store.build_write(ended)])
    return ended


def add_origin_headers(id: str, record: Record) -> Record:
    origin_headers = (
        (REPLAY_ID_HEADER, id.encode()),
        (REPLAY_TOPIC_HEADER, record.tp.topic.encode()),
        (REPLAY_PARTITION_HEADER, str(record.tp.partition).encode()),
        (REPLAY_OFFSET_HEADER, str(record.offset).encode()),
    )
    return record._replace(headers=(*record.headers, *origin_headers))


def build_copy(id: str, record: Record, target: TopicMetadata) -> ProducerRecord:
    tp = choose_partition(target, record.tp.partition, record.key)
    headers = add_origin_headers(id, record).headers
    return ProducerRecord(tp, record.key, record.value, headers, record.timestamp)


def _now() -> int:
    return time.time_ns() // 1_000_000
