"""Carry out the decisions of `core.delivery` for one lane."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import httpx

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.delivery_queue import (
    DeadLetterRecord,
    DeliveryQueue,
    DeliveryRules,
    ProbeBackend,
    SendRecords,
    SendToDeadLetters,
    SettledRecords,
    WaitUntil,
)
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    SuspectBatch,
    Verdict,
)
from gateway.core.log.record import TopicPartition
from gateway.errors import RegistryUnavailable
from gateway.kafka.client.outages import Outages
from gateway.sidecar.context import AuditEvent, Auditor, Context
from gateway.sidecar.http.requests import RequestIds
from gateway.telemetry.counts import Histogram
from gateway.telemetry.logs import log_context

from .backend import BackendClient, BatchEncoder, get_ids
from .dead_letters import GROUP_HEADER, DeadLetterResult, DeadLetterWriter
from .offset_committer import OffsetCommitter

log = logging.getLogger(__name__)

# Of batches in metrics, by the verdict.
_LABELS = {BatchResults: "answered", BackendUnavailable: "away", SuspectBatch: "suspect"}
VERDICT_NAMES = tuple(_LABELS.values())
RECORD_OUTCOMES = ("processed", "dead", "refused")


@dataclass(slots=True)
class ReactiveCounts:
    """Count the work of one group, for metrics.

    Attributes:
        records: Records by topic and outcome (`processed`, `dead`, `refused`).
        batches: Batches by verdict (`answered`, `away`, `suspect`).
        repeated: Records that were sent another time.
        seconds: How long the back end took to answer.
    """

    records: Counter[tuple[str, str]] = field(default_factory=Counter)
    batches: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    seconds: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class LaneContext:
    """Shared by the lanes of one group.

    Lanes go only a bounded number of batches ahead of `committer`, if there is one. `on_settled` is
    called before the offsets may be committed. Each batch has the further HTTP `headers`.
    """

    group: str
    backend: BackendClient
    encoder: BatchEncoder
    dead_letters: DeadLetterWriter
    committer: OffsetCommitter | None
    on_settled: Callable[[SettledRecords], None] | None = None
    counts: ReactiveCounts = field(default_factory=ReactiveCounts)
    outages: Outages = field(default_factory=lambda: Outages(time.monotonic))
    auditor: Auditor | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_group(
        cls,
        context: Context,
        settings: Group,
        client: httpx.AsyncClient,
        committer: OffsetCommitter | None = None,
        **others: Any,
    ) -> LaneContext:
        return cls(
            settings.group,
            BackendClient(client, settings.backend, accept_empty=settings.accept_empty),
            BatchEncoder(context.codecs, context.section, settings),
            DeadLetterWriter.from_group(context, settings),
            committer,
            auditor=context.auditor,
            **others,
        )


class LaneRunner:
    """Run one lane: its queue, its partitions, and the loop that sends its batches.

    The group creates it, decides about its partitions and sets `moved_at`.

    Args:
        on_step: Called at the start of each step, also if nothing but its partitions changed.
        number: Distinguishes it from the other lanes of its group, in the log.

    Attributes:
        queue: The records of the lane; it decides the next step.
        moved_at: When it last moved, or had nothing to do, in seconds of the loop's clock.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        context: LaneContext,
        on_step: Callable[[LaneRunner], None],
        number: int = 0,
    ) -> None:
        self.queue = DeliveryQueue(rules)
        self.tps: set[TopicPartition] = set()
        self.moved_at = _now()
        self._context = context
        self._on_step = on_step
        self._last_seen: tuple[int, Mapping[TopicPartition, int | None]] = (0, {})
        self._wake = asyncio.Event()
        self._step_done = asyncio.Event()  # set and replaced after each step that did something
        self._send_task: asyncio.Task[Verdict] | None = None
        self._label = f"group={context.group} lane={number}"

    def wake(self) -> None:
        self._wake.set()

    def has_moved(self, positions: Mapping[TopicPartition, int | None]) -> bool:
        """Return whether a record was settled, or the read positions changed, since last time."""
        before, self._last_seen = self._last_seen, (self.queue.settled_count, positions)
        return before != self._last_seen

    async def run(self) -> None:
        try:
            while True:
                await self._run_step()
        finally:
            self._context.outages.report_recovery(self._label, "is held up no more")

    async def _run_step(self) -> None:
        # Cleared first: whatever happens during this step leads to another one.
        self._wake.clear()
        if self._context.committer is not None:
            self.queue.held_partitions = self._context.committer.find_held(self.tps, self.wake)
        self._on_step(self)
        step = self.queue.next_step(_now())
        if step is None or isinstance(step, WaitUntil):
            await self._wait(step)
        else:
            self._record_settled(await self._execute(step))
            cause = "dead-letters" if isinstance(step, SendToDeadLetters) else "back-end"
            self._report_trouble(self.queue.problem, cause)
            self._step_done.set()
            self._step_done = asyncio.Event()

    # Partitions that are taken away

    async def release(self, tps: Collection[TopicPartition]) -> None:
        """Give up partitions, and return when none of their records is in flight."""
        self.tps -= set(tps)
        # Records that wait are dropped: the next owner of the partition reads them.
        self.queue.release_partitions(tps)
        self._wake.set()
        while self.queue.has_unsettled(tps):
            await self._step_done.wait()

    def drop(self, tps: Collection[TopicPartition]) -> bool:
        """Give up partitions at once, and return whether a record of theirs was not settled."""
        had_unsettled = self.queue.has_unsettled(tps)
        self.queue.drop_partitions(tps)
        self.tps -= set(tps)
        # A batch with records of other partitions, too, is still waited for.
        if self.queue.is_abandoned and self._send_task is not None:
            self._send_task.cancel()
        self._wake.set()
        return had_unsettled

    # Steps

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
                return self.queue.on_response(verdict, _now())
            case ProbeBackend():
                failure = await self._context.backend.describe_failure()
                self.queue.on_probe(not failure, _now(), failure)
                return None
            case SendToDeadLetters(dead):
                unwritten, reason, refused = await self._write_dead_letters(dead)
                for dead_letter in refused:
                    self._context.counts.records[dead_letter.record.tp.topic, "refused"] += 1
                return self.queue.on_dead_letters(unwritten, _now(), reason)
            case _:
                assert_never(step)

    async def _send_shielded(self, step: SendRecords) -> Verdict:
        """Send a batch in a task that `drop` can cancel without ending the lane."""
        task = self._send_task = asyncio.create_task(self._send(step))
        try:
            await asyncio.wait([task])
        finally:
            self._send_task = None
            task.cancel()
        return (
            BackendUnavailable("its partitions belong to another member")
            if task.cancelled()
            else task.result()
        )

    async def _send(self, step: SendRecords) -> Verdict:
        context, ids = self._context, RequestIds.create()
        if step.attempt:
            context.counts.repeated += len(step.records)
        with log_context(group=context.group, correlation=ids.correlation):
            try:
                batch = await context.encoder.encode(step.records)
                if not batch.sent:  # no record could be encoded: the back end is not asked
                    return batch.complete_verdict(BatchResults([]))
                start = _now()
                own_headers = {GROUP_HEADER: context.group, **dict(ids.to_http_headers())}
                headers = {**own_headers, **context.headers}
                verdict = await context.backend.post(batch.body, batch.sent, headers)
                context.counts.seconds.observe(_now() - start)
                log.debug("%d records: %s", len(batch.sent), verdict)
                return batch.complete_verdict(verdict)
            except RegistryUnavailable as error:
                return BackendUnavailable(str(error), error.retry_after)
            except Exception:
                log.exception("a batch of group %s could not be sent; it is kept", context.group)
                return BackendUnavailable("the sidecar failed; its log says why")

    async def _write_dead_letters(self, dead: Sequence[DeadLetterRecord]) -> DeadLetterResult:
        try:
            return await self._context.dead_letters.write(dead)
        except Exception:
            log.exception("dead letters of group %s could not be written", self._context.group)
            return DeadLetterResult(dead, "the sidecar failed; its log says why")

    def _record_settled(self, settled: SettledRecords | None) -> None:
        context = self._context
        if settled is None:
            return
        self.moved_at = _now()
        for record in settled.processed:
            context.counts.records[record.tp.topic, "processed"] += 1
        for dead_letter in settled.dead_letters:
            context.counts.records[dead_letter.record.tp.topic, "dead"] += 1
        if context.auditor is not None:
            _audit_settled(context.auditor, settled)
        if context.on_settled is not None:
            context.on_settled(settled)
        if context.committer is not None:
            context.committer.enqueue(settled.commit_offsets)

    def _report_trouble(self, trouble: str, cause: str) -> None:
        """Log that a batch waits and why, or that none does any more.

        Outages are distinguished by their cause, because the text may differ with each attempt.
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


def _audit_settled(auditor: Auditor, settled: SettledRecords) -> None:
    processed = ((record, None) for record in settled.processed)
    dead = ((letter.record, letter.reason) for letter in settled.dead_letters)
    for record, error in (*processed, *dead):
        place = record.tp, record.offset, record.key
        auditor.record(AuditEvent("REACTIVE_CONSUMER", *place, *get_ids(record), error))


def _now() -> float:
    return asyncio.get_running_loop().time()
