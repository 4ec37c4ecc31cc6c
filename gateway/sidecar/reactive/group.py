"""A group whose records are called out to a back end: one member of it, and its lanes.

Its heartbeats go on by themselves, however long a batch takes: a slow back end pauses partitions,
and never costs the membership. `maxPollInterval` is therefore no deadline of Kafka's here, but when
a lane that does not move is said to be stuck.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

import httpx

from ...config.sidecar import Group as Settings
from ...core.batch import Settled
from ...core.record import TopicPartition
from ...errors import KafkaError, NotOwned
from ...kafka.consumer import GroupConsumer
from ...telemetry.histogram import Histogram
from ..context import Context
from .backend import BackEnd
from .dead_letters import DeadLetters
from .points import Points
from .runner import Runner, Tallies, Works, audited, rules_of
from .written import Writer

log = logging.getLogger(__name__)

POLL = 5.0  # seconds that Kafka holds back a fetch without records
AGAIN = 1.0  # seconds until a group that cannot be read is tried again
COMMIT = 5.0  # seconds for the commit on the way out, beside revokeTimeout


class ReactiveGroup:
    """See the module; `run` it. failure: why nothing is read, None while it is."""

    def __init__(self, context: Context, settings: Settings, client: httpx.AsyncClient) -> None:
        self.settings = settings
        self.name = settings.group
        self.paused = False
        self.failure: str | None = None
        self.consumer: GroupConsumer | None = None
        self.tallies = Tallies()
        self.runners: list[Runner] = []
        self.points = Points(self.name, self._commit)
        self._context = context
        self._client = client
        self._of: dict[TopicPartition, Runner] = {}

    async def run(self) -> None:
        """Until cancelled: then what is under way is finished or abandoned, and committed."""
        settings = self.settings
        consumer = self.consumer = self._made()
        self.runners = [
            Runner(rules_of(settings), self._works(), self._throttle)
            for _ in range(settings.parallelism)
        ]
        consumer.subscribe(settings.matching or settings.topics, self)
        lanes = [asyncio.create_task(each.run()) for each in self.runners]
        others = [asyncio.create_task(work) for work in (self.points.run(), self._watch())]
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
            self.consumer = None

    def _made(self) -> GroupConsumer:
        settings = self.settings
        return GroupConsumer(
            self._context.cluster,
            self.name,
            protocol=settings.group_protocol,
            instance_id=settings.instance_id,
            session_timeout=settings.session_timeout,
            heartbeat_interval=settings.heartbeat_interval,
            rebalance_timeout=settings.revoke_timeout + 2 * COMMIT,
            auto_offset_reset=settings.auto_offset_reset,
            isolation=settings.isolation,
            max_partition_bytes=settings.max_partition_fetch_bytes,
            max_fetch_bytes=settings.fetch_max_bytes,
            prefetch=True,
        )

    def _works(self) -> Works:
        settings, context = self.settings, self._context
        return Works(
            self.name,
            BackEnd(self._client, settings.backend, accept_empty=settings.accept_empty),
            Writer(context.codecs, context.section, settings),
            DeadLetters(
                context, self.name, settings.dead_letter_topic_ext, make=settings.dead_letter_make
            ),
            self.points,
            self._settled,
            self.tallies,
        )

    # reading

    async def _poll(self) -> None:
        settings, consumer = self.settings, self.consumer
        assert consumer is not None
        while True:
            try:
                records = await consumer.poll(
                    POLL, max_bytes=settings.fetch_max_bytes, max_records=settings.max_poll_records
                )
            except KafkaError as error:
                if str(error) != self.failure:
                    log.error("group %s cannot be read: %s", self.name, error)
                self.failure = str(error)
                if error not in consumer.failures.values():  # of one partition: others go on
                    await asyncio.sleep(AGAIN)
                continue
            self.failure = next(map(str, consumer.failures.values()), None)
            for record in records:
                self._of[record.tp].lane.put((record,))
            for runner in {self._of[record.tp] for record in records}:
                runner.wake()
                self._throttle(runner)
            self._caught_up(consumer)

    def _throttle(self, runner: Runner) -> None:
        """A lane with enough to do is given no more: its partitions are paused."""
        wanted = self.paused or runner.lane.full
        if wanted != runner.throttled and self.consumer is not None:
            runner.throttled = wanted
            held = runner.tps & self.consumer.assignment
            (self.consumer.pause if wanted else self.consumer.resume)(held)

    def _caught_up(self, consumer: GroupConsumer) -> None:
        """Past the ends of transactions, which are no records and have offsets."""
        for runner in self.runners:
            if not runner.lane.waiting:
                held = runner.tps & consumer.assignment
                places = {tp: consumer.position(tp) for tp in held}
                self.points.note({tp: at for tp, at in places.items() if at is not None})

    def _settled(self, settled: Settled) -> None:
        audited(self._context.audit, settled)

    async def _commit(self, points: Mapping[TopicPartition, int]) -> None:
        assert self.consumer is not None
        await self.consumer.commit(points)

    async def _watch(self) -> None:
        """Say which lanes are stuck, once for each time that they are."""
        stuck: set[Runner] = set()
        most = self.settings.max_poll_interval
        while True:
            await asyncio.sleep(min(most, 10.0))
            now = asyncio.get_running_loop().time()
            for runner in self.runners:
                if not self.is_stuck(runner, now):
                    stuck.discard(runner)
                elif runner not in stuck:
                    stuck.add(runner)
                    log.error(
                        "group %s: a lane has not moved for %.0f s (its membership goes on): %s",
                        self.name, now - runner.lane.since, runner.lane.trouble,
                    )  # fmt: skip

    def is_stuck(self, runner: Runner, now: float) -> bool:
        lane = runner.lane
        return bool(lane.trouble) and now - lane.since >= self.settings.max_poll_interval

    @property
    def rebalances(self) -> Histogram | None:
        """Seconds from where the member left RUNNING to where it was there again."""
        return self._context.cluster.coordinators.tallies.seconds.get(self.name)

    # the partitions

    async def assigned(self, tps: frozenset[TopicPartition]) -> None:
        for tp in sorted(tps):
            runner = min(self.runners, key=lambda each: len(each.tps))
            runner.tps.add(tp)
            self._of[tp] = runner
            if runner.throttled and self.consumer is not None:
                self.consumer.pause({tp} & self.consumer.assignment)

    async def revoked(self, tps: frozenset[TopicPartition]) -> None:
        """What is under way may be finished, and is committed."""
        within = min(self.settings.revoke_timeout, self._context.settings.listen.drain_timeout)
        try:
            async with asyncio.timeout(within):
                by = self._by_runner(tps)
                await asyncio.gather(*(runner.release(some) for runner, some in by.items()))
        except TimeoutError:
            pass
        self._drop(tps, f"revoked, and not answered within {within:g} s")
        try:
            async with asyncio.timeout(COMMIT):
                await self.points.flush(tps)
        except (KafkaError, TimeoutError) as error:
            what = "its last records come again"
            log.warning("group %s: not committed, %s: %s", self.name, what, error or "too late")
        self.points.forget(tps)

    async def lost(self, tps: frozenset[TopicPartition]) -> None:
        self.points.forget(tps)
        self._drop(tps, "lost")

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from there, whatever is under way. Raises NotOwned before anything is done, and
        KafkaError where the new offsets cannot be committed yet."""
        assert self.consumer is not None
        held = self.consumer.assignment
        for tp in offsets:
            if tp not in held or tp not in self._of or tp not in self._of[tp].tps:
                raise NotOwned(f"{tp} is not this member's; ask the one that has it")
        for runner, tps in self._by_runner(offsets).items():
            runner.drop(tps)
            runner.tps |= tps
        for tp, offset in offsets.items():
            self.consumer.seek(tp, offset)
        self.points.forget(offsets)
        self.points.note(offsets)
        await self.points.flush(offsets)

    def pause(self, paused: bool) -> None:
        """Send nothing; what is under way is settled. It stays a member."""
        self.paused = paused
        for runner in self.runners:
            runner.lane.held = paused
            self._throttle(runner)
            runner.wake()

    def runner_of(self, tp: TopicPartition) -> Runner | None:
        return self._of.get(tp)

    def _by_runner(self, tps: Collection[TopicPartition]) -> dict[Runner, set[TopicPartition]]:
        by: dict[Runner, set[TopicPartition]] = {}
        for tp in tps:
            if tp in self._of:
                by.setdefault(self._of[tp], set()).add(tp)
        return by

    def _drop(self, tps: frozenset[TopicPartition], why: str) -> None:
        carried = [runner.drop(some) for runner, some in self._by_runner(tps).items()]
        if any(carried):
            names = ", ".join(map(str, sorted(tps)))
            log.warning("group %s: a batch of %s is abandoned: %s", self.name, names, why)
        for tp in tps:
            self._of.pop(tp, None)
