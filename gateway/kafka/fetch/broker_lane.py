"""One conversation of fetches with one broker: ask for all that is due there, hand on, repeat.

Kafka holds a fetch back until there is something, so one that waits cannot take in a
partition that came meanwhile. A broker therefore has two lanes: the main one, and one for
newcomers, which carries them until the main one comes round. A newcomer is also one whose
leader changed, or that could not be read for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.log import partition_reader as core
from gateway.core.log.partition_reader import Fetch, Reading
from gateway.core.log.position import NO_EPOCH
from gateway.core.log.record import Entry, Gap, Reason, TopicPartition
from gateway.core.log.recovery import RULES, Action, Cause, cause_of
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.client.connections import Role
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, code_of
from gateway.kafka.client.outages import label_topic
from gateway.kafka.protocol.fetch_messages import Fetched

from .batches import BULK_RECORDS, gather, slices
from .decoding import SLICE_RECORDS, Decoded, Decoding
from .fetch_sessions import FetchSession
from .partition_job import Job, Rest
from .rounds import SWEEP, Round

if TYPE_CHECKING:
    from .fetcher import Fetcher

log = logging.getLogger(__name__)

_new = tuple.__new__  # 0.2 us less than `core.Fetched(...)`

NEWCOMER = 1.0  # seconds for which a partition counts as one
REPLICA_FOR = 300.0  # seconds for which a nearer replica is read (KIP-392)
RESUMED_SECONDS = 0.5  # for which partitions that resume are gathered for one line of the log
STUCK = 0.5  # seconds a fetch may be late before metadata is asked for another leader
MAX_BYTES = 1 << 20  # of one answer: 5,000 records of 200 bytes decode in 10 ms


class Lane:
    """See the module. `main` is None for the main lane itself."""

    def __init__(self, fetcher: Fetcher, node: int, role: Role, main: Lane | None = None) -> None:
        self.wake = asyncio.Event()
        self.busy = False
        self._fetcher = fetcher
        self._node = node
        self._role = role
        self._main = main
        self._gathers = role is Role.CATCHUP  # one who reads back takes one answer at a time
        self._loop = asyncio.get_running_loop()
        self._late: asyncio.TimerHandle | None = None
        self._resumed: dict[Cause, list[TopicPartition]] = {}
        made = FetchSession if role is Role.TAIL else FetchSession.forgetful
        self._committed = Round(READ_COMMITTED, made())
        self._uncommitted = Round(READ_UNCOMMITTED, made())
        self._rounds = (self._committed, self._uncommitted)

    async def run(self) -> None:
        while True:
            self.wake.clear()
            now = self._fetcher.now()
            self._gather(now)
            mixed = all(each.jobs for each in self._rounds)
            if any(each.jobs for each in self._rounds):
                self.busy = True
                for each in self._rounds:
                    if each.jobs:
                        await self._round(each, mixed=mixed)
                self.busy = False
                await self._fetcher.pause()
            else:
                await self._idle(now)

    def _gather(self, now: float) -> None:
        """Those that are due and for whom nothing is under way take part from now on."""
        if self._main is not None and not self._main.busy:
            return
        for job in list(self._fetcher.free.values()):
            if self._carries(job, now) and self._is_due(job, now):
                del self._fetcher.free[job.reading.tp]
                (self._committed if job.committed else self._uncommitted).join(job)

    def _carries(self, job: Job, now: float) -> bool:
        return self._main is None or now - job.came < NEWCOMER or job.reading.unsettled

    def _is_due(self, job: Job, now: float) -> bool:
        return job.node(now) == self._node and type(job.reading.todo(now)) is Fetch

    async def _idle(self, now: float) -> None:
        waits = [
            job.reading.retry_at - now
            for job in self._fetcher.free.values()
            if job.node(now) == self._node and job.reading.retry_at > now
        ]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self.wake.wait()
        except TimeoutError:
            pass

    async def _round(self, asked: Round, *, mixed: bool) -> None:
        try:
            answers = await self._ask(asked, self._patience(asked, mixed))
        except KafkaError as exc:
            self._failed(asked, exc)
            return
        self._fetcher.recover_broker(self._node)
        for tp, fetched in answers.items():
            job = asked.jobs.get(tp)
            if job is None:
                continue  # it moved on meanwhile
            job.reading.heard_at = now = self._fetcher.now()
            rest = self._answered(job, fetched, now)
            if rest is not None and job.flight is asked:
                self._fetcher.go_on(job, rest)
            self._again(asked, job, now)
            if len(fetched.records) > 65536:
                await asyncio.sleep(0)  # decoding is our loop's time
        now = self._fetcher.now()
        if asked.unsettled or now - asked.swept >= SWEEP or self._main is not None:
            self._sweep(asked, answers, now)

    async def _ask(self, asked: Round, patience: float) -> dict[TopicPartition, Fetched]:
        fetcher = self._fetcher
        self._late = self._loop.call_later(fetcher.max_wait + STUCK, self._silent)
        try:
            return await fetcher.cluster.fetch(
                self._node,
                self._role,
                asked.session,
                max_wait=patience,
                max_bytes=MAX_BYTES,
                isolation=asked.isolation,
            )
        finally:
            self._late.cancel()

    def _silent(self) -> None:
        """The answer is overdue: perhaps another broker leads by now."""
        self._fetcher.refresh(f"broker {self._node} is silent")
        self._late = self._loop.call_later(STUCK, self._silent)

    def _patience(self, asked: Round, mixed: bool) -> float:
        """Do not wait for records while somebody wants to hear that it can be read, nor long
        while another fetch (newcomers', or of the other isolation) waits to go out."""
        if asked.unsettled:
            return 0.0
        most = self._fetcher.max_wait
        return min(0.1, most) if mixed or self._fetcher.newcomers else most

    def _sweep(self, asked: Round, answers: Collection[TopicPartition], now: float) -> None:
        """The broker has answered for all of them, also for those of whom it said nothing."""
        asked.swept, asked.unsettled = now, False
        for tp, job in list(asked.jobs.items()):
            reading = job.reading
            reading.heard_at = now
            if reading.unsettled and tp not in answers:
                self._took(job, _nothing_new(reading), now)
            if reading.stalled(now):
                self._stalled(asked, job)
            self._again(asked, job, now)

    def _again(self, asked: Round, job: Job, now: float) -> None:
        """The next fetch asks for it, too, unless it needs something else by now."""
        if job.flight is not asked:
            return
        if self._main is None and self._is_due(job, now):
            asked.stay(job)
        else:  # a newcomer is the main lane's next, also where that had nothing to do by now
            self._fetcher.release(job)
            self._fetcher.kick()

    # what came

    def _answered(self, job: Job, fetched: Fetched, now: float) -> Rest | None:
        """Hand over what came. What is returned reads the rest, where it is too much at once."""
        reading = job.reading
        if fetched.error_code:
            self._refused(job, cause_of(fetched.error_code), now)
            return None
        if fetched.preferred_replica not in (-1, self._node):
            job.replica, job.replica_until = fetched.preferred_replica, now + REPLICA_FOR
            self._fetcher.lane(job.replica)  # it may lead nothing that is read here
            return None
        assert job.want is not None
        if job.want.offset != reading.place.offset:
            return None
        if not fetched.records:  # as of most partitions of most answers
            nothing: Decoded = _new(Decoded, ((), job.want.offset, NO_EPOCH, 0, None))
            self._decoded(job, fetched, nothing, now)
            return None
        decoding = Decoding(
            reading.tp,
            fetched.records,
            job.want.offset,
            aborted=fetched.aborted,
            read_committed=job.committed,
            end=fetched.high_watermark,
        )
        first = decoding.read(BULK_RECORDS if self._gathers else SLICE_RECORDS)
        self._fetcher.reads.bytes[reading.tp.topic] += len(fetched.records)
        if decoding.done:
            self._decoded(job, fetched, first, now)
            return None
        if self._gathers:
            return partial(self._gather_rest, job, fetched, decoding, first)
        if not self._decoded(job, fetched, first, now):
            return None
        return partial(self._read_rest, job, fetched, decoding)

    async def _gather_rest(
        self,
        job: Job,
        fetched: Fetched,
        decoding: Decoding,
        first: Decoded,
        is_ours: Callable[[], bool],
    ) -> None:
        decoded = await gather(decoding, self._fetcher.cluster.inflation, first)
        if is_ours():
            job.reading.heard_at = now = self._fetcher.now()
            self._decoded(job, fetched, decoded, now)

    async def _read_rest(
        self, job: Job, fetched: Fetched, decoding: Decoding, is_ours: Callable[[], bool]
    ) -> None:
        await self._fetcher.pause()
        async with aclosing(slices(decoding, self._fetcher.cluster.inflation)) as some:
            async for decoded in some:
                if not is_ours():
                    return
                job.reading.heard_at = now = self._fetcher.now()
                if not self._decoded(job, fetched, decoded, now):
                    return
                await self._fetcher.pause()
                await asyncio.sleep(0)

    def _decoded(self, job: Job, fetched: Fetched, decoded: Decoded, now: float) -> bool:
        """Hand over a slice. False: what comes after it is to be fetched again."""
        assert job.want is not None
        reading = job.reading
        entries: Sequence[Entry] = decoded.entries
        after, epoch = decoded.next_offset, decoded.last_epoch
        if decoded.error is not None and after == job.want.offset:
            damaged = self._damaged(job, fetched, decoded.error, now)
            if damaged is None:
                return False
            entries, after, epoch = [damaged], damaged.next, damaged.epoch
        job.failures = 0
        reads, topic = self._fetcher.reads, reading.tp.topic
        understand, ask = self._fetcher.understand(topic), None
        if understand is not None:
            entries, ask = understand(entries)
            if ask is not None:
                if not entries:
                    self._fetcher.wait(job, ask)
                    return False
                after, epoch = entries[-1].next, entries[-1].epoch
        reads.records[topic] += len(entries)
        high, stable = fetched.high_watermark, fetched.last_stable_offset
        end = stable if job.committed and stable >= 0 else high
        start = fetched.log_start_offset
        self._took(job, _new(core.Fetched, (entries, after, epoch, high, end, start)), now)
        return ask is None

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

    def _took(self, job: Job, fetched: core.Fetched, now: float) -> None:
        was = job.reading.cause
        entries = job.reading.on_fetched(fetched, now)
        if was is not None:
            self._note_resumed(job.reading.tp, was)
            self._fetcher.arrived(job)
            if was is Cause.DENIED:
                topic = label_topic(job.reading.tp.topic)
                self._fetcher.cluster.outages.recover(topic, "may be read again")
                self._fetcher.retry_topic(job.reading.tp.topic)
        if entries:
            self._fetcher.hand(job, entries)

    def _note_resumed(self, tp: TopicPartition, cause: Cause) -> None:
        """Have it said, in one line with all that resume at about the same time."""
        if not self._resumed:
            self._loop.call_later(RESUMED_SECONDS, self._tell_resumed)
        self._resumed.setdefault(cause, []).append(tp)

    def _tell_resumed(self) -> None:
        resumed, self._resumed = self._resumed, {}
        for cause, tps in resumed.items():
            extra = {"broker": self._node, "cause": cause}
            if len(tps) == 1:
                what = f"topic={tps[0].topic} partition={tps[0].partition}"
                extra |= tps[0]._asdict()
            else:
                what = f"broker={self._node}: {len(tps)} partitions"
            log.info("FETCH resumed %s after cause=%s", what, cause, extra=extra)

    def _stalled(self, asked: Round, job: Job) -> None:
        """Start the conversation over: what one of the two sides believes is wrong."""
        reading = job.reading
        log.warning(
            "no progress on %s at offset %s; asking anew", reading.tp, reading.place.offset,
            extra=reading.tp._asdict(),
        )  # fmt: skip
        reading.progress_at, job.replica = reading.heard_at, None
        asked.session.lost()
        self._fetcher.refresh(f"{reading.tp} makes no progress")

    def _refused(self, job: Job, cause: Cause, now: float) -> None:
        if job.replica is not None:  # a replica's word counts for nothing: ask the leader
            job.replica = None
            return
        self._fetcher.hinder(job, cause, None)
        if cause is Cause.DENIED:
            why = "the gateway may not read it; allow it READ"
            self._fetcher.cluster.outages.fail(label_topic(job.reading.tp.topic), cause, why)
        if RULES[cause].action in (Action.REFRESH, Action.WATCH):
            self._fetcher.refresh(f"{job.reading.tp}: {cause}")

    def _failed(self, asked: Round, exc: KafkaError) -> None:
        cause = cause_of(code_of(exc))
        brokers_own = isinstance(exc, (BrokerUnavailable, AuthenticationFailed))
        delay = exc.retry_after if brokers_own else None
        self._fetcher.fail_broker(self._node, exc)
        for job in list(asked.jobs.values()):
            if job.flight is asked:
                job.replica = None
                self._fetcher.hinder(job, cause, None if delay is None else max(delay, 0.02))
        self._fetcher.refresh(f"broker {self._node}: {cause}")


def _nothing_new(reading: Reading) -> core.Fetched:
    offset = reading.place.offset
    assert offset is not None
    return core.Fetched(
        (), offset, reading.place.epoch, reading.high_watermark,
        reading.last_stable_offset, reading.log_start,
    )  # fmt: skip
