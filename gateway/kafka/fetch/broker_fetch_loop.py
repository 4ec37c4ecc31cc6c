"""One conversation of fetches with one broker: ask for all that is due there, hand on, repeat.

Kafka holds a fetch back until there is something, so one that waits cannot take in a
partition that came meanwhile. A broker therefore has two lanes: the main one, and one for
newcomers, which carries them until the main one comes round. A newcomer is also one whose
leader changed, or that could not be read for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from gateway.core.log import partition_reader as core
from gateway.core.log.partition_reader import FetchCommand, PartitionReader
from gateway.core.log.position import NO_EPOCH
from gateway.core.log.record import Entry, Gap, GapReason, TopicPartition
from gateway.core.log.recovery import RECOVERY_RULES, Cause, RecoveryAction, cause_from_code
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, code_from_error
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.protocol.fetch_messages import FetchedPartition
from gateway.telemetry.counts import FetchCounts

from .batches import BULK_SLICE_RECORDS, gather_slices, iter_slices
from .decoding import MAX_SLICE_RECORDS, DecodedSlice, RecordSetDecoder
from .fetch_round import SWEEP_INTERVAL_S, FetchRound
from .fetch_sessions import FetchSession
from .partition_fetch import DeliverRest, PartitionFetch
from .topic_model import TopicModel

log = logging.getLogger(__name__)

_new = tuple.__new__  # 0.2 us less than `core.Fetched(...)`

NEWCOMER_S = 1.0  # seconds for which a partition counts as one
REPLICA_LEASE_S = 300.0  # seconds for which a nearer replica is read (KIP-392)
RESUMED_LOG_DELAY_S = 0.5  # for which partitions that resume are gathered for one line of the log
OVERDUE_S = 0.5  # seconds a fetch may be late before metadata is asked for another leader
MAX_RESPONSE_BYTES = 1 << 20  # of one answer: 5,000 records of 200 bytes decode in 10 ms


class FetchLoopOwner(Protocol):
    """Define what a fetch loop needs of the `Fetcher` that owns it.

    Attributes:
        cluster: The cluster whose connections, metadata and outages are used.
        reads: The counters of bytes and records by topic.
        idle_fetches: The partitions that no loop has in a request. A loop removes those that it
            asks for; the owner puts them back when they are released.
        now: The clock of the event loop, in seconds.
        pause: Awaited between two responses, so that others get their turn.
        get_topic_model: Returns how the entries of a topic are decoded; None leaves them as they are.
    """

    cluster: Cluster
    reads: FetchCounts
    idle_fetches: dict[TopicPartition, PartitionFetch]
    now: Callable[[], float]
    pause: Callable[[], Awaitable[None]]
    get_topic_model: Callable[[str], TopicModel | None]

    @property
    def max_wait(self) -> float:
        """Return for how many seconds a broker may hold a fetch back."""

    @property
    def has_newcomers(self) -> bool:
        """Return whether a partition was added that the main loops may not carry yet."""

    def wake_loops(self) -> None:
        """Let every loop look for partitions that are due."""

    def ensure_fetch_loops(self, node: int) -> None:
        """Start the loops of a broker, unless they run."""

    def mark_newcomer(self, partition_fetch: PartitionFetch) -> None:
        """Let the newcomers' loop carry a partition for a while."""

    def release(self, partition_fetch: PartitionFetch) -> None:
        """Take a partition out of the request that it is in."""

    def deliver_entries(self, partition_fetch: PartitionFetch, entries: Sequence[Entry]) -> None:
        """Deliver what a partition brought, unless it was removed meanwhile."""

    def start_rest(self, partition_fetch: PartitionFetch, rest: DeliverRest) -> None:
        """Deliver the rest of a large response in the background."""

    def start_schema_load(
        self, partition_fetch: PartitionFetch, load_schemas: Callable[[], Awaitable[None]]
    ) -> None:
        """Load schemas before the partition is fetched again."""

    def on_request_failed(
        self, partition_fetch: PartitionFetch, cause: Cause, delay: float | None
    ) -> None:
        """Schedule the partition's next request after a failure."""

    def retry_topic(self, topic: str) -> None:
        """Let all partitions of a topic be asked for at once."""

    def refresh_metadata(self, reason: str) -> None:
        """Ask for metadata once, however many partitions want it."""

    def report_broker_failure(self, node: int, error: KafkaError) -> None:
        """Log that a broker is lost, once."""

    def report_broker_recovery(self, node: int) -> None:
        """Log that a lost broker answers again, once."""


class BrokerFetchLoop:
    """See the module. `main` is None for the main lane itself."""

    def __init__(
        self,
        fetcher: FetchLoopOwner,
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
        self._is_catch_up = (
            role is ConnectionRole.CATCHUP
        )  # one who reads back takes one answer at a time
        self._loop = asyncio.get_running_loop()
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._resumed_by_cause: dict[Cause, list[TopicPartition]] = {}
        made = FetchSession if role is ConnectionRole.TAIL else FetchSession.create_sessionless
        self._committed_round = FetchRound(READ_COMMITTED, made())
        self._uncommitted_round = FetchRound(READ_UNCOMMITTED, made())
        self._rounds = (self._committed_round, self._uncommitted_round)

    async def run(self) -> None:
        while True:
            self.wake.clear()
            now = self._fetcher.now()
            self._join_due(now)
            mixed = all(each.partition_fetches for each in self._rounds)
            if any(each.partition_fetches for each in self._rounds):
                self.is_busy = True
                for each in self._rounds:
                    if each.partition_fetches:
                        await self._run_round(each, mixed=mixed)
                self.is_busy = False
                await self._fetcher.pause()
            else:
                await self._wait_until_due(now)

    def _join_due(self, now: float) -> None:
        """Those that are due and for whom nothing is under way take part from now on."""
        if self._main_loop is not None and not self._main_loop.is_busy:
            return
        for job in list(self._fetcher.idle_fetches.values()):
            if self._can_carry(job, now) and self._is_due(job, now):
                del self._fetcher.idle_fetches[job.reader.tp]
                (
                    self._committed_round if job.read_committed else self._uncommitted_round
                ).add_partition(job)

    def _can_carry(self, partition_fetch: PartitionFetch, now: float) -> bool:
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
            job.reader.retry_at - now
            for job in self._fetcher.idle_fetches.values()
            if job.choose_node(now) == self._node and job.reader.retry_at > now
        ]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self.wake.wait()
        except TimeoutError:
            pass

    async def _run_round(self, fetch_round: FetchRound, *, mixed: bool) -> None:
        try:
            answers = await self._send_fetch(fetch_round, self._choose_max_wait(fetch_round, mixed))
        except KafkaError as exc:
            self._on_request_failed(fetch_round, exc)
            return
        self._fetcher.report_broker_recovery(self._node)
        for tp, fetched in answers.items():
            job = fetch_round.partition_fetches.get(tp)
            if job is None:
                continue  # it moved on meanwhile
            job.reader.last_response_at = now = self._fetcher.now()
            rest = self._on_partition_response(job, fetched, now)
            if rest is not None and job.in_flight is fetch_round:
                self._fetcher.start_rest(job, rest)
            self._requeue(fetch_round, job, now)
            if len(fetched.records) > 65536:
                await asyncio.sleep(0)  # decoding is our loop's time
        now = self._fetcher.now()
        if (
            fetch_round.has_unsettled
            or now - fetch_round.swept_at >= SWEEP_INTERVAL_S
            or self._main_loop is not None
        ):
            self._sweep_partitions(fetch_round, answers, now)

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
        """The answer is overdue: perhaps another broker leads by now."""
        self._fetcher.refresh_metadata(f"broker {self._node} is silent")
        self._overdue_timer = self._loop.call_later(OVERDUE_S, self._on_overdue)

    def _choose_max_wait(self, fetch_round: FetchRound, mixed: bool) -> float:
        """Do not wait for records while somebody wants to hear that it can be read, nor long
        while another fetch (newcomers', or of the other isolation) waits to go out."""
        if fetch_round.has_unsettled:
            return 0.0
        most = self._fetcher.max_wait
        return min(0.1, most) if mixed or self._fetcher.has_newcomers else most

    def _sweep_partitions(
        self, fetch_round: FetchRound, answers: Collection[TopicPartition], now: float
    ) -> None:
        """The broker has answered for all of them, also for those of whom it said nothing."""
        fetch_round.swept_at, fetch_round.has_unsettled = now, False
        for tp, job in list(fetch_round.partition_fetches.items()):
            reading = job.reader
            reading.last_response_at = now
            if reading.has_unreported_change and tp not in answers:
                self._apply_fetched(job, _build_empty_fetched(reading), now)
            if reading.is_stalled(now):
                self._restart_stalled(fetch_round, job)
            self._requeue(fetch_round, job, now)

    def _requeue(
        self, fetch_round: FetchRound, partition_fetch: PartitionFetch, now: float
    ) -> None:
        """The next fetch asks for it, too, unless it needs something else by now."""
        if partition_fetch.in_flight is not fetch_round:
            return
        if self._main_loop is None and self._is_due(partition_fetch, now):
            fetch_round.update_partition(partition_fetch)
        else:  # a newcomer is the main lane's next, also where that had nothing to do by now
            self._fetcher.release(partition_fetch)
            self._fetcher.wake_loops()

    # what came

    def _on_partition_response(
        self, partition_fetch: PartitionFetch, fetched: FetchedPartition, now: float
    ) -> DeliverRest | None:
        """Hand over what came. What is returned reads the rest, where it is too much at once."""
        reading = partition_fetch.reader
        if fetched.error_code:
            self._on_partition_error(partition_fetch, cause_from_code(fetched.error_code), now)
            return None
        if fetched.preferred_replica not in (-1, self._node):
            partition_fetch.replica, partition_fetch.replica_until = (
                fetched.preferred_replica,
                now + REPLICA_LEASE_S,
            )
            self._fetcher.ensure_fetch_loops(
                partition_fetch.replica
            )  # it may lead nothing that is read here
            return None
        assert partition_fetch.want is not None
        if partition_fetch.want.offset != reading.position.offset:
            return None
        if not fetched.records:  # as of most partitions of most answers
            nothing: DecodedSlice = _new(
                DecodedSlice, ((), partition_fetch.want.offset, NO_EPOCH, 0, None)
            )
            self._deliver_slice(partition_fetch, fetched, nothing, now)
            return None
        decoding = RecordSetDecoder(
            reading.tp,
            fetched.records,
            partition_fetch.want.offset,
            aborted=fetched.aborted_transactions,
            read_committed=partition_fetch.read_committed,
            high_watermark=fetched.high_watermark,
        )
        first = decoding.read_slice(BULK_SLICE_RECORDS if self._is_catch_up else MAX_SLICE_RECORDS)
        self._fetcher.reads.bytes[reading.tp.topic] += len(fetched.records)
        if decoding.is_done:
            self._deliver_slice(partition_fetch, fetched, first, now)
            return None
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
        decoded = await gather_slices(decoding, self._fetcher.cluster.inflation, first)
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
        await self._fetcher.pause()
        async with aclosing(iter_slices(decoding, self._fetcher.cluster.inflation)) as some:
            async for decoded in some:
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
        """Hand over a slice. False: what comes after it is to be fetched again."""
        assert partition_fetch.want is not None
        reading = partition_fetch.reader
        entries: Sequence[Entry] = decoded.entries
        after, epoch = decoded.next_offset, decoded.last_epoch
        if decoded.error is not None and after == partition_fetch.want.offset:
            damaged = self._handle_corruption(partition_fetch, fetched, decoded.error, now)
            if damaged is None:
                return False
            entries, after, epoch = [damaged], damaged.next_offset, damaged.epoch
        partition_fetch.failures = 0
        reads, topic = self._fetcher.reads, reading.tp.topic
        understand, ask = self._fetcher.get_topic_model(topic), None
        if understand is not None:
            entries, ask = understand(entries)
            if ask is not None:
                if not entries:
                    self._fetcher.start_schema_load(partition_fetch, ask)
                    return False
                after, epoch = entries[-1].next_offset, entries[-1].epoch
        reads.records[topic] += len(entries)
        high, stable = fetched.high_watermark, fetched.last_stable_offset
        end = stable if partition_fetch.read_committed and stable >= 0 else high
        start = fetched.log_start_offset
        self._apply_fetched(
            partition_fetch, _new(core.FetchResult, (entries, after, epoch, high, end, start)), now
        )
        return ask is None

    def _handle_corruption(
        self, partition_fetch: PartitionFetch, fetched: FetchedPartition, error: str, now: float
    ) -> Entry | None:
        """Not even the length of the batch makes sense: after three tries, say so and go on
        at the end; None while it is tried again."""
        partition_fetch.failures += 1
        reading = partition_fetch.reader
        log.warning(
            "%s at %s: %s", reading.tp, reading.position.offset, error, extra=reading.tp._asdict()
        )
        if partition_fetch.failures < 3:
            self._fetcher.deliver_entries(partition_fetch, reading.on_error(Cause.CORRUPT, now))
            return None
        offset = reading.position.offset
        assert offset is not None
        to = max(offset + 1, fetched.last_stable_offset, fetched.high_watermark)
        return Gap(reading.tp, offset, to, reading.position.epoch, GapReason.CORRUPT)

    def _apply_fetched(
        self, partition_fetch: PartitionFetch, fetched: core.FetchResult, now: float
    ) -> None:
        was = partition_fetch.reader.cause
        entries = partition_fetch.reader.on_fetch(fetched, now)
        if was is not None:
            self._note_resumed(partition_fetch.reader.tp, was)
            self._fetcher.mark_newcomer(partition_fetch)
            if was is Cause.DENIED:
                topic = format_topic_label(partition_fetch.reader.tp.topic)
                self._fetcher.cluster.outages.report_recovery(topic, "may be read again")
                self._fetcher.retry_topic(partition_fetch.reader.tp.topic)
        if entries:
            self._fetcher.deliver_entries(partition_fetch, entries)

    def _note_resumed(self, tp: TopicPartition, cause: Cause) -> None:
        """Have it said, in one line with all that resume at about the same time."""
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
        """Start the conversation over: what one of the two sides believes is wrong."""
        reading = partition_fetch.reader
        log.warning(
            "no progress on %s at offset %s; asking anew", reading.tp, reading.position.offset,
            extra=reading.tp._asdict(),
        )  # fmt: skip
        reading.last_progress_at, partition_fetch.replica = reading.last_response_at, None
        fetch_round.session.reset()
        self._fetcher.refresh_metadata(f"{reading.tp} makes no progress")

    def _on_partition_error(
        self, partition_fetch: PartitionFetch, cause: Cause, now: float
    ) -> None:
        if (
            partition_fetch.replica is not None
        ):  # a replica's word counts for nothing: ask the leader
            partition_fetch.replica = None
            return
        self._fetcher.on_request_failed(partition_fetch, cause, None)
        if cause is Cause.DENIED:
            why = "the gateway may not read it; allow it READ"
            self._fetcher.cluster.outages.report_failure(
                format_topic_label(partition_fetch.reader.tp.topic), cause, why
            )
        if RECOVERY_RULES[cause].action in (RecoveryAction.REFRESH, RecoveryAction.WATCH_METADATA):
            self._fetcher.refresh_metadata(f"{partition_fetch.reader.tp}: {cause}")

    def _on_request_failed(self, fetch_round: FetchRound, exc: KafkaError) -> None:
        cause = cause_from_code(code_from_error(exc))
        brokers_own = isinstance(exc, (BrokerUnavailable, AuthenticationFailed))
        delay = exc.retry_after if brokers_own else None
        self._fetcher.report_broker_failure(self._node, exc)
        for job in list(fetch_round.partition_fetches.values()):
            if job.in_flight is fetch_round:
                job.replica = None
                self._fetcher.on_request_failed(
                    job, cause, None if delay is None else max(delay, 0.02)
                )
        self._fetcher.refresh_metadata(f"broker {self._node}: {cause}")


def _build_empty_fetched(reader: PartitionReader) -> core.FetchResult:
    offset = reader.position.offset
    assert offset is not None
    return core.FetchResult(
        (), offset, reader.position.epoch, reader.high_watermark,
        reader.last_stable_offset, reader.log_start_offset,
    )  # fmt: skip
