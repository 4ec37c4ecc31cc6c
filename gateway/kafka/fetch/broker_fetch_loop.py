"""Send fetch requests to one broker: ask for all partitions that are due there, deliver, repeat.

A broker holds a fetch back until there is something to return, so a partition that is added
meanwhile cannot be part of that request. A broker therefore has two loops, each with its own
connection: the main loop, and one for newcomers, which carries a new partition until the main
loop's request returns. A partition also counts as a newcomer after its leader changed, or once it
can be read again after an error.

Each loop fetches in one round per isolation level (see `FetchRound`). A partition is in at most
one request of the whole fetcher: a loop takes it out of `idle_fetches` when it joins a round, and
`Fetcher.release` puts it back. A later answer for it is ignored, because `in_flight` no longer
names the round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.error_code import code_from_error
from gateway.core.log import partition_reader as core
from gateway.core.log.partition_reader import FetchCommand
from gateway.core.log.record import NO_EPOCH, Entry, Gap, GapReason, TopicPartition
from gateway.core.log.recovery import RECOVERY_RULES, Cause, RecoveryAction, cause_from_code
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import MAX_CORRUPT_ATTEMPTS, REPLICA_LEASE_S, FetchLimits
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchSession

from .decoding import (
    BULK_SLICE_RECORDS,
    MAX_SLICE_RECORDS,
    DecodedSlice,
    RecordSetDecoder,
    gather_slices,
    iter_slices,
)

if TYPE_CHECKING:
    from .fetcher import Fetcher, PartitionFetch, PartitionWork

log = logging.getLogger(__name__)

_tuple_new = tuple.__new__  # 0.2 us less than `core.FetchResult(...)`

SWEEP_INTERVAL_S = 0.25  # seconds between two looks at all partitions; 1.3 us per partition
NEWCOMER_S = 1.0  # seconds for which a partition counts as a newcomer
RESUMED_LOG_DELAY_S = 0.5  # seconds for which partitions that resume share one log line
OVERDUE_S = 0.5  # seconds a response may be late before metadata is asked for another leader
MAX_RESPONSE_BYTES = 1 << 20  # of one response: 5,000 records of 200 bytes decode in 10 ms
YIELD_BYTES = 64 << 10  # after decoding more than this, other tasks of the event loop run
MIN_BROKER_DELAY_S = 0.02  # seconds to wait at least where the broker's own backoff decides
FAILED_LOOP_DELAY_S = 1.0  # seconds until a loop goes on after an error that nobody expects
# Seconds for which a broker may hold a fetch back while another request waits for its end.
CONTENDED_MAX_WAIT_S = 0.1


class FetchRound:
    """The partitions of one broker and isolation level that are fetched in one request.

    Partitions without news stay in the round and are not looked at. With 1,000 partitions a fetch
    that brings a record of one costs 48 us besides the connection (with 12: 49 us); a loop over all
    of them made it 1,900 us (with 12: 119 us). All are looked at every SWEEP_INTERVAL_S, because
    some changes come with time alone: a stall, or the end of a replica's lease.

    Each `BrokerFetchLoop` owns two, one for each isolation level. Between calls a partition is in
    the round if and only if the round is its `in_flight`, and the session fetches exactly these
    partitions.

    Attributes:
        has_unsettled: A partition may have something to report even if the fetch brings nothing, so
            the broker must not hold the request back.
        swept_at: Loop time at which all partitions were last looked at.
    """

    def __init__(self, isolation: int, session: FetchSession) -> None:
        self.isolation = isolation
        self.session = session
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self.has_unsettled = False
        self.swept_at = 0.0

    def update_partition(self, partition: PartitionFetch) -> None:
        """Fetch a partition, or go on with it, from its reader's position."""
        self.has_unsettled = self.has_unsettled or partition.reader.has_unreported_change
        previous, target = partition.target, partition.build_target()
        # `build_target` returns the same object while nothing changed, which is cheaper to compare.
        if target is not previous or partition.in_flight is not self:
            partition.in_flight = self
            self.partitions[partition.tp] = partition
            self.session.set_target(partition.tp, target)

    def remove_partition(self, partition: PartitionFetch) -> None:
        partition.in_flight = None
        del self.partitions[partition.tp]
        self.session.forget(partition.tp)


class BrokerFetchLoop:
    """The fetch requests that one loop sends to one broker, one after the other.

    The `Fetcher` creates the loops of a broker once the broker leads a partition that is read, and
    owns their tasks. Between calls, each partition of a round has that round as its `in_flight` and
    is not in the fetcher's `idle_fetches`. Set `wake` when a partition may have become due.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        node: int,
        role: ConnectionRole,
        main_loop: BrokerFetchLoop | None = None,
    ) -> None:
        self.wake = asyncio.Event()
        self.is_busy = False
        self._fetcher = fetcher
        self._node = node
        self._role = role
        self._main_loop = main_loop
        # A reader of the past wants one response at a time, complete, rather than early.
        self._is_catch_up = role is ConnectionRole.CATCHUP
        self._loop = asyncio.get_running_loop()
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._resumed_by_cause: dict[Cause, list[TopicPartition]] = {}
        # Incremental sessions pay where many partitions stay for long. Newcomers and reads of the
        # past come and go, and brokers bound how many sessions they keep.
        is_tail = role is ConnectionRole.TAIL
        create_session = FetchSession if is_tail else FetchSession.create_sessionless
        # The isolation level applies to a whole request, so each level has a round of its own.
        self._rounds = {
            isolation: FetchRound(isolation, create_session())
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
        }

    async def run(self) -> None:
        """Fetch the partitions that are due, until cancelled, also after unexpected errors."""
        while True:
            try:
                await self._fetch_due()
            except Exception:
                log.exception(
                    "reading from broker %s failed unexpectedly; it is tried again", self._node
                )
                self.is_busy = False
                for fetch_round in self._rounds.values():
                    self._fail_partitions(fetch_round, Cause.UNEXPECTED, None)
                await asyncio.sleep(FAILED_LOOP_DELAY_S)

    async def _fetch_due(self) -> None:
        # Cleared before the look at what is due: what becomes due from here on sets it again.
        self.wake.clear()
        now = self._fetcher.now()
        self._join_due(now)
        busy = [bool(fetch_round.partitions) for fetch_round in self._rounds.values()]
        if not any(busy):
            return await self._wait_until_due(now)
        self.is_busy = True
        # One after the other: the loop has one connection, on which the broker answers in order.
        for fetch_round in self._rounds.values():
            if fetch_round.partitions:
                await self._run_round(fetch_round, is_mixed=all(busy))
        self.is_busy = False
        await self._fetcher.pause()

    def _join_due(self, now: float) -> None:
        # While the main loop waits for nothing it takes newcomers itself, at once.
        if self._main_loop is not None and not self._main_loop.is_busy:
            return
        for partition in list(self._fetcher.idle_fetches.values()):
            if self._can_carry(partition, now) and self._is_due(partition, now):
                del self._fetcher.idle_fetches[partition.tp]
                self._rounds[partition.isolation].update_partition(partition)

    def _can_carry(self, partition: PartitionFetch, now: float) -> bool:
        """Return whether this loop may fetch a partition: the second one only newcomers."""
        return (
            self._main_loop is None
            or now - partition.newcomer_at < NEWCOMER_S
            or partition.reader.has_unreported_change
        )

    def _is_due(self, partition: PartitionFetch, now: float) -> bool:
        return (
            partition.choose_node(now) == self._node
            and type(partition.reader.next_command(now)) is FetchCommand
        )

    async def _wait_until_due(self, now: float) -> None:
        waits = [
            partition.reader.retry_at - now
            for partition in self._fetcher.idle_fetches.values()
            if partition.choose_node(now) == self._node and partition.reader.retry_at > now
        ]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self.wake.wait()
        except TimeoutError:
            pass

    async def _run_round(self, fetch_round: FetchRound, *, is_mixed: bool) -> None:
        fetcher = self._fetcher
        limits = FetchLimits(
            max_wait=self._choose_max_wait(fetch_round, is_mixed),
            max_bytes=MAX_RESPONSE_BYTES,
            isolation_level=fetch_round.isolation,
        )
        self._overdue_timer = self._loop.call_later(fetcher.max_wait + OVERDUE_S, self._on_overdue)
        try:
            responses = await fetcher.cluster.fetch(
                self._node, self._role, fetch_round.session, limits
            )
        except KafkaError as exc:
            self._on_request_failed(fetch_round, exc)
            return
        finally:
            self._overdue_timer.cancel()
        self._fetcher.report_broker_recovery(self._node)
        for tp, fetched in responses.items():
            partition = fetch_round.partitions.get(tp)
            if partition is None:
                continue  # removed or released while the request was under way
            partition.reader.last_response_at = now = self._fetcher.now()
            try:
                rest = self._on_partition_response(partition, fetched, now)
                # Delivering may have released it: its receiver may have removed or replaced the
                # partition.
                if rest is not None and partition.in_flight is fetch_round:
                    self._fetcher.start_work(partition, rest)
                self._requeue(fetch_round, partition, now)
            except Exception:  # the other partitions of the response have done nothing
                log.exception("reading %s failed unexpectedly; it is tried again", tp)
                if partition.in_flight is fetch_round:
                    self._fetcher.on_request_failed(partition, Cause.UNEXPECTED, None)
            if len(fetched.records) > YIELD_BYTES:
                await asyncio.sleep(0)  # decoding ran in the event loop, so let others run
        now = self._fetcher.now()
        # Looking at all partitions costs time per partition, so it is done only when one has
        # something to report, now and then, and by the newcomers' loop, which hands all of its
        # partitions over to the main loop.
        if (
            fetch_round.has_unsettled
            or now - fetch_round.swept_at >= SWEEP_INTERVAL_S
            or self._main_loop is not None
        ):
            self._sweep_partitions(fetch_round, responses, now)

    def _on_overdue(self) -> None:
        """Ask for metadata, as another broker may lead by now: a frozen one does not say so."""
        self._fetcher.cluster.metadata.request_refresh(f"broker {self._node} is silent")
        self._overdue_timer = self._loop.call_later(OVERDUE_S, self._on_overdue)

    def _choose_max_wait(self, fetch_round: FetchRound, is_mixed: bool) -> float:
        """Return for how many seconds the broker may hold the request back.

        That is 0 while a partition is to report that it can be read, and short while another
        request (for newcomers, or of the other isolation level) waits for this one.
        """
        if fetch_round.has_unsettled:
            return 0.0
        max_wait = self._fetcher.max_wait
        is_contended = is_mixed or self._fetcher.has_newcomers
        return min(CONTENDED_MAX_WAIT_S, max_wait) if is_contended else max_wait

    def _sweep_partitions(
        self, fetch_round: FetchRound, responses: Collection[TopicPartition], now: float
    ) -> None:
        """Treat every partition of the round as answered, and detect those that are stalled.

        The response of a fetch session leaves out partitions without news (KIP-227): they can be
        read.
        """
        fetch_round.swept_at, fetch_round.has_unsettled = now, False
        for tp, partition in list(fetch_round.partitions.items()):
            reader = partition.reader
            reader.last_response_at = now
            if reader.has_unreported_change and tp not in responses:
                offset, epoch, _ = reader.position
                assert offset is not None
                empty = core.FetchResult(
                    (), offset, epoch, reader.high_watermark,
                    reader.last_stable_offset, reader.log_start_offset,
                )  # fmt: skip
                self._apply_fetched(partition, empty, now)
            if reader.is_stalled(now):
                self._restart_stalled(fetch_round, partition)
            self._requeue(fetch_round, partition, now)

    def _requeue(self, fetch_round: FetchRound, partition: PartitionFetch, now: float) -> None:
        if partition.in_flight is not fetch_round:
            return
        if self._main_loop is None and self._is_due(partition, now):
            fetch_round.update_partition(partition)
        else:
            # After one response a newcomer is left to the main loop, which `wake_loops` wakes in
            # case that it is idle.
            self._fetcher.release(partition)
            self._fetcher.wake_loops()

    # Responses.

    def _on_partition_response(
        self, partition: PartitionFetch, fetched: FetchedPartition, now: float
    ) -> PartitionWork | None:
        """Deliver the records of one partition; return the work that delivers the rest later."""
        reader = partition.reader
        if fetched.error_code:
            self._on_partition_error(partition, cause_from_code(fetched.error_code), now)
            return None
        if fetched.preferred_replica not in (-1, self._node):
            # The leader names a nearer replica and sends no records (KIP-392).
            partition.replica = fetched.preferred_replica
            partition.replica_until = now + REPLICA_LEASE_S
            # The replica may lead nothing that is read here, and then it has no loops yet.
            self._fetcher.ensure_fetch_loops(partition.replica)
            return None
        assert partition.target is not None
        if partition.target.offset != reader.position.offset:
            return None  # the position jumped after the request was sent
        if not fetched.records:  # the usual case: most partitions of most responses
            nothing: DecodedSlice = _tuple_new(
                DecodedSlice, ((), partition.target.offset, NO_EPOCH, 0, None)
            )
            self._deliver_slice(partition, fetched, nothing, now)
            return None
        decoding = RecordSetDecoder(
            partition.tp,
            fetched.records,
            partition.target.offset,
            aborted=fetched.aborted_transactions,
            read_committed=partition.read_committed,
            high_watermark=fetched.high_watermark,
        )
        first = decoding.read_slice(BULK_SLICE_RECORDS if self._is_catch_up else MAX_SLICE_RECORDS)
        self._fetcher.reads.bytes[partition.tp.topic] += len(fetched.records)
        # A catch-up read gets the whole response at once. A shared read gets the first slice now,
        # so that clients need not wait for the rest to be decoded.
        if self._is_catch_up and not decoding.is_done:
            return partial(self._gather_rest, partition, fetched, decoding, first)
        can_continue = self._deliver_slice(partition, fetched, first, now)
        if decoding.is_done or not can_continue:
            return None
        return partial(self._read_rest, partition, fetched, decoding)

    async def _gather_rest(
        self,
        partition: PartitionFetch,
        fetched: FetchedPartition,
        decoding: RecordSetDecoder,
        first: DecodedSlice,
        is_current: Callable[[], bool],
    ) -> None:
        decoded = await gather_slices(decoding, self._fetcher.cluster.decompression_slot, first)
        if is_current():
            partition.reader.last_response_at = now = self._fetcher.now()
            self._deliver_slice(partition, fetched, decoded, now)

    async def _read_rest(
        self,
        partition: PartitionFetch,
        fetched: FetchedPartition,
        decoding: RecordSetDecoder,
        is_current: Callable[[], bool],
    ) -> None:
        """Deliver the rest of a response slice by slice, as long as it is still wanted."""
        await self._fetcher.pause()
        async with aclosing(
            iter_slices(decoding, self._fetcher.cluster.decompression_slot)
        ) as slices:
            async for decoded in slices:
                if not is_current():
                    return
                partition.reader.last_response_at = now = self._fetcher.now()
                if not self._deliver_slice(partition, fetched, decoded, now):
                    return
                await self._fetcher.pause()
                await asyncio.sleep(0)

    def _deliver_slice(
        self,
        partition: PartitionFetch,
        fetched: FetchedPartition,
        decoded: DecodedSlice,
        now: float,
    ) -> bool:
        """Deliver one slice; return False if the rest of the response must be fetched again."""
        assert partition.target is not None
        reader = partition.reader
        entries: Sequence[Entry] = decoded.entries
        next_offset, epoch = decoded.next_offset, decoded.last_epoch
        # An error behind records that could be read is ignored: the next fetch starts there, and
        # then the error is at the offset that was asked for.
        if decoded.error is not None and next_offset == partition.target.offset:
            gap = self._handle_corruption(partition, fetched, decoded.error, now)
            if gap is None:
                return False
            entries, next_offset, epoch = [gap], gap.next_offset, gap.epoch
        partition.failures = 0
        reads, topic = self._fetcher.reads, reader.tp.topic
        model, load_schemas = self._fetcher.get_topic_model(topic), None
        if model is not None:
            entries, load_schemas = model(entries)
            if load_schemas is not None:
                # The model stopped at a record whose schema is not loaded. What precedes it is
                # delivered first; the next fetch begins with that record and loads the schema.
                if not entries:
                    load = load_schemas
                    self._fetcher.start_work(partition, lambda _: load())
                    return False
                next_offset, epoch = entries[-1].next_offset, entries[-1].epoch
        reads.records[topic] += len(entries)
        high, stable = fetched.high_watermark, fetched.last_stable_offset
        # The end of what this read may get: an uncommitted one is not bound by open transactions.
        end = stable if partition.read_committed and stable >= 0 else high
        start = fetched.log_start_offset
        self._apply_fetched(
            partition,
            _tuple_new(core.FetchResult, (entries, next_offset, epoch, high, end, start)),
            now,
        )
        return load_schemas is None

    def _handle_corruption(
        self, partition: PartitionFetch, fetched: FetchedPartition, error: str, now: float
    ) -> Entry | None:
        """Handle a batch whose length makes no sense, so that the next batch cannot be found.

        The data may have been damaged on its way, so it is fetched again; after
        MAX_CORRUPT_ATTEMPTS fetches, the result is a gap up to the end of the log.
        """
        partition.failures += 1
        reader = partition.reader
        log.warning(
            "%s at %s: %s", reader.tp, reader.position.offset, error, extra=reader.tp._asdict()
        )
        if partition.failures < MAX_CORRUPT_ATTEMPTS:
            self._fetcher.deliver_entries(partition, reader.on_error(Cause.CORRUPT, now))
            return None
        offset, epoch, _ = reader.position
        assert offset is not None
        end = max(offset + 1, fetched.last_stable_offset, fetched.high_watermark)
        return Gap(reader.tp, offset, end, epoch, GapReason.CORRUPT)

    def _apply_fetched(
        self, partition: PartitionFetch, fetched: core.FetchResult, now: float
    ) -> None:
        previous_cause, position = partition.reader.cause, partition.reader.position
        entries = partition.reader.on_fetch(fetched, now)
        if previous_cause is not None:
            partition.log_state()
            self._note_resumed(partition.tp, previous_cause)
            self._fetcher.mark_newcomer(partition)
            if previous_cause is Cause.DENIED:
                topic = format_topic_label(partition.tp.topic)
                self._fetcher.cluster.outages.report_recovery(topic, "may be read again")
                self._fetcher.retry_topic(partition.tp.topic)
        if entries:
            try:
                self._fetcher.deliver_entries(partition, entries)
            except Exception:
                partition.reader.position = position  # so that nothing is lost
                raise

    def _note_resumed(self, tp: TopicPartition, cause: Cause) -> None:
        if not self._resumed_by_cause:
            self._loop.call_later(RESUMED_LOG_DELAY_S, self._log_resumed)
        self._resumed_by_cause.setdefault(cause, []).append(tp)

    def _log_resumed(self) -> None:
        resumed, self._resumed_by_cause = self._resumed_by_cause, {}
        for cause, tps in resumed.items():
            extra = {"broker": self._node, "cause": cause}
            if len(tps) == 1:
                what = f"topic={tps[0].topic} partition={tps[0].partition}"
                extra |= tps[0]._asdict()
            else:
                what = f"broker={self._node}: {len(tps)} partitions"
            log.info("FETCH resumed %s after cause=%s", what, cause, extra=extra)

    def _restart_stalled(self, fetch_round: FetchRound, partition: PartitionFetch) -> None:
        """Start the fetch session over for a partition whose known records do not come.

        Either the two sides differ about the session, or the broker or the replica cannot serve the
        records that it has announced.
        """
        reader = partition.reader
        log.warning(
            "no progress on %s at offset %s; starting a new fetch session",
            reader.tp,
            reader.position.offset,
            extra=reader.tp._asdict(),
        )
        # The new session gets the whole time of a stall, too, before it counts as stalled.
        reader.last_progress_at, partition.replica = reader.last_response_at, None
        fetch_round.session.reset()
        self._fetcher.cluster.metadata.request_refresh(f"{reader.tp} makes no progress")

    def _on_partition_error(self, partition: PartitionFetch, cause: Cause, now: float) -> None:
        # A follower may be behind, so its errors prove nothing: ask the leader first.
        if partition.replica is not None:
            partition.replica = None
            return
        self._fetcher.on_request_failed(partition, cause, None)
        if cause is Cause.DENIED:
            detail = "the gateway may not read it; allow it READ"
            self._fetcher.cluster.outages.report_failure(
                format_topic_label(partition.tp.topic), cause, detail
            )
        if RECOVERY_RULES[cause].action in (RecoveryAction.REFRESH, RecoveryAction.WATCH_METADATA):
            self._fetcher.cluster.metadata.request_refresh(f"{partition.tp}: {cause}")

    def _on_request_failed(self, fetch_round: FetchRound, exc: KafkaError) -> None:
        cause = cause_from_code(code_from_error(exc))
        # The connection to the broker has a backoff of its own. Adding that of each partition would
        # bring the partition back late, so the broker's delay replaces it.
        is_broker_failure = isinstance(exc, (BrokerUnavailable, AuthenticationFailed))
        delay = exc.retry_after if is_broker_failure else None
        self._fetcher.report_broker_failure(self._node, exc)
        self._fail_partitions(
            fetch_round, cause, None if delay is None else max(delay, MIN_BROKER_DELAY_S)
        )
        self._fetcher.cluster.metadata.request_refresh(f"broker {self._node}: {cause}")

    def _fail_partitions(self, fetch_round: FetchRound, cause: Cause, delay: float | None) -> None:
        for partition in list(fetch_round.partitions.values()):
            if partition.in_flight is fetch_round:
                partition.replica = None
                self._fetcher.on_request_failed(partition, cause, delay)
