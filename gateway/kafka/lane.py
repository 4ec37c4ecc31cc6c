"""One conversation of fetches with one broker: ask for all that is due there, hand on, repeat.

Kafka holds a fetch back until there is something, so one that waits cannot take in a
partition that came meanwhile. A broker therefore has two lanes: the main one, and one for
newcomers, which carries them until the main one comes round. A newcomer is also one whose
leader changed, or that could not be read for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.core import reading as core
from gateway.core.reading import Fetch, Reading
from gateway.core.record import Entry, Gap, Reason, TopicPartition
from gateway.core.recovery import RULES, Action, Cause, cause_of
from gateway.errors import BrokerUnavailable, KafkaError

from .batches import decode
from .connections import Role
from .fetch_messages import Fetched, Want
from .offsets import READ_COMMITTED, READ_UNCOMMITTED, code_of
from .sessions import FetchSession

if TYPE_CHECKING:
    from .fetcher import Fetcher

log = logging.getLogger(__name__)

NEWCOMER = 1.0  # seconds for which a partition counts as one
REPLICA_FOR = 300.0  # seconds for which a nearer replica is read (KIP-392)
STUCK = 0.5  # seconds a fetch may be late before metadata is asked for another leader
MAX_BYTES = 1 << 20  # of one answer: 5,000 records of 200 bytes decode in 10 ms


@dataclass(slots=True, eq=False)
class Job:
    """A reading, as the fetcher carries it.

    flight: the request that is under way for it; an answer to another one comes too late.
    came:   when it last came to its broker, or back; for a while it is a newcomer there.
    """

    reading: Reading
    committed: bool
    added: float
    came: float
    topic_id: UUID | None = None
    flight: object | None = None
    replica: int | None = None
    replica_until: float = 0.0
    failures: int = 0
    waited: bool = True
    want: Want | None = None

    def node(self, now: float) -> int | None:
        """Whom to fetch from: the nearer replica that the leader named, or the leader."""
        if self.replica is not None and now < self.replica_until:
            return self.replica
        return self.reading.leader

    @property
    def isolation(self) -> int:
        return READ_COMMITTED if self.committed else READ_UNCOMMITTED


class Lane:
    """See the module. `main` is None for the main lane itself."""

    def __init__(self, fetcher: Fetcher, node: int, role: Role, main: Lane | None = None) -> None:
        self.wake = asyncio.Event()
        self.busy = False
        self._fetcher = fetcher
        self._node = node
        self._role = role
        self._main = main
        self._session = FetchSession() if role is Role.TAIL else None

    async def run(self) -> None:
        while True:
            self.wake.clear()
            now = self._fetcher.now()
            jobs = self._due(now)
            if jobs:
                self.busy = True
                isolations = {job.isolation for job in jobs}
                for isolation in isolations:
                    some = [job for job in jobs if job.isolation == isolation]
                    await self._round(some, mixed=len(isolations) > 1)
                self.busy = False
                await self._fetcher.pause()
            else:
                await self._idle(now)

    def _due(self, now: float) -> list[Job]:
        if self._main is not None and not self._main.busy:
            return []
        return [
            job
            for job in self._fetcher.jobs.values()
            if job.flight is None
            and job.node(now) == self._node
            and (self._main is None or now - job.came < NEWCOMER or job.reading.unsettled)
            and type(job.reading.todo(now)) is Fetch
        ]

    async def _idle(self, now: float) -> None:
        waits = [
            job.reading.retry_at - now
            for job in self._fetcher.jobs.values()
            if job.flight is None and job.node(now) == self._node and job.reading.retry_at > now
        ]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self.wake.wait()
        except TimeoutError:
            pass

    async def _round(self, jobs: list[Job], *, mixed: bool) -> None:
        flight = object()
        for job in jobs:
            job.flight = flight
        asked = {job.reading.tp: job for job in jobs}
        try:
            answers = await self._ask(asked, jobs[0].isolation, mixed)
        except KafkaError as exc:
            self._failed([job for job in jobs if job.flight is flight], exc)
            return
        for tp, job in asked.items():
            if job.flight is not flight:
                continue  # it moved on meanwhile
            job.flight, job.reading.heard_at = None, self._fetcher.now()
            fetched = answers.get(tp)
            if fetched is not None:
                self._answered(job, fetched)
                if len(fetched.records) > 65536:
                    await asyncio.sleep(0)  # decoding is our loop's time
            elif job.reading.unsettled:
                self._took(job, _nothing_new(job.reading))
            if job.reading.stalled(job.reading.heard_at):
                self._stalled(job)

    async def _ask(
        self, jobs: Mapping[TopicPartition, Job], isolation: int, mixed: bool
    ) -> dict[TopicPartition, Fetched]:
        fetcher = self._fetcher
        wants = {tp: self._want(job) for tp, job in jobs.items()}
        request = asyncio.ensure_future(
            fetcher.cluster.fetch(
                self._node,
                self._role,
                wants,
                max_wait=self._patience(jobs.values(), mixed),
                max_bytes=MAX_BYTES,
                isolation=isolation,
                session=self._session if isolation == READ_COMMITTED else None,
            )
        )
        try:
            done, _ = await asyncio.wait({request}, timeout=fetcher.max_wait + STUCK)
            while not done:
                fetcher.refresh(f"broker {self._node} is silent")
                done, _ = await asyncio.wait({request}, timeout=STUCK)
            return request.result()
        finally:
            request.cancel()

    def _patience(self, jobs: Iterable[Job], mixed: bool) -> float:
        """Do not wait for records while somebody wants to hear that it can be read, nor long
        while another fetch (newcomers', or of the other isolation) waits to go out."""
        if any(job.reading.unsettled for job in jobs):
            return 0.0
        most = self._fetcher.max_wait
        return min(0.1, most) if mixed or self._fetcher.newcomers else most

    def _want(self, job: Job) -> Want:
        reading, want = job.reading, job.want
        assert reading.place.offset is not None
        offset, epoch = reading.place.offset, reading.leader_epoch
        if want is None or want[:3] != (offset, epoch, job.topic_id):
            want = job.want = Want(offset, epoch, job.topic_id)
        return want

    # what came

    def _answered(self, job: Job, fetched: Fetched) -> None:
        now, reading = self._fetcher.now(), job.reading
        if fetched.error_code:
            self._refused(job, cause_of(fetched.error_code), now)
            return
        if fetched.preferred_replica not in (-1, self._node):
            job.replica, job.replica_until = fetched.preferred_replica, now + REPLICA_FOR
            self._fetcher.lane(job.replica)  # it may lead nothing that is read here
            self._fetcher.kick()
            return
        assert job.want is not None
        if job.want.offset != reading.place.offset:
            return
        decoded = decode(
            reading.tp,
            fetched.records,
            job.want.offset,
            aborted=fetched.aborted,
            read_committed=job.committed,
            end=fetched.high_watermark,
        )
        entries, after, epoch = list(decoded.entries), decoded.next_offset, decoded.last_epoch
        if decoded.error is not None and after == job.want.offset:
            damaged = self._damaged(job, fetched, decoded.error, now)
            if damaged is None:
                return
            entries, after, epoch = [damaged], damaged.next, damaged.epoch
        job.failures = 0
        reads, topic = self._fetcher.reads, reading.tp.topic
        reads.records[topic] += len(entries)
        reads.bytes[topic] += len(fetched.records)
        high, stable = fetched.high_watermark, fetched.last_stable_offset
        end = stable if job.committed and stable >= 0 else high
        self._took(job, core.Fetched(entries, after, epoch, high, end, fetched.log_start_offset))

    def _damaged(self, job: Job, fetched: Fetched, error: str, now: float) -> Entry | None:
        """Not even the length of the batch makes sense: after three tries, say so and go on
        at the end; None while it is tried again."""
        job.failures += 1
        reading = job.reading
        log.warning(
            "%s at %s: %s", reading.tp, reading.place.offset, error, extra=reading.tp._asdict()
        )
        if job.failures < 3:
            self._fetcher.hand(job, reading.on_error(Cause.CORRUPT, now))
            return None
        offset = reading.place.offset
        assert offset is not None
        to = max(offset + 1, fetched.last_stable_offset, fetched.high_watermark)
        return Gap(reading.tp, offset, to, reading.place.epoch, Reason.CORRUPT)

    def _took(self, job: Job, fetched: core.Fetched) -> None:
        was = job.reading.cause
        entries = job.reading.on_fetched(fetched, self._fetcher.now())
        if was is not None:
            extra = {**job.reading.tp._asdict(), "cause": was}
            log.info("FETCH resumed %s after cause=%s", _named(job.reading), was, extra=extra)
            self._fetcher.arrived(job)
        if entries:
            self._fetcher.hand(job, entries)

    def _stalled(self, job: Job) -> None:
        """Start the conversation over: what one of the two sides believes is wrong."""
        reading = job.reading
        log.warning(
            "no progress on %s at offset %s; asking anew", reading.tp, reading.place.offset,
            extra=reading.tp._asdict(),
        )  # fmt: skip
        reading.progress_at, job.replica = reading.heard_at, None
        if self._session is not None:
            self._session.lost()
        self._fetcher.refresh(f"{reading.tp} makes no progress")

    def _refused(self, job: Job, cause: Cause, now: float) -> None:
        if job.replica is not None:  # a replica's word counts for nothing: ask the leader
            job.replica = None
            self._fetcher.kick()
            return
        self._fetcher.hinder(job, cause, None)
        if RULES[cause].action in (Action.REFRESH, Action.WATCH):
            self._fetcher.refresh(f"{job.reading.tp}: {cause}")

    def _failed(self, jobs: list[Job], exc: KafkaError) -> None:
        cause = cause_of(code_of(exc))
        delay = exc.retry_after if isinstance(exc, BrokerUnavailable) else None
        extra = {"broker": self._node, "cause": cause}
        log.info("FETCH disconnect broker=%s cause=%s: %s", self._node, cause, exc, extra=extra)
        for job in jobs:
            job.flight = job.replica = None
            self._fetcher.hinder(job, cause, None if delay is None else max(delay, 0.02))
        self._fetcher.refresh(f"broker {self._node}: {cause}")


def _nothing_new(reading: Reading) -> core.Fetched:
    offset = reading.place.offset
    assert offset is not None
    return core.Fetched(
        (), offset, reading.place.epoch, reading.high_watermark,
        reading.last_stable_offset, reading.log_start,
    )  # fmt: skip


def _named(reading: Reading) -> str:
    return f"topic={reading.tp.topic} partition={reading.tp.partition}"
