"""Run one member of a group whose records are delivered to a back end, and its lanes.

Heartbeats do not depend on the back end: a slow back end pauses partitions and never costs the
membership. `maxPollInterval` is therefore no deadline of Kafka's here; a lane that has not moved
for so long is reported as stuck.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

import httpx

from gateway.config.sections.sidecar import Group as Settings
from gateway.core.group.partition_state import LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import AccessDenied, KafkaError, NotOwned
from gateway.kafka.client.offsets import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetAndTimestamp,
)
from gateway.kafka.group.consumer import GroupConsumer
from gateway.sidecar.context import Context, audit_gap, build_consumer_options
from gateway.telemetry.counts import Histogram

from .backend import BatchEncoder
from .lanes import LaneContext, LaneRunner, OffsetCommitter, ReactiveCounts, build_rules

log = logging.getLogger(__name__)

POLL_TIMEOUT_S = 5.0  # for a poll without records
RETRY_DELAY_S = 1.0  # before a group that cannot be read is tried again
LAG_INTERVAL_S = 10.0  # seconds between two measurements of the lag
END_OFFSETS_TIMEOUT_S = 2.0  # for Kafka to answer; without the ends, no lag is known
COMMIT_TIMEOUT_S = 5.0  # for the commit of revoked partitions, on top of revokeTimeout


class ReactiveGroup:
    """Read a group's records as a member, and distribute them over lanes.

    The component creates it and runs `run`. Each assigned partition belongs to one lane
    (`_runners_by_partition`), so its records keep their order. The consumer calls the methods
    `on_partitions_*`.

    Attributes:
        consumer: The member; None while the group does not run.
        counts: Counters for metrics, of all runs.
        lag_records: The last measured lag of this member's partitions, in offsets by topic.
    """

    def __init__(self, context: Context, settings: Settings, client: httpx.AsyncClient) -> None:
        self.settings = settings
        self.name = settings.group
        self.is_paused = False
        self.consumer: GroupConsumer | None = None
        self.counts = ReactiveCounts()
        self.lag_records: dict[str, int] = {}
        self.runners: list[LaneRunner] = []
        self.committer = OffsetCommitter(self.name, self._commit, context.cluster.outages)
        self._context = context
        self._client = client
        self._runners_by_partition: dict[TopicPartition, LaneRunner] = {}
        self._poll_failure: str | None = None  # why the last poll raised, or some partitions fail
        self._unreadable_labels: set[str] = set()  # of the outages that are in the log now

    @property
    def failure(self) -> str | None:
        # The member learns that it is refused before the next poll raises it.
        refusal = self.consumer.group_failure if self.consumer is not None else None
        return str(refusal) if refusal is not None else self._poll_failure

    async def run(self) -> None:
        """Run until cancelled; then finish or abandon batches in flight, and commit."""
        settings = self.settings
        consumer = self.consumer = self._create_consumer()
        lane_context = LaneContext.from_group(
            self._context, settings, self._client, self.committer,
            counts=self.counts, outages=self._context.cluster.outages,
        )  # fmt: skip
        self.runners = [
            LaneRunner(
                build_rules(settings),
                # It knows since when the batch of this lane waits for a schema.
                replace(
                    lane_context,
                    encoder=BatchEncoder(self._context.codecs, self._context.section, settings),
                ),
                self._update_pauses,
                number,
            )
            for number in range(settings.parallelism)
        ]
        for runner in self.runners:
            runner.queue.is_paused = self.is_paused  # this may be a restart after a failure
        pattern = settings.compile_pattern(self._context.section.dead_letter_suffixes)
        consumer.subscribe(pattern or settings.topics, self)
        lanes = [asyncio.create_task(runner.run()) for runner in self.runners]
        others = [
            asyncio.create_task(coro)
            for coro in (self.committer.run(), self._watch_progress(), self._watch_lag())
        ]
        poll = asyncio.create_task(self._poll())
        try:
            # `gather` would cancel the lanes together with this task; they have to finish first.
            done, _ = await asyncio.wait([poll, *lanes, *others], return_when="FIRST_EXCEPTION")
            for task in done:
                task.result()
        finally:
            poll.cancel()
            # This calls `on_partitions_revoked` with all partitions, while the lanes still run.
            await consumer.close(settings.leave_group_on_close)
            for task in (*lanes, *others):
                task.cancel()
            await asyncio.gather(poll, *lanes, *others, return_exceptions=True)
            self._report_unreadable({})
            self.consumer = None

    def _create_consumer(self) -> GroupConsumer:
        settings = self.settings
        return GroupConsumer(
            self._context.cluster,
            self.name,
            build_consumer_options(
                settings,
                instance_id=settings.instance_id,
                # How long `on_partitions_revoked` may take, with some reserve.
                rebalance_timeout=settings.revoke_timeout + 2 * COMMIT_TIMEOUT_S,
                prefetch=True,
                hidden_topics=self._context.section.internal_topics,
            ),
            on_gap=self._on_gap,
        )

    # Reading

    async def _poll(self) -> None:
        settings, consumer = self.settings, self.consumer
        assert consumer is not None
        while True:
            try:
                records = await consumer.poll(
                    POLL_TIMEOUT_S,
                    max_bytes=settings.fetch_max_bytes,
                    max_records=settings.max_poll_records,
                )
            except KafkaError as error:
                self._poll_failure = str(error)  # the consumer logs a failure of the whole group
                self._report_unreadable(consumer.failures)
                # After the failure of one partition the others can be polled at once.
                if error is consumer.group_failure or error not in consumer.failures.values():
                    await asyncio.sleep(RETRY_DELAY_S)
                continue
            self._report_unreadable(consumer.failures)
            self._poll_failure = next(map(str, consumer.failures.values()), None)
            for record in records:
                # No partition can be gone: nothing was awaited since `poll` returned its records.
                self._runners_by_partition[record.tp].queue.put((record,))
            for runner in {self._runners_by_partition[record.tp] for record in records}:
                runner.wake()
                self._update_pauses(runner)
            self._commit_idle_positions(consumer)

    def _report_unreadable(self, failures: Mapping[TopicPartition, KafkaError]) -> None:
        outages, failing_labels = self._context.cluster.outages, set[str]()
        for tp, failure in failures.items():
            subject = (
                f"topic={tp.topic}" if isinstance(failure, AccessDenied) else f"partition={tp}"
            )
            label = f"group={self.name} {subject}"
            outages.report_error(label, failure, group=self.name)
            failing_labels.add(label)
        for label in self._unreadable_labels - failing_labels:
            outages.report_recovery(label, "does not fail any more")
        self._unreadable_labels = failing_labels

    def _update_pauses(self, runner: LaneRunner) -> None:
        """Pause all partitions of a full lane, else only held ones; resume the others.

        No state is kept, since a lane may be empty after a rebalance or a seek.
        """
        consumer = self.consumer
        if consumer is not None:
            tps, queue = runner.tps & consumer.assignment, runner.queue
            paused = tps if self.is_paused or queue.is_full else tps & queue.held_partitions
            consumer.pause(paused)
            consumer.resume(tps - paused)

    def _commit_idle_positions(self, consumer: GroupConsumer) -> None:
        """Commit positions of empty lanes, which move past control records that reach no lane."""
        for runner in self.runners:
            if not runner.queue.unsettled_count:
                tps = runner.tps & consumer.assignment
                positions = {tp: consumer.position(tp) for tp in tps}
                self.committer.enqueue(
                    {tp: position for tp, position in positions.items() if position is not None}
                )

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert self.consumer is not None
        await self.consumer.commit(offsets)

    async def _watch_progress(self) -> None:
        stuck: set[LaneRunner] = set()
        max_idle_s = self.settings.max_poll_interval
        while True:
            await asyncio.sleep(min(max_idle_s / 4, 10.0))
            await self._check_progress()
            now = asyncio.get_running_loop().time()
            for runner in self.runners:
                if not self.is_stuck(runner, now):
                    stuck.discard(runner)
                elif runner not in stuck:
                    stuck.add(runner)
                    log.error("%s (its membership goes on)", self.describe_stuck(runner, now))

    async def _check_progress(self) -> None:
        positions = {runner: self._get_positions(runner) for runner in self.runners}
        unmoved = [
            runner for runner, position in positions.items() if not runner.has_moved(position)
        ]
        # A lane without records has something to do if its partitions have records that are not
        # read.
        idle = {tp for runner in unmoved if not runner.queue.unsettled_count for tp in runner.tps}
        ends = await self.fetch_end_offsets(idle) if idle else {}
        now = asyncio.get_running_loop().time()
        for runner, lane_positions in positions.items():
            lags = (
                position is not None and position < ends.get(tp, 0)
                for tp, position in lane_positions.items()
            )
            has_work = not self.is_paused and (runner.queue.unsettled_count or any(lags))
            if runner not in unmoved or not has_work:
                runner.moved_at = now

    async def _watch_lag(self) -> None:
        while True:
            await self._measure_lag()
            await asyncio.sleep(LAG_INTERVAL_S)

    async def _measure_lag(self) -> None:
        assert self.consumer is not None
        ends = await self.fetch_end_offsets(self.consumer.assignment)
        if self.consumer.assignment and not ends:
            return
        lag_records = dict.fromkeys((tp.topic for tp in self.consumer.assignment), 0)
        for tp, end in ends.items():
            reached = self.get_reached_offset(tp)
            if reached is not None and tp.topic in lag_records:  # it may have been revoked
                lag_records[tp.topic] += max(0, end - reached)
        self.lag_records = lag_records

    def get_reached_offset(self, tp: TopicPartition) -> int | None:
        """Return the first offset of a partition that is not processed; None if it is not known."""
        runner = self.get_runner(tp)
        first = runner.queue.first_unsettled_offset(tp) if runner is not None else None
        if first is not None or self.consumer is None or tp not in self.consumer.assignment:
            return first
        return self.consumer.position(tp)

    def _get_positions(self, runner: LaneRunner) -> dict[TopicPartition, int | None]:
        consumer = self.consumer
        if consumer is None:
            return {}
        return {tp: consumer.position(tp) for tp in runner.tps & consumer.assignment}

    async def fetch_end_offsets(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where logs end; records that wait behind an open transaction count as lag, too."""
        specs = dict.fromkeys(tps, LATEST)
        try:
            return await self.list_offsets(specs, END_OFFSETS_TIMEOUT_S, READ_UNCOMMITTED)
        except KafkaError:
            return {}

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], timeout_s: float, isolation: int | None = None
    ) -> dict[TopicPartition, int]:
        """Look up offsets by timestamp, by default as the group's isolation sees them.

        Raises KafkaError.

        Partitions whose offsets Kafka does not know now are left out.
        """
        if isolation is None:
            is_read_committed = self.settings.isolation == "read_committed"
            isolation = READ_COMMITTED if is_read_committed else READ_UNCOMMITTED
        answers = await self._context.cluster.list_offsets(specs, isolation, timeout=timeout_s)
        return {
            tp: answer.offset
            for tp, answer in answers.items()
            if isinstance(answer, OffsetAndTimestamp)
        }

    def is_stuck(self, runner: LaneRunner, now: float) -> bool:
        """Return whether a lane with work has not moved for `max_poll_interval`."""
        return (
            not self.is_paused and _get_idle_seconds(runner, now) >= self.settings.max_poll_interval
        )

    def describe_stuck(self, runner: LaneRunner, now: float) -> str:
        seconds = _get_idle_seconds(runner, now)
        reason = (
            self.find_problem(runner)
            or self.committer.failure
            or "its partitions have records, and none come; a transaction may be open before them"
        )
        return f"group {self.name}: a lane has not moved for {seconds:.0f} s: {reason}"

    def find_problem(self, runner: LaneRunner) -> str | None:
        failures = self.consumer.failures if self.consumer is not None else {}
        failed = (str(failures[tp]) for tp in sorted(runner.tps & failures.keys()))
        return runner.queue.problem or next(failed, None)

    @property
    def rebalance_seconds(self) -> Histogram | None:
        """Return the durations of rebalances, from leaving RUNNING until it is RUNNING again."""
        return self._context.cluster.coordinators.stats.rebalance_seconds.get(self.name)

    # Callbacks of the consumer

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        for tp in sorted(tps):
            runner = min(self.runners, key=lambda candidate: len(candidate.tps))
            runner.tps.add(tp)
            self._runners_by_partition[tp] = runner
            self._update_pauses(runner)

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Let batches in flight finish for `revokeTimeout`, and commit settled offsets."""
        # When the sidecar ends, `close` revokes all partitions: that must not outlast the drain.
        timeout_s = min(self.settings.revoke_timeout, self._context.settings.listen.drain_timeout)
        try:
            async with asyncio.timeout(timeout_s):
                tps_by_runner = self._group_by_runner(tps)
                await asyncio.gather(
                    *(runner.release(own_tps) for runner, own_tps in tps_by_runner.items())
                )
        except TimeoutError:
            pass
        # Before the commit: an answer that is later than this must settle nothing any more.
        self._drop(tps, f"revoked, and not answered within {timeout_s:g} s")
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await self.committer.flush(tps)
        except (KafkaError, TimeoutError) as error:
            consequence, reason = "its last records are delivered again", str(error) or "too late"
            log.warning("group %s: not committed, %s: %s", self.name, consequence, reason)
        self.committer.forget(tps)

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        """Abandon batches: another member may have the partitions, and a commit would fail."""
        self.committer.forget(tps)
        self._drop(tps, "lost")

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue at these offsets, whatever is in flight.

        Raises:
            NotOwned: A partition is not this member's; nothing is changed.
            KafkaError: The new offsets cannot be committed yet; they are committed later.
        """
        assert self.consumer is not None
        assignment = self.consumer.assignment
        for tp in offsets:
            if (
                tp not in assignment
                or tp not in self._runners_by_partition
                or tp not in self._runners_by_partition[tp].tps
            ):
                raise NotOwned(f"{tp} is not this member's; ask the one that has it")
        self._abandon(offsets)
        for tp, offset in offsets.items():
            self.consumer.seek(tp, offset)
        self.committer.enqueue(offsets)
        await self.committer.flush(offsets)

    def _on_gap(self, tp: TopicPartition, missing: int, next_offset: int) -> None:
        """Record a gap; if the log was cut off, forget the records that were read of it.

        Unsettled records of the lost log must not be committed: records that nobody has processed
        have taken their offsets.
        """
        audit_gap(self._context.auditor, "REACTIVE_CONSUMER", tp, missing, next_offset)
        consumer, runner = self.consumer, self._runners_by_partition.get(tp)
        if next_offset >= missing or consumer is None or runner is None or tp not in runner.tps:
            return
        unsettled = runner.queue.first_unsettled_offset(tp)
        self._abandon([tp])
        position = consumer.position(tp)
        if unsettled is not None and position is not None and unsettled < position:
            consumer.seek_back(tp, unsettled)

    def _abandon(self, tps: Collection[TopicPartition]) -> None:
        """Drop the lanes' records of partitions; a batch in flight settles and commits nothing."""
        for runner, dropped in self._group_by_runner(tps).items():
            runner.drop(dropped)
            runner.tps |= dropped  # `drop` has taken them from the lane
            self._update_pauses(runner)
        self.committer.forget(tps)

    def set_paused(self, paused: bool) -> None:
        """Stop or resume sending batches; the one in flight is settled, and the member stays."""
        self.is_paused = paused
        for runner in self.runners:
            runner.queue.is_paused = paused
            self._update_pauses(runner)
            runner.wake()

    def get_runner(self, tp: TopicPartition) -> LaneRunner | None:
        return self._runners_by_partition.get(tp)

    def _group_by_runner(
        self, tps: Collection[TopicPartition]
    ) -> dict[LaneRunner, set[TopicPartition]]:
        tps_by_runner: dict[LaneRunner, set[TopicPartition]] = {}
        for tp in tps:
            if tp in self._runners_by_partition:
                tps_by_runner.setdefault(self._runners_by_partition[tp], set()).add(tp)
        return tps_by_runner

    def _drop(self, tps: frozenset[TopicPartition], reason: str) -> None:
        had_unsettled = [
            runner.drop(own_tps) for runner, own_tps in self._group_by_runner(tps).items()
        ]
        if any(had_unsettled):
            names = ", ".join(map(str, sorted(tps)))
            log.warning("group %s: a batch of %s is abandoned: %s", self.name, names, reason)
        for tp in tps:
            self._runners_by_partition.pop(tp, None)


def _get_idle_seconds(runner: LaneRunner, now: float) -> float:
    queue = runner.queue
    return now - min(runner.moved_at, queue.problem_since if queue.problem else now)
