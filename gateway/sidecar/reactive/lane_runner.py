"""One lane at work: what `core.delivery` decides, done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.batch import (
    DeadLetterRecord,
    DeliveryRules,
    ProbeBackend,
    SendRecords,
    SendToDeadLetters,
    SettledRecords,
    WaitUntil,
)
from gateway.core.delivery.delivery_queue import DeliveryQueue
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    SuspectBatch,
    Verdict,
)
from gateway.core.log.record import TopicPartition
from gateway.errors import RegistryUnavailable
from gateway.kafka.client.outages import Outages
from gateway.sidecar.context import Auditor, NullAuditor
from gateway.sidecar.http.ids import RequestIds
from gateway.telemetry.histogram import Histogram
from gateway.telemetry.log_context import log_context

from .backend import BackendClient
from .batch_encoder import BatchEncoder, get_ids
from .dead_letters import DeadLetterWriter
from .offset_committer import OffsetCommitter

log = logging.getLogger(__name__)

GROUP_HEADER = "X-Consumer-Group"
_LABELS = {BatchResults: "answered", BackendUnavailable: "away", SuspectBatch: "suspect"}


@dataclass(slots=True)
class ReactiveCounts:
    """Of one group.

    records: by what became of them (`processed, dead`); repeated: sent another time.
    batches: by the verdict. seconds: until the back end answered.
    """

    records: Counter[tuple[str, str]] = field(default_factory=Counter)  # topic, outcome
    batches: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    seconds: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class LaneContext:
    """What the lanes of one group share.

    settled: told of what is done with, before its commit. outages: say in the log what holds up
    the lanes.
    """

    group: str
    back_end: BackendClient
    writer: BatchEncoder
    dead_letters: DeadLetterWriter
    committer: OffsetCommitter
    on_settled: Callable[[SettledRecords], None]
    counts: ReactiveCounts = field(default_factory=ReactiveCounts)
    outages: Outages = field(default_factory=lambda: Outages(time.monotonic))


class LaneRunner:
    """A lane, its partitions, and its loop.

    on_turn: called in each turn of the loop, also where nothing but its partitions changed.
    number: tells it from the other lanes of its group, in the log.
    moved_at: when it was last seen to move, or to have nothing to do; loop time. Of its group.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        context: LaneContext,
        on_step: Callable[[LaneRunner], None],
        number: int = 0,
    ) -> None:
        self.lane = DeliveryQueue(rules)
        self.tps: set[TopicPartition] = set()
        self.moved_at = _now()
        self._context = context
        self._on_step = on_step
        self._last_seen: tuple[int, Mapping[TopicPartition, int | None]] = (0, {})
        self._wake = asyncio.Event()
        self._step_done = asyncio.Event()
        self._send_task: asyncio.Task[Verdict] | None = None
        self._label = f"group={context.group} lane={number}"

    def wake(self) -> None:
        self._wake.set()

    def has_moved(self, positions: Mapping[TopicPartition, int | None]) -> bool:
        """Return whether anything was settled, or is read from elsewhere, since the last call.

        Args:
            positions: Where its partitions are read next.
        """
        before, self._last_seen = self._last_seen, (self.lane.settled_count, positions)
        return before != self._last_seen

    async def run(self) -> None:
        try:
            while True:
                await self._run_step()
        finally:
            self._context.outages.report_recovery(self._label, "is held up no more")

    async def _run_step(self) -> None:
        self._wake.clear()
        self._on_step(self)
        await self._context.committer.can_commit.wait()
        step = self.lane.next_step(_now())
        if step is None or isinstance(step, WaitUntil):
            await self._wait(step)
        else:
            self._record_settled(await self._execute(step))
            cause = "dead-letters" if isinstance(step, SendToDeadLetters) else "back-end"
            self._report_trouble(self.lane.problem, cause)
            self._step_done.set()
            self._step_done = asyncio.Event()

    # partitions that go

    async def release(self, tps: Collection[TopicPartition]) -> None:
        """Returns when nothing of theirs is under way any more."""
        self.tps -= set(tps)  # what waited of them is dropped: they are not caught up with
        self.lane.release_partitions(tps)
        self._wake.set()
        while self.lane.has_unsettled(tps):
            await self._step_done.wait()

    def drop(self, tps: Collection[TopicPartition]) -> bool:
        """They are gone. True if something of theirs was not settled."""
        carried = self.lane.has_unsettled(tps)
        self.lane.drop_partitions(tps)
        self.tps -= set(tps)
        if self.lane.is_abandoned and self._send_task is not None:
            self._send_task.cancel()
        self._wake.set()
        return carried

    # steps

    async def _wait(self, wait: WaitUntil | None) -> None:
        try:
            async with asyncio.timeout_at(None if wait is None else wait.until):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _execute(
        self, step: SendRecords | ProbeBackend | SendToDeadLetters
    ) -> SettledRecords | None:
        match step:
            case SendRecords():
                verdict = await self._send_shielded(step)
                self._context.counts.batches[_LABELS[type(verdict)]] += 1
                return self.lane.on_response(verdict, _now())
            case ProbeBackend():
                unwell = await self._context.back_end.describe_failure()
                self.lane.on_probe(not unwell, _now(), unwell)
                return None
            case SendToDeadLetters(dead):
                left, why = await self._write_dead_letters(dead)
                return self.lane.on_dead_letters(left, _now(), why)

    async def _send_shielded(self, step: SendRecords) -> Verdict:
        """Whatever happens: the batch stays, and the lane goes on with it."""
        task = self._send_task = asyncio.create_task(self._send(step))
        try:
            await asyncio.wait([task])
        finally:
            self._send_task = None
            task.cancel()
        return (
            BackendUnavailable("its partitions are another's")
            if task.cancelled()
            else task.result()
        )

    async def _send(self, step: SendRecords) -> Verdict:
        works, ids = self._context, RequestIds.create()
        if step.attempt:
            works.counts.repeated += len(step.records)
        with log_context(group=works.group, correlation=ids.correlation):
            try:
                written = await works.writer.encode(step.records)
                if not written.sent:
                    return written.complete_verdict(BatchResults([]))
                began = _now()
                headers = {GROUP_HEADER: works.group, **dict(ids.to_http_headers())}
                verdict = await works.back_end.post(written.body, written.sent, headers)
                works.counts.seconds.observe(_now() - began)
                log.debug("%d records: %s", len(written.sent), verdict)
                return written.complete_verdict(verdict)
            except RegistryUnavailable as error:
                return BackendUnavailable(str(error), error.retry_after)
            except Exception:
                log.exception("a batch of group %s could not be sent; it is kept", works.group)
                return BackendUnavailable("the sidecar failed; its log says why")

    async def _write_dead_letters(
        self, dead: Sequence[DeadLetterRecord]
    ) -> tuple[Sequence[DeadLetterRecord], str]:
        try:
            return await self._context.dead_letters.write(dead)
        except Exception:
            log.exception("dead letters of group %s could not be written", self._context.group)
            return dead, "the sidecar failed; its log says why"

    def _record_settled(self, settled: SettledRecords | None) -> None:
        works = self._context
        if settled is None:
            return
        self.moved_at = _now()
        for record in settled.processed:
            works.counts.records[record.tp.topic, "processed"] += 1
        for each in settled.dead_letters:
            works.counts.records[each.record.tp.topic, "dead"] += 1
        works.on_settled(settled)
        works.committer.enqueue(settled.commit_offsets)

    def _report_trouble(self, trouble: str, cause: str) -> None:
        """Say in the log that a batch waits, and why, or that none does any more.

        The words may differ with each attempt: which broker it was, or when the next one is.
        """
        outages, group = self._context.outages, self._context.group
        if trouble:
            outages.report_failure(self._label, cause, f"a batch waits: {trouble}", group=group)
        else:
            outages.report_recovery(self._label, "is held up no more")


def build_rules(settings: Group) -> DeliveryRules:
    return DeliveryRules(
        max_records=settings.max_poll_records,
        max_bytes=settings.request_max_bytes,
        max_retries=settings.max_retries,
        rollback_percent=settings.batch_rollback_threshold * 100,
        has_dead_letters=settings.dead_letter_enabled,
        first_delay=settings.retry_delay,
        max_delay=max(settings.retry_delay, settings.retry_delay_max),
    )


def audit_settled(auditor: Auditor, settled: SettledRecords) -> None:
    """Tell auditors what became of each record."""
    if isinstance(auditor, NullAuditor):
        return
    outcomes = [(record, None) for record in settled.processed]
    for record, error in [
        *outcomes,
        *((each.record, each.reason) for each in settled.dead_letters),
    ]:
        correlation, traceability = get_ids(record)
        auditor.record_consumed(
            record.tp.topic, record.tp.partition, record.offset, record.key,
            reactive=True, correlation=correlation, traceability=traceability, error=error,
        )  # fmt: skip


def _now() -> float:
    return asyncio.get_running_loop().time()
