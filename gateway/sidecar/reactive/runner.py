"""One lane at work: what `core.delivery` decides, done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.batch import Bury, Dead, Probe, Rules, Send, Settled, Wait
from gateway.core.delivery.lane import Lane
from gateway.core.delivery.verdict import Answered, Away, Verdict
from gateway.core.log.record import TopicPartition
from gateway.errors import RegistryUnavailable
from gateway.kafka.client.outages import Outages
from gateway.sidecar.context import Audit, Unaudited
from gateway.sidecar.http.ids import Ids
from gateway.telemetry.about import about
from gateway.telemetry.histogram import Histogram

from .backend import BackEnd
from .dead_letters import DeadLetters
from .points import Points
from .written import Writer, ids_of

log = logging.getLogger(__name__)

GROUP = "X-Consumer-Group"


@dataclass(slots=True)
class Tallies:
    """Of one group.

    records: by what became of them (`processed, dead`); repeated: sent another time.
    batches: by the verdict. seconds: until the back end answered.
    """

    records: Counter[tuple[str, str]] = field(default_factory=Counter)  # topic, outcome
    batches: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    seconds: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class Works:
    """What the lanes of one group share.

    settled: told of what is done with, before its commit. outages: say in the log what holds up
    the lanes.
    """

    group: str
    back_end: BackEnd
    writer: Writer
    dead_letters: DeadLetters
    points: Points
    settled: Callable[[Settled], None]
    tallies: Tallies = field(default_factory=Tallies)
    outages: Outages = field(default_factory=lambda: Outages(time.monotonic))


class Runner:
    """A lane, its partitions, and its loop.

    on_turn: called in each turn of the loop, also where nothing but its partitions changed.
    number: tells it from the other lanes of its group, in the log.
    moved_at: when it was last seen to move, or to have nothing to do; loop time. Of its group.
    """

    def __init__(
        self, rules: Rules, works: Works, on_turn: Callable[[Runner], None], number: int = 0
    ) -> None:
        self.lane = Lane(rules)
        self.tps: set[TopicPartition] = set()
        self.moved_at = _now()
        self._works = works
        self._on_turn = on_turn
        self._seen: tuple[int, Mapping[TopicPartition, int | None]] = (0, {})
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._sending: asyncio.Task[Verdict] | None = None
        self._label = f"group={works.group} lane={number}"

    def wake(self) -> None:
        self._wake.set()

    def has_moved(self, positions: Mapping[TopicPartition, int | None]) -> bool:
        """Return whether anything was settled, or is read from elsewhere, since the last call.

        Args:
            positions: Where its partitions are read next.
        """
        before, self._seen = self._seen, (self.lane.settled, positions)
        return before != self._seen

    async def run(self) -> None:
        try:
            while True:
                await self._turn()
        finally:
            self._works.outages.recover(self._label, "is held up no more")

    async def _turn(self) -> None:
        self._wake.clear()
        self._on_turn(self)
        await self._works.points.good.wait()
        step = self.lane.next(_now())
        if step is None or isinstance(step, Wait):
            await self._idle(step)
        else:
            self._told(await self._done(step))
            cause = "dead-letters" if isinstance(step, Bury) else "back-end"
            self._tell_trouble(self.lane.trouble, cause)
            self._moved.set()
            self._moved = asyncio.Event()

    # partitions that go

    async def release(self, tps: Collection[TopicPartition]) -> None:
        """Returns when nothing of theirs is under way any more."""
        self.tps -= set(tps)  # what waited of them is dropped: they are not caught up with
        self.lane.leave(tps)
        self._wake.set()
        while self.lane.carries(tps):
            await self._moved.wait()

    def drop(self, tps: Collection[TopicPartition]) -> bool:
        """They are gone. True if something of theirs was not settled."""
        carried = self.lane.carries(tps)
        self.lane.drop(tps)
        self.tps -= set(tps)
        if self.lane.abandoned and self._sending is not None:
            self._sending.cancel()
        self._wake.set()
        return carried

    # steps

    async def _idle(self, wait: Wait | None) -> None:
        try:
            async with asyncio.timeout_at(None if wait is None else wait.until):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _done(self, step: Send | Probe | Bury) -> Settled | None:
        match step:
            case Send():
                verdict = await self._sent(step)
                self._works.tallies.batches[type(verdict).__name__.lower()] += 1
                return self.lane.answered(verdict, _now())
            case Probe():
                unwell = await self._works.back_end.unwell()
                self.lane.probed(not unwell, _now(), unwell)
                return None
            case Bury(dead):
                left, why = await self._buried(dead)
                return self.lane.buried(left, _now(), why)

    async def _sent(self, step: Send) -> Verdict:
        """Whatever happens: the batch stays, and the lane goes on with it."""
        task = self._sending = asyncio.create_task(self._send(step))
        try:
            await asyncio.wait([task])
        finally:
            self._sending = None
            task.cancel()
        return Away("its partitions are another's") if task.cancelled() else task.result()

    async def _send(self, step: Send) -> Verdict:
        works, ids = self._works, Ids.made()
        if step.attempt:
            works.tallies.repeated += len(step.records)
        with about(group=works.group, correlation=ids.correlation):
            try:
                written = await works.writer.write(step.records)
                if not written.sent:
                    return written.judged(Answered([]))
                began = _now()
                headers = {GROUP: works.group, **dict(ids.pairs())}
                verdict = await works.back_end.post(written.body, written.sent, headers)
                works.tallies.seconds.observe(_now() - began)
                log.debug("%d records: %s", len(written.sent), verdict)
                return written.judged(verdict)
            except RegistryUnavailable as error:
                return Away(str(error), error.retry_after)
            except Exception:
                log.exception("a batch of group %s could not be sent; it is kept", works.group)
                return Away("the sidecar failed; its log says why")

    async def _buried(self, dead: Sequence[Dead]) -> tuple[Sequence[Dead], str]:
        try:
            return await self._works.dead_letters.write(dead)
        except Exception:
            log.exception("dead letters of group %s could not be written", self._works.group)
            return dead, "the sidecar failed; its log says why"

    def _told(self, settled: Settled | None) -> None:
        works = self._works
        if settled is None:
            return
        self.moved_at = _now()
        for record in settled.processed:
            works.tallies.records[record.tp.topic, "processed"] += 1
        for each in settled.dead:
            works.tallies.records[each.record.tp.topic, "dead"] += 1
        works.settled(settled)
        works.points.note(settled.points)

    def _tell_trouble(self, trouble: str, cause: str) -> None:
        """Say in the log that a batch waits, and why, or that none does any more.

        The words may differ with each attempt: which broker it was, or when the next one is.
        """
        outages, group = self._works.outages, self._works.group
        if trouble:
            outages.fail(self._label, cause, f"a batch waits: {trouble}", group=group)
        else:
            outages.recover(self._label, "is held up no more")


def rules_of(settings: Group) -> Rules:
    return Rules(
        records=settings.max_poll_records,
        bytes=settings.request_max_bytes,
        retries=settings.max_retries,
        threshold=settings.batch_rollback_threshold * 100,
        dead_letters=settings.dead_letter_enabled,
        first=settings.retry_delay,
        ceiling=max(settings.retry_delay, settings.retry_delay_max),
    )


def audited(audit: Audit, settled: Settled) -> None:
    """Tell auditors what became of each record."""
    if isinstance(audit, Unaudited):
        return
    outcomes = [(record, None) for record in settled.processed]
    for record, error in [*outcomes, *((each.record, each.reason) for each in settled.dead)]:
        correlation, traceability = ids_of(record)
        audit.consumed(
            record.tp.topic, record.tp.partition, record.offset, record.key,
            reactive=True, correlation=correlation, traceability=traceability, error=error,
        )  # fmt: skip


def _now() -> float:
    return asyncio.get_running_loop().time()
