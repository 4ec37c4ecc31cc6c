"""Readings of partitions, driven against a cluster.

What each partition needs next is decided by its `Reading` (core); here it is asked for:
fetches in one conversation per broker (see `broker_lane`), offsets and epochs as they come up.
A partition that is slow, leaderless or frozen holds up nobody else's answer: requests go
out per broker, and a reading whose leader changed no longer waits for the old one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from gateway.core.log.partition_reader import EpochEnd, Fetch, ListOffset, Reading, Todo
from gateway.core.log.record import Entry, TopicPartition
from gateway.core.log.recovery import Cause, cause_of
from gateway.errors import KafkaError, RegistryUnavailable
from gateway.kafka.client import offsets
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Role
from gateway.kafka.client.metadata_changes import DENIED, Change
from gateway.telemetry.about import apart
from gateway.telemetry.tallies import Reads

from .broker_lane import NEWCOMER, Lane
from .partition_job import Job, Rest
from .rounds import Round
from .understanding import Understand, as_it_is

log = logging.getLogger(__name__)

Deliver = Callable[[Reading, Sequence[Entry]], None]
MOCK_WAIT = 0.01  # seconds
BROKER_CAUSES = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.AUTHENTICATION})
_UNKNOWN = (3, 17)


async def _no_pause() -> None:
    pass


class Fetcher:
    """Reads partitions until they are dropped; one reading per partition.

    deliver:  called with what a reading brought, in order, in the loop.
    role:     which of the shared connections it uses.
    max_wait: seconds that a broker may hold a fetch back.
    pause:    awaited before the next fetch of a broker: whoever takes records in rounds has
              more of them for the same price if they come together.
    understand: how the entries of a topic are understood, by its name; None for as they are.
    """

    def __init__(
        self,
        cluster: Cluster,
        deliver: Deliver,
        *,
        role: Role = Role.TAIL,
        max_wait: float = 0.5,
        pause: Callable[[], Awaitable[None]] = _no_pause,
        understand: Callable[[str], Understand | None] = as_it_is,
    ) -> None:
        self.cluster = cluster
        self.jobs: dict[TopicPartition, Job] = {}
        self.free: dict[TopicPartition, Job] = {}  # those for whom nothing is under way
        self.reads = Reads()
        self.pause = pause
        self.understand = understand
        self._max_wait = max_wait
        self.now = asyncio.get_running_loop().time
        self._arrived_at = float("-inf")
        self._deliver = deliver
        self._role = role
        self._lanes: dict[int, list[Lane]] = {}
        self._failing: set[int] = set()  # brokers that are said to be lost
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        self._unlisten = cluster.metadata.listen(self._changed)
        self._unlisten_brokers = cluster.connections.listen(self._retry_broker)
        self._spawn(self._ask_forever())

    @property
    def max_wait(self) -> float:
        """librdkafka's mock broker holds a fetch for its whole wait whatever comes (465 ms a
        record with 0.5 s, 5 ms with this)."""
        return MOCK_WAIT if (self.cluster.id or "").startswith("mock") else self._max_wait

    @property
    def newcomers(self) -> bool:
        """Is there a partition that the main lanes may not carry yet?"""
        return self.now() - self._arrived_at < 2 * NEWCOMER

    def add(self, reading: Reading, *, committed: bool = True) -> None:
        """Read from now on. committed: no further than the last stable offset."""
        self.drop(reading.tp)
        now = self.now()
        job = self.jobs[reading.tp] = self.free[reading.tp] = Job(reading, committed, now, now)
        self.arrived(job)
        self._sync(job)
        self.kick()

    def drop(self, tp: TopicPartition) -> None:
        job = self.jobs.pop(tp, None)
        if job is not None:
            self.release(job)
            self.free.pop(tp, None)

    def kick(self) -> None:
        """Something may be due."""
        self._wake.set()
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.wake.set()

    async def close(self) -> None:
        self._unlisten()
        self._unlisten_brokers()
        self.jobs.clear()
        self.free.clear()
        tasks = [*self._tasks, *([self._refreshing] if self._refreshing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _retry_broker(self, node: int) -> None:
        """A broker answers again: what waits for it is asked for at once, and not one partition
        after the other as their delays end, up to a minute later."""
        now = self.now()
        for job in self.free.values():
            if job.node(now) == node and job.reading.cause in BROKER_CAUSES:
                job.reading.retry(now)
        self.kick()

    def retry_topic(self, topic: str) -> None:
        """One partition of a topic may be read again, so all of them may."""
        now = self.now()
        for job in self.free.values():
            if job.reading.tp.topic == topic and job.reading.cause is Cause.DENIED:
                job.reading.retry(now)
        self.kick()

    # for lanes

    def release(self, job: Job) -> None:
        """Nothing is under way for it any more: what still comes of that is too late."""
        if isinstance(job.flight, Round):
            job.flight.leave(job)
        job.flight = None
        if self.jobs.get(job.reading.tp) is job:
            self.free[job.reading.tp] = job

    def arrived(self, job: Job) -> None:
        """It is new to its broker: its next answers must not wait for others' records."""
        job.came = self._arrived_at = self.now()

    def hand(self, job: Job, entries: Sequence[Entry]) -> None:
        if not entries or self.jobs.get(job.reading.tp) is not job:
            return
        if job.waited and job.reading.is_ready:
            job.waited, after, tp = False, self.now() - job.added, job.reading.tp
            self.reads.was_ready(tp.topic, after)
            log.debug(
                "partition ready after %.3fs topic=%s partition=%s", after, tp.topic, tp.partition,
                extra=tp._asdict(),
            )  # fmt: skip
        self._deliver(job.reading, entries)

    def hinder(self, job: Job, cause: Cause, delay: float | None) -> None:
        """A request for the job failed."""
        self.release(job)
        now = self.now()
        self.reads.reconnects[job.reading.tp.topic, cause] += 1
        entries = job.reading.on_error(cause, now, delay)
        log.debug(
            "FETCH reconnect in %.3fs topic=%s partition=%s cause=%s",
            job.reading.retry_at - now, job.reading.tp.topic, job.reading.tp.partition, cause,
            extra={**job.reading.tp._asdict(), "cause": cause},
        )  # fmt: skip
        self.hand(job, entries)
        self.kick()

    def wait(self, job: Job, ask: Callable[[], Awaitable[None]]) -> None:
        """What comes next of it is not understood before that was asked; until then it is left
        where it is, and then fetched again."""
        self.release(job)
        self._spawn(self._wait(job, self._fly([job.reading.tp]), ask))

    async def _wait(self, job: Job, flight: object, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await ask()
        except RegistryUnavailable:  # logged by who asked
            if job.flight is flight:
                self.hinder(job, Cause.REGISTRY, None)
        except Exception:
            if job.flight is flight:
                self.hinder(job, Cause.UNEXPECTED, None)
            raise
        if job.flight is flight:
            self.release(job)
            self.kick()

    def go_on(self, job: Job, rest: Rest) -> None:
        """Not all that was fetched of it is handed over yet. Until it is, its broker's other
        partitions go on, and nothing more is asked for this one."""
        self.release(job)
        self._spawn(self._go_on(job, self._fly([job.reading.tp]), rest))

    async def _go_on(self, job: Job, flight: object, rest: Rest) -> None:
        try:
            await rest(lambda: job.flight is flight)
        except Exception:
            if job.flight is flight:
                self.hinder(job, Cause.UNEXPECTED, None)
            raise
        if job.flight is flight:
            self.release(job)
            self.kick()

    def refresh(self, reason: str) -> None:
        """Ask for metadata, once for all who want it now."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = apart(self._refresh(reason))

    async def _refresh(self, reason: str) -> None:
        try:
            await self.cluster.metadata.refresh(reason)
        except KafkaError as exc:
            log.debug("metadata refresh failed: %s", exc)

    def lane(self, node: int) -> None:
        """Let fetches go to a broker; nothing if they do already."""
        if node in self._lanes:
            return
        main = Lane(self, node, self._role)
        self._lanes[node] = [main]
        if self._role is Role.TAIL:
            self._lanes[node].append(Lane(self, node, Role.FRESH, main))
        for lane in self._lanes[node]:
            self._spawn(lane.run())

    # metadata

    def _changed(self, change: Change) -> None:
        for job in self._concerned(change):
            self._sync(job)
        self.kick()

    def _concerned(self, change: Change) -> list[Job]:
        """Where leaders move, brokers may tell so of one partition after the other (KIP-951)."""
        name = change.topic.name
        if change.removed or change.recreated or change.deleted or change.denied or change.restored:
            return [job for tp, job in self.jobs.items() if tp.topic == name]
        tps = [TopicPartition(name, p) for p in (*change.added, *change.moved)]
        return [self.jobs[tp] for tp in tps if tp in self.jobs]

    def _sync(self, job: Job) -> None:
        """Tell a reading what metadata says of its partition."""
        reading, now = job.reading, self.now()
        topic = self.cluster.topic(reading.tp.topic)
        if topic is None:
            return
        if topic.error == DENIED or topic.error in _UNKNOWN:
            self.release(job)
            reading.on_leader(None, reading.leader_epoch, now)
            cause = Cause.DENIED if topic.error == DENIED else Cause.UNKNOWN_TOPIC
            self.hand(job, reading.on_error(cause, now))
            return
        before = (reading.leader, reading.leader_epoch, job.topic_id)
        reading.on_topic(str(topic.topic_id or ""))
        if job.topic_id != topic.topic_id:
            job.topic_id = topic.topic_id
        known = topic.partitions.get(reading.tp.partition)
        if known is not None:
            leader = known.leader if known.leader >= 0 else None
            self.hand(job, reading.on_leader(leader, known.leader_epoch, now))
            if leader is not None:
                self.lane(leader)
        if before != (reading.leader, reading.leader_epoch, job.topic_id):
            self.release(job)
            job.replica = None
            self.arrived(job)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = apart(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("reading Kafka failed unexpectedly", exc_info=task.exception())

    # offsets and epochs

    async def _ask_forever(self) -> None:
        while True:
            self._wake.clear()
            now = self.now()
            for (_, kind, isolation), asked in self._due(now).items():
                if kind is ListOffset:
                    self._spawn(self._list(asked, isolation, self._fly(asked)))
                else:
                    self._spawn(self._end(asked, self._fly(asked)))
            waits = [
                job.reading.retry_at - now
                for job in self.free.values()
                if job.reading.retry_at > now
            ]
            try:
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _due(self, now: float) -> dict[tuple[int, type, int], dict[TopicPartition, Todo]]:
        """What is to be asked now: one request per broker, kind and isolation."""
        due: dict[tuple[int, type, int], dict[TopicPartition, Todo]] = {}
        for job in self.free.values():
            todo = job.reading.todo(now)
            if todo is None or isinstance(todo, Fetch) or job.reading.leader is None:
                continue
            stable = job.committed and (isinstance(todo, EpochEnd) or todo.stable)
            isolation = offsets.READ_COMMITTED if stable else offsets.READ_UNCOMMITTED
            key = (job.reading.leader, type(todo), isolation)
            due.setdefault(key, {})[job.reading.tp] = todo
        return due

    async def _list(
        self, todos: Mapping[TopicPartition, Todo], isolation: int, flight: object
    ) -> None:
        asked = {tp: todo.timestamp for tp, todo in todos.items() if isinstance(todo, ListOffset)}
        answers = await self.cluster.list_offsets(asked, isolation)
        for tp, answer in answers.items():
            job = self._landed(tp, flight, answer)
            if job is not None and isinstance(answer, offsets.Offset):
                offset = None if answer.offset < 0 else answer.offset
                self.hand(job, job.reading.on_listed(offset, answer.epoch, self.now()))
        self.kick()

    async def _end(self, todos: Mapping[TopicPartition, Todo], flight: object) -> None:
        asked = {tp: todo.epoch for tp, todo in todos.items() if isinstance(todo, EpochEnd)}
        answers = await self.cluster.epoch_ends(asked)
        for tp, answer in answers.items():
            job = self._landed(tp, flight, answer)
            if job is not None and isinstance(answer, offsets.EpochEnd):
                ended = job.reading.on_epoch_end(answer.epoch, answer.end_offset, self.now())
                self.hand(job, ended)
        self.kick()

    def _closed_for(self, job: Job) -> float | None:
        """Seconds for which the broker's own backoff lets nobody through; None if it is open."""
        leader = job.reading.leader
        at = self.cluster.connections.retry_at(leader) if leader is not None else None
        return None if at is None or at <= self.now() else at - self.now()

    def _fly(self, todos: Iterable[TopicPartition]) -> object:
        flight = object()
        for tp in todos:
            self.free.pop(tp).flight = flight
        return flight

    def _landed(self, tp: TopicPartition, flight: object, answer: object) -> Job | None:
        """The job of an answer, if that is still to the point and no error."""
        job = self.jobs.get(tp)
        if job is None or job.flight is not flight:
            return None
        self.release(job)
        job.reading.heard_at = self.now()
        if not isinstance(answer, int):
            return job
        self._tell_unreachable(job)
        self.hinder(job, cause_of(answer), self._closed_for(job))
        self.refresh(f"{tp}: error {answer}")
        return None

    def _tell_unreachable(self, job: Job) -> None:
        """Where offsets are asked for first, no fetch fails that would tell it."""
        leader = job.reading.leader
        failure = self.cluster.connections.failure(leader) if leader is not None else None
        if leader is not None and failure is not None:
            self.fail_broker(leader, failure)

    def fail_broker(self, node: int, error: KafkaError) -> None:
        """Have it said that a broker cannot be read from."""
        self._failing.add(node)
        self.cluster.outages.fail_with(f"FETCH disconnect broker={node}", error, broker=node)

    def recover_broker(self, node: int) -> None:
        """Note that a broker answered a fetch."""
        if node in self._failing:
            self._failing.discard(node)
            self.cluster.outages.recover(f"FETCH disconnect broker={node}", "is over")
