"""A group whose records are called out to a back end: one member of it, and its lanes.

Its heartbeats go on by themselves, however long a batch takes: a slow back end pauses partitions,
and never costs the membership. `maxPollInterval` is therefore no deadline of Kafka's here, but when
a lane that does not move is said to be stuck.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial

import httpx

from gateway.config.sections.sidecar import Group as Settings
from gateway.core.delivery.batch import SettledRecords
from gateway.core.group.partition_state import LATEST
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import cause_from_code
from gateway.errors import AccessDenied, KafkaError, NotOwned, PartitionFailed
from gateway.kafka.client.offsets import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetAndTimestamp,
    code_from_error,
)
from gateway.kafka.group.consumer import GroupConsumer
from gateway.sidecar.context import Context, audit_gap
from gateway.telemetry.histogram import Histogram

from .backend import BackendClient
from .batch_encoder import BatchEncoder
from .dead_letters import DeadLetterWriter
from .lane_runner import LaneContext, LaneRunner, ReactiveCounts, audit_settled, build_rules
from .offset_committer import OffsetCommitter

log = logging.getLogger(__name__)

POLL_TIMEOUT_S = 5.0  # seconds that Kafka holds back a fetch without records
RETRY_DELAY_S = 1.0  # seconds until a group that cannot be read is tried again
LIST_OFFSETS_TIMEOUT_S = 2.0  # seconds for the ends to be told; without them there is no lag
COMMIT_TIMEOUT_S = 5.0  # seconds for the commit on the way out, beside revokeTimeout


class ReactiveGroup:
    """See the module; `run` it. failure: why nothing is read, None while it is."""

    def __init__(self, context: Context, settings: Settings, client: httpx.AsyncClient) -> None:
        self.settings = settings
        self.name = settings.group
        self.is_paused = False
        self.failure: str | None = None
        self.consumer: GroupConsumer | None = None
        self.counts = ReactiveCounts()
        self.runners: list[LaneRunner] = []
        self.committer = OffsetCommitter(self.name, self._commit)
        self._context = context
        self._client = client
        self._runners_by_partition: dict[TopicPartition, LaneRunner] = {}
        self._unreadable_labels: set[str] = set()  # labels of the outages that were told

    async def run(self) -> None:
        """Until cancelled: then what is under way is finished or abandoned, and committed."""
        settings = self.settings
        consumer = self.consumer = self._create_consumer()
        self.runners = [
            LaneRunner(
                build_rules(settings), self._create_lane_context(), self._update_pauses, number
            )
            for number in range(settings.parallelism)
        ]
        for runner in self.runners:
            runner.lane.is_paused = self.is_paused  # it may be a start after a failure
        consumer.subscribe(settings.topic_pattern or settings.topics, self)
        lanes = [asyncio.create_task(each.run()) for each in self.runners]
        others = [
            asyncio.create_task(work) for work in (self.committer.run(), self._watch_progress())
        ]
        poll = asyncio.create_task(self._poll())
        try:
            # not `gather`: it would cancel the lanes, which have something to finish
            ended, _ = await asyncio.wait([poll, *lanes, *others], return_when="FIRST_EXCEPTION")
            for each in ended:
                each.result()
        finally:
            poll.cancel()
            # `revoked` is told of all partitions, while the lanes still run
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
            protocol=settings.group_protocol,
            instance_id=settings.instance_id,
            session_timeout=settings.session_timeout,
            heartbeat_interval=settings.heartbeat_interval,
            rebalance_timeout=settings.revoke_timeout + 2 * COMMIT_TIMEOUT_S,
            auto_offset_reset=settings.auto_offset_reset,
            isolation=settings.isolation,
            max_partition_bytes=settings.max_partition_fetch_bytes,
            max_fetch_bytes=settings.fetch_max_bytes,
            prefetch=True,
            on_gap=partial(audit_gap, self._context.auditor, reactive=True),
        )

    def _create_lane_context(self) -> LaneContext:
        settings, context = self.settings, self._context
        return LaneContext(
            self.name,
            BackendClient(self._client, settings.backend, accept_empty=settings.accept_empty),
            BatchEncoder(context.codecs, context.section, settings),
            DeadLetterWriter(
                context, self.name, settings.dead_letter_topic_ext, create=settings.dead_letter_make
            ),
            self.committer,
            self._on_settled,
            self.counts,
            context.cluster.outages,
        )

    # reading

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
                self.failure = str(error)  # where it is the group's, its member says so in the log
                self._report_unreadable(consumer.failures)
                if error not in consumer.failures.values():  # of one partition: others go on
                    await asyncio.sleep(RETRY_DELAY_S)
                continue
            self._report_unreadable(consumer.failures)
            self.failure = next(map(str, consumer.failures.values()), None)
            for record in records:
                self._runners_by_partition[record.tp].lane.put((record,))
            for runner in {self._runners_by_partition[record.tp] for record in records}:
                runner.wake()
                self._update_pauses(runner)
            self._commit_idle_positions(consumer)

    def _report_unreadable(self, failures: Mapping[TopicPartition, KafkaError]) -> None:
        """Say in the log what of the group cannot be read now, and what is not failing any more."""
        outages, failing = self._context.cluster.outages, set[str]()
        for tp, failure in failures.items():
            what = f"topic={tp.topic}" if isinstance(failure, AccessDenied) else f"partition={tp}"
            label = f"group={self.name} {what}"
            code = (
                failure.code if isinstance(failure, PartitionFailed) else code_from_error(failure)
            )
            outages.report_failure(label, cause_from_code(code), str(failure), group=self.name)
            failing.add(label)
        for label in self._unreadable_labels - failing:
            outages.report_recovery(label, "does not fail any more")
        self._unreadable_labels = failing

    def _update_pauses(self, runner: LaneRunner) -> None:
        """Pause the partitions of a lane that has enough to do, and resume them otherwise.

        Nothing is remembered: after a rebalance or a seek the lane may be empty, and what it was
        given before says nothing of its partitions now.
        """
        consumer = self.consumer
        if consumer is not None:
            held = runner.tps & consumer.assignment
            (consumer.pause if self.is_paused or runner.lane.is_full else consumer.resume)(held)

    def _commit_idle_positions(self, consumer: GroupConsumer) -> None:
        """Past the ends of transactions, which are no records and have offsets."""
        for runner in self.runners:
            if not runner.lane.unsettled_count:
                held = runner.tps & consumer.assignment
                places = {tp: consumer.position(tp) for tp in held}
                self.committer.enqueue({tp: at for tp, at in places.items() if at is not None})

    def _on_settled(self, settled: SettledRecords) -> None:
        audit_settled(self._context.auditor, settled)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert self.consumer is not None
        await self.consumer.commit(offsets)

    async def _watch_progress(self) -> None:
        """Log which lanes are stuck, once for each time that they are."""
        stuck: set[LaneRunner] = set()
        most = self.settings.max_poll_interval
        while True:
            await asyncio.sleep(min(most / 4, 10.0))
            await self._check_progress()
            now = asyncio.get_running_loop().time()
            for runner in self.runners:
                if not self.is_stuck(runner, now):
                    stuck.discard(runner)
                elif runner not in stuck:
                    stuck.add(runner)
                    log.error("%s (its membership goes on)", self.describe_stuck(runner, now))

    async def _check_progress(self) -> None:
        """Note which lanes have moved since the last look, or have nothing to do."""
        positions = {runner: self._get_positions(runner) for runner in self.runners}
        still = [runner for runner, at in positions.items() if not runner.has_moved(at)]
        idle = {tp for runner in still if not runner.lane.unsettled_count for tp in runner.tps}
        ends = await self.fetch_end_offsets(idle) if idle else {}
        now = asyncio.get_running_loop().time()
        for runner, places in positions.items():
            lags = (at is not None and at < ends.get(tp, 0) for tp, at in places.items())
            has_work = not self.is_paused and (runner.lane.unsettled_count or any(lags))
            if runner not in still or not has_work:
                runner.moved_at = now

    def _get_positions(self, runner: LaneRunner) -> dict[TopicPartition, int | None]:
        consumer = self.consumer
        if consumer is None:
            return {}
        return {tp: consumer.position(tp) for tp in runner.tps & consumer.assignment}

    async def fetch_end_offsets(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets up to which these partitions can be read, of those that tell it."""
        committed = self.settings.isolation == "read_committed"
        isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        specs = dict.fromkeys(tps, LATEST)
        try:
            answers = await self._context.cluster.list_offsets(
                specs, isolation, timeout=LIST_OFFSETS_TIMEOUT_S
            )
        except KafkaError:
            return {}
        return {tp: at.offset for tp, at in answers.items() if isinstance(at, OffsetAndTimestamp)}

    def is_stuck(self, runner: LaneRunner, now: float) -> bool:
        """Return whether a lane with something to do has not moved for `max_poll_interval`."""
        return (
            not self.is_paused and _get_idle_seconds(runner, now) >= self.settings.max_poll_interval
        )

    def describe_stuck(self, runner: LaneRunner, now: float) -> str:
        """Return which lane does not move, for how long, and why."""
        seconds = _get_idle_seconds(runner, now)
        why = (
            runner.lane.problem
            or self.committer.failure
            or "its partitions have records, and none come"
        )
        return f"group {self.name}: a lane has not moved for {seconds:.0f} s: {why}"

    @property
    def rebalance_seconds(self) -> Histogram | None:
        """Seconds from where the member left RUNNING to where it was there again."""
        return self._context.cluster.coordinators.stats.rebalance_seconds.get(self.name)

    # the partitions

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        for tp in sorted(tps):
            runner = min(self.runners, key=lambda each: len(each.tps))
            runner.tps.add(tp)
            self._runners_by_partition[tp] = runner
            self._update_pauses(runner)

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """What is under way may be finished, and is committed."""
        within = min(self.settings.revoke_timeout, self._context.settings.listen.drain_timeout)
        try:
            async with asyncio.timeout(within):
                by = self._group_by_runner(tps)
                await asyncio.gather(*(runner.release(some) for runner, some in by.items()))
        except TimeoutError:
            pass
        self._drop(tps, f"revoked, and not answered within {within:g} s")
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await self.committer.flush(tps)
        except (KafkaError, TimeoutError) as error:
            what, why = "its last records come again", str(error) or "too late"
            log.warning("group %s: not committed, %s: %s", self.name, what, why)
        self.committer.forget(tps)

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        self.committer.forget(tps)
        self._drop(tps, "lost")

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from there, whatever is under way. Raises NotOwned before anything is done, and
        KafkaError where the new offsets cannot be committed yet."""
        assert self.consumer is not None
        held = self.consumer.assignment
        for tp in offsets:
            if (
                tp not in held
                or tp not in self._runners_by_partition
                or tp not in self._runners_by_partition[tp].tps
            ):
                raise NotOwned(f"{tp} is not this member's; ask the one that has it")
        for runner, tps in self._group_by_runner(offsets).items():
            runner.drop(tps)
            runner.tps |= tps
            self._update_pauses(runner)
        for tp, offset in offsets.items():
            self.consumer.seek(tp, offset)
        self.committer.forget(offsets)
        self.committer.enqueue(offsets)
        await self.committer.flush(offsets)

    def set_paused(self, paused: bool) -> None:
        """Send nothing; what is under way is settled. It stays a member."""
        self.is_paused = paused
        for runner in self.runners:
            runner.lane.is_paused = paused
            self._update_pauses(runner)
            runner.wake()

    def get_runner(self, tp: TopicPartition) -> LaneRunner | None:
        return self._runners_by_partition.get(tp)

    def _group_by_runner(
        self, tps: Collection[TopicPartition]
    ) -> dict[LaneRunner, set[TopicPartition]]:
        by: dict[LaneRunner, set[TopicPartition]] = {}
        for tp in tps:
            if tp in self._runners_by_partition:
                by.setdefault(self._runners_by_partition[tp], set()).add(tp)
        return by

    def _drop(self, tps: frozenset[TopicPartition], why: str) -> None:
        carried = [runner.drop(some) for runner, some in self._group_by_runner(tps).items()]
        if any(carried):
            names = ", ".join(map(str, sorted(tps)))
            log.warning("group %s: a batch of %s is abandoned: %s", self.name, names, why)
        for tp in tps:
            self._runners_by_partition.pop(tp, None)


def _get_idle_seconds(runner: LaneRunner, now: float) -> float:
    """Return for how many seconds a lane has not moved."""
    lane = runner.lane
    return now - min(runner.moved_at, lane.problem_since if lane.problem else now)
