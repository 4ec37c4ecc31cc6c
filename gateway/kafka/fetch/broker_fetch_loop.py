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
from gateway.core.log.partition_reader import FetchCommand, PartitionReader
from gateway.core.log.record import NO_EPOCH, Entry, Gap, GapReason, TopicPartition
from gateway.core.log.recovery import RECOVERY_RULES, Cause, RecoveryAction, cause_from_code
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchTarget

from .batches import BULK_SLICE_RECORDS, gather_slices, iter_slices
from .decoding import MAX_SLICE_RECORDS, DecodedSlice, RecordSetDecoder
from .fetch import MAX_CORRUPT_ATTEMPTS, REPLICA_LEASE_S, SWEEP_INTERVAL_S, FetchRound, FetchSession
from .partition_fetch import PartitionFetch, PartitionWork

if TYPE_CHECKING:
    from .fetcher import Fetcher

log = logging.getLogger(__name__)

_tuple_new = tuple.__new__  # 0.2 us less than `core.FetchResult(...)`

NEWCOMER_S = 1.0  # seconds for which a partition counts as a newcomer
RESUMED_LOG_DELAY_S = 0.5  # seconds for which partitions that resume share one log line
OVERDUE_S = 0.5  # seconds a response may be late before metadata is asked for another leader
MAX_RESPONSE_BYTES = 1 << 20  # of one response: 5,000 records of 200 bytes decode in 10 ms
YIELD_BYTES = 64 << 10  # after decoding more than this, other tasks of the event loop run
MIN_BROKER_DELAY_S = 0.02  # seconds to wait at least where the broker's own backoff decides
FAILED_LOOP_DELAY_S = 1.0  # seconds until a loop goes on after an error that nobody expects
# Seconds for which a broker may hold a fetch back while another request waits for its end.
CONTENDED_MAX_WAIT_S = 0.1


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
        self._committed_round = FetchRound(READ_COMMITTED, create_session())
        self._uncommitted_round = FetchRound(READ_UNCOMMITTED, create_session())
        self._rounds = (self._committed_round, self._uncommitted_round)

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
                for fetch_round in self._rounds:
                    self._fail_partitions(fetch_round, Cause.UNEXPECTED, None)
                await asyncio.sleep(FAILED_LOOP_DELAY_S)

    async def _fetch_due(self) -> None:
        # Cleared before the look at what is due: what becomes due from here on sets it again.
        self.wake.clear()
        now = self._fetcher.now()
        self._join_due(now)
        mixed = all(fetch_round.partition_fetches for fetch_round in self._rounds)
        if any(fetch_round.partition_fetches for fetch_round in self._rounds):
            self.is_busy = True
            # One after the other: the loop has one connection, on which the broker answers in
            # order.
            for fetch_round in self._rounds:
                if fetch_round.partition_fetches:
                    await self._run_round(fetch_round, mixed=mixed)
            self.is_busy = False
            await self._fetcher.pause()
        else:
            await self._wait_until_due(now)

    def _join_due(self, now: float) -> None:
        # While the main loop waits for nothing it takes newcomers itself, at once.
        if self._main_loop is not None and not self._main_loop.is_busy:
            return
        for partition_fetch in list(self._fetcher.idle_fetches.values()):
            if self._can_carry(partition_fetch, now) and self._is_due(partition_fetch, now):
                del self._fetcher.idle_fetches[partition_fetch.reader.tp]
                (
                    self._committed_round
                    if partition_fetch.read_committed
                    else self._uncommitted_round
                ).add_partition(partition_fetch)

    def _can_carry(self, partition_fetch: PartitionFetch, now: float) -> bool:
        """Return whether this loop may fetch a partition: the second one only newcomers."""
        return (
            self._main_loop is None
            or now - partition_fetch.newcomer_at < NEWCOMER_S
            or partition_fetch.reader.has_unreported_change
        )

    def _is_due(self, partition_fetch: PartitionFetch, now: float) -> bool:
        return (
            partition_fetch.choose_node(now) == self._node
            and type(partition_fetch.reader.next_command(now)) is FetchCommand
        )

    async def _wait_until_due(self, now: float) -> None:
        waits = [
            partition_fetch.reader.retry_at - now
            for partition_fetch in self._fetcher.idle_fetches.values()
            if partition_fetch.choose_node(now) == self._node
            and partition_fetch.reader.retry_at > now
        ]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self.wake.wait()
        except TimeoutError:
            pass

    async def _run_round(self, fetch_round: FetchRound, *, mixed: bool) -> None:
        try:
            responses = await self._send_fetch(
                fetch_round, self._choose_max_wait(fetch_round, mixed)
            )
        except KafkaError as exc:
            self._on_request_failed(fetch_round, exc)
            return
        self._fetcher.report_broker_recovery(self._node)
        for tp, fetched in responses.items():
            partition_fetch = fetch_round.partition_fetches.get(tp)
            if partition_fetch is None:
                continue  # removed or released while the request was under way
            partition_fetch.reader.last_response_at = now = self._fetcher.now()
            try:
                rest = self._on_partition_response(partition_fetch, fetched, now)
                # Delivering may have released it: its receiver may have removed or replaced the
                # partition.
                if rest is not None and partition_fetch.in_flight is fetch_round:
                    self._fetcher.start_work(partition_fetch, rest)
                self._requeue(fetch_round, partition_fetch, now)
            except Exception:  # the other partitions of the response have done nothing
                log.exception("reading %s failed unexpectedly; it is tried again", tp)
                if partition_fetch.in_flight is fetch_round:
                    self._fetcher.on_request_failed(partition_fetch, Cause.UNEXPECTED, None)
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

    async def _send_fetch(
        self, fetch_round: FetchRound, max_wait: float
    ) -> dict[TopicPartition, FetchedPartition]:
        fetcher = self._fetcher
        self._overdue_timer = self._loop.call_later(fetcher.max_wait + OVERDUE_S, self._on_overdue)
        try:
            return await fetcher.cluster.fetch(
                self._node,
                self._role,
                fetch_round.session,
                max_wait=max_wait,
                max_bytes=MAX_RESPONSE_BYTES,
                isolation_level=fetch_round.isolation,
            )
        finally:
            self._overdue_timer.cancel()

    def _on_overdue(self) -> None:
        """Ask for metadata, as another broker may lead by now: a frozen one does not say so."""
        self._fetcher.cluster.metadata.request_refresh(f"broker {self._node} is silent")
        self._overdue_timer = self._loop.call_later(OVERDUE_S, self._on_overdue)

    def _choose_max_wait(self, fetch_round: FetchRound, mixed: bool) -> float:
        """Return for how many seconds the broker may hold the request back.

        That is 0 while a partition is to report that it can be read, and short while another
        request (for newcomers, or of the other isolation level) waits for this one.
        """
        if fetch_round.has_unsettled:
            return 0.0
        max_wait = self._fetcher.max_wait
        is_contended = mixed or self._fetcher.has_newcomers
        return min(CONTENDED_MAX_WAIT_S, max_wait) if is_contended else max_wait

    def _sweep_partitions(
        self, fetch_round: FetchRound, responses: Collection[TopicPartition], now: float
    ) -> None:
        """Treat every partition of the round as answered, and detect those that are stalled.

        The response of a fetch session leaves out partitions without news (KIP-227): they can be
        read.
        """
        fetch_round.swept_at, fetch_round.has_unsettled = now, False
        for tp, partition_fetch in list(fetch_round.partition_fetches.items()):
            reader = partition_fetch.reader
            reader.last_response_at = now
            if reader.has_unreported_change and tp not in responses:
                self._apply_fetched(partition_fetch, _build_empty_fetched(reader), now)
            if reader.is_stalled(now):
                self._restart_stalled(fetch_round, partition_fetch)
            self._requeue(fetch_round, partition_fetch, now)

    def _requeue(
        self, fetch_round: FetchRound, partition_fetch: PartitionFetch, now: float
    ) -> None:
        if partition_fetch.in_flight is not fetch_round:
            return
        if self._main_loop is None and self._is_due(partition_fetch, now):
            fetch_round.update_partition(partition_fetch)
        else:
            # After one response a newcomer is left to the main loop, which `wake_loops` wakes in
            # case that it is idle.
            self._fetcher.release(partition_fetch)
            self._fetcher.wake_loops()

    # Responses.

    def _on_partition_response(
        self, partition_fetch: PartitionFetch, fetched: FetchedPartition, now: float
    ) -> PartitionWork | None:
        """Deliver the records of one partition; return the work that delivers the rest later."""
        reader = partition_fetch.reader
        if fetched.error_code:
            self._on_partition_error(partition_fetch, cause_from_code(fetched.error_code), now)
            return None
        if fetched.preferred_replica not in (-1, self._node):
            # The leader names a nearer replica and sends no records (KIP-392).
            partition_fetch.replica, partition_fetch.replica_until = (
                fetched.preferred_replica,
                now + REPLICA_LEASE_S,
            )
            # The replica may lead nothing that is read here, and then it has no loops yet.
            self._fetcher.ensure_fetch_loops(partition_fetch.replica)
            return None
        assert partition_fetch.want is not None
        if partition_fetch.want.offset != reader.position.offset:
            return None  # the position jumped after the request was sent
        if not fetched.records:  # the usual case: most partitions of most responses
            nothing: DecodedSlice = _tuple_new(
                DecodedSlice, ((), partition_fetch.want.offset, NO_EPOCH, 0, None)
            )
            self._deliver_slice(partition_fetch, fetched, nothing, now)
            return None
        return self._deliver_records(partition_fetch, partition_fetch.want, fetched, now)

    def _deliver_records(
        self,
        partition_fetch: PartitionFetch,
        want: FetchTarget,
        fetched: FetchedPartition,
        now: float,
    ) -> PartitionWork | None:
        reader = partition_fetch.reader
        decoding = RecordSetDecoder(
            reader.tp,
            fetched.records,
            want.offset,
            aborted=fetched.aborted_transactions,
            read_committed=partition_fetch.read_committed,
            high_watermark=fetched.high_watermark,
        )
        first = decoding.read_slice(BULK_SLICE_RECORDS if self._is_catch_up else MAX_SLICE_RECORDS)
        self._fetcher.reads.bytes[reader.tp.topic] += len(fetched.records)
        if decoding.is_done:
            self._deliver_slice(partition_fetch, fetched, first, now)
            return None
        # A catch-up read gets the whole response at once. A shared read gets the first slice now,
        # so that clients need not wait for the rest to be decoded.
        if self._is_catch_up:
            return partial(self._gather_rest, partition_fetch, fetched, decoding, first)
        if not self._deliver_slice(partition_fetch, fetched, first, now):
            return None
        return partial(self._read_rest, partition_fetch, fetched, decoding)

    async def _gather_rest(
        self,
        partition_fetch: PartitionFetch,
        fetched: FetchedPartition,
        decoding: RecordSetDecoder,
        first: DecodedSlice,
        is_current: Callable[[], bool],
    ) -> None:
        decoded = await gather_slices(decoding, self._fetcher.cluster.decompression_slot, first)
        if is_current():
            partition_fetch.reader.last_response_at = now = self._fetcher.now()
            self._deliver_slice(partition_fetch, fetched, decoded, now)

    async def _read_rest(
        self,
        partition_fetch: PartitionFetch,
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
                partition_fetch.reader.last_response_at = now = self._fetcher.now()
                if not self._deliver_slice(partition_fetch, fetched, decoded, now):
                    return
                await self._fetcher.pause()
                await asyncio.sleep(0)

    def _deliver_slice(
        self,
        partition_fetch: PartitionFetch,
        fetched: FetchedPartition,
        decoded: DecodedSlice,
        now: float,
    ) -> bool:
        """Deliver one slice; return False if the rest of the response must be fetched again."""
        assert partition_fetch.want is not None
        reader = partition_fetch.reader
        entries: Sequence[Entry] = decoded.entries
        next_offset, epoch = decoded.next_offset, decoded.last_epoch
        # An error behind records that could be read is ignored: the next fetch starts there, and
        # then the error is at the offset that was asked for.
        if decoded.error is not None and next_offset == partition_fetch.want.offset:
            gap = self._handle_corruption(partition_fetch, fetched, decoded.error, now)
            if gap is None:
                return False
            entries, next_offset, epoch = [gap], gap.next_offset, gap.epoch
        partition_fetch.failures = 0
        reads, topic = self._fetcher.reads, reader.tp.topic
        model, load_schemas = self._fetcher.get_topic_model(topic), None
        if model is not None:
            entries, load_schemas = model(entries)
            if load_schemas is not None:
                # The model stopped at a record whose schema is not loaded. What precedes it is
                # delivered first; the next fetch begins with that record and loads the schema.
                if not entries:
                    load = load_schemas
                    self._fetcher.start_work(partition_fetch, lambda _: load())
                    return False
                next_offset, epoch = entries[-1].next_offset, entries[-1].epoch
        reads.records[topic] += len(entries)
        high, stable = fetched.high_watermark, fetched.last_stable_offset
        # The end of what this read may get: an uncommitted one is not bound by open transactions.
        end = stable if partition_fetch.read_committed and stable >= 0 else high
        start = fetched.log_start_offset
        self._apply_fetched(
            partition_fetch,
            _tuple_new(core.FetchResult, (entries, next_offset, epoch, high, end, start)),
            now,
        )
        return load_schemas is None

    def _handle_corruption(
        self, partition_fetch: PartitionFetch, fetched: FetchedPartition, error: str, now: float
    ) -> Entry | None:
        """Handle a batch whose length makes no sense, so that the next batch cannot be found.

        The data may have been damaged on its way, so it is fetched again; after
        MAX_CORRUPT_ATTEMPTS fetches, the result is a gap up to the end of the log.
        """
        partition_fetch.failures += 1
        reader = partition_fetch.reader
        log.warning(
            "%s at %s: %s", reader.tp, reader.position.offset, error, extra=reader.tp._asdict()
        )
        if partition_fetch.failures < MAX_CORRUPT_ATTEMPTS:
            self._fetcher.deliver_entries(partition_fetch, reader.on_error(Cause.CORRUPT, now))
            return None
        offset = reader.position.offset
        assert offset is not None
        end = max(offset + 1, fetched.last_stable_offset, fetched.high_watermark)
        return Gap(reader.tp, offset, end, reader.position.epoch, GapReason.CORRUPT)

    def _apply_fetched(
        self, partition_fetch: PartitionFetch, fetched: core.FetchResult, now: float
    ) -> None:
        previous_cause, position = partition_fetch.reader.cause, partition_fetch.reader.position
        entries = partition_fetch.reader.on_fetch(fetched, now)
        if previous_cause is not None:
            partition_fetch.log_state()
            self._note_resumed(partition_fetch.reader.tp, previous_cause)
            self._fetcher.mark_newcomer(partition_fetch)
            if previous_cause is Cause.DENIED:
                topic = format_topic_label(partition_fetch.reader.tp.topic)
                self._fetcher.cluster.outages.report_recovery(topic, "may be read again")
                self._fetcher.retry_topic(partition_fetch.reader.tp.topic)
        if entries:
            try:
                self._fetcher.deliver_entries(partition_fetch, entries)
            except Exception:
                partition_fetch.reader.position = position  # so that nothing is lost
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

    def _restart_stalled(self, fetch_round: FetchRound, partition_fetch: PartitionFetch) -> None:
        """Start the fetch session over for a partition whose known records do not come.

        Either the two sides differ about the session, or the broker or the replica cannot serve the
        records that it has announced.
        """
        reader = partition_fetch.reader
        log.warning(
            "no progress on %s at offset %s; starting a new fetch session",
            reader.tp,
            reader.position.offset,
            extra=reader.tp._asdict(),
        )
        # The new session gets the whole time of a stall, too, before it counts as stalled.
        reader.last_progress_at, partition_fetch.replica = reader.last_response_at, None
        fetch_round.session.reset()
        self._fetcher.cluster.metadata.request_refresh(f"{reader.tp} makes no progress")

    def _on_partition_error(
        self, partition_fetch: PartitionFetch, cause: Cause, now: float
    ) -> None:
        # A follower may be behind, so its errors prove nothing: ask the leader first.
        if partition_fetch.replica is not None:
            partition_fetch.replica = None
            return
        self._fetcher.on_request_failed(partition_fetch, cause, None)
        if cause is Cause.DENIED:
            detail = "the gateway may not read it; allow it READ"
            self._fetcher.cluster.outages.report_failure(
                format_topic_label(partition_fetch.reader.tp.topic), cause, detail
            )
        if RECOVERY_RULES[cause].action in (RecoveryAction.REFRESH, RecoveryAction.WATCH_METADATA):
            self._fetcher.cluster.metadata.request_refresh(f"{partition_fetch.reader.tp}: {cause}")

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
        for partition_fetch in list(fetch_round.partition_fetches.values()):
            if partition_fetch.in_flight is fetch_round:
                partition_fetch.replica = None
                self._fetcher.on_request_failed(partition_fetch, cause, delay)


def _build_empty_fetched(reader: PartitionReader) -> core.FetchResult:
    offset = reader.position.offset
    assert offset is not None
    return core.FetchResult(
        (), offset, reader.position.epoch, reader.high_watermark,
        reader.last_stable_offset, reader.log_start_offset,
    )  # fmt: skip
