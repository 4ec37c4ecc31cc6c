"""Carry out the decisions of `core.delivery` for one lane, and commit what its batches settle.

Records that are settled and not committed are sent again by the next owner of the partitions. So of
each partition one batch may be settled and not committed while the next one is sent, and none is
begun once a commit of it has failed or was refused: the new owner of the partition began at the
last accepted one.

A commit that fails for some partitions (their topic was deleted, or may not be read any more) holds
up no other: these are tried again by themselves. At a time there is one commit of those and one of
the others.

A lane that asks for its third batch waits for a round trip to Kafka: a back end that answers after
5 ms gets 9,400 instead of 11,000 records a second in batches of 100.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, assert_never

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
from gateway.errors import KafkaError, NotOwned
from gateway.kafka.client.outages import Outages
from gateway.sidecar.context import AuditEvent, Auditor, Context
from gateway.sidecar.http.requests import RequestIds
from gateway.telemetry.counts import Histogram
from gateway.telemetry.logs import log_context

from .backend import BackendClient, BatchEncoder, deliver_batch, get_ids
from .dead_letters import GROUP_HEADER, DeadLetterResult, DeadLetterWriter

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
            headers = {GROUP_HEADER: context.group, **dict(ids.to_http_headers())}
            try:
                return await deliver_batch(
                    context.backend,
                    context.encoder,
                    step.records,
                    {**headers, **context.headers},
                    context.counts.seconds.observe,
                )
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


RETRY_DELAY_S = 0.5  # before a commit that failed is tried again
# Of one partition, when its lane sends nothing more: after a takeover these come again.
MAX_UNCOMMITTED_BATCHES = 2

CommitOffsets = Callable[[Mapping[TopicPartition, int]], Awaitable[None]]


class _SettledOffset(NamedTuple):
    number: int
    offset: int


class OffsetCommitter:
    """Collect offsets of one group, and commit them.

    The group creates it and runs `run`. A KafkaError of `commit` has the partitions for which it
    failed in `partitions`; None if for all.
    """

    def __init__(self, group: str, commit: CommitOffsets, outages: Outages | None = None) -> None:
        self._group = group
        self._commit_offsets = commit
        self._outages = outages or Outages(time.monotonic)
        # Of each partition the last ones that are not committed, at most MAX_UNCOMMITTED_BATCHES.
        # Their numbers distinguish what was forgotten and added again during a commit.
        self._pending: dict[TopicPartition, list[_SettledOffset]] = {}
        self._last_number = 0
        self._committed: dict[TopicPartition, int] = {}
        # Why the last commit of a partition failed. Of one that is said to be another member's the
        # consumer is about to say so, too; should it not, a later commit is accepted.
        self._errors: dict[TopicPartition, KafkaError] = {}
        self._wake = asyncio.Event()
        self._has_errors = asyncio.Event()
        self._retrying: Set[TopicPartition] = frozenset()  # those of `_errors` in a commit now
        self._lock = asyncio.Lock()  # of commits of partitions without an error
        self._retry_lock = asyncio.Lock()  # of the others
        self._waiting: set[Callable[[], None]] = set()

    @property
    def failure(self) -> str:
        return next(
            (str(error) for error in self._errors.values() if not isinstance(error, NotOwned)), ""
        )

    def enqueue(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Add the next offsets of partitions after a batch, which may be committed from now on."""
        for tp, offset in offsets.items():
            settled = self._pending.get(tp, [])
            if (settled[-1].offset if settled else self._committed.get(tp)) != offset:
                self._last_number += 1
                # Lanes that ask `find_held` add no third one; a position without a batch may.
                del settled[MAX_UNCOMMITTED_BATCHES - 1 :]
                self._pending[tp] = [*settled, _SettledOffset(self._last_number, offset)]
        if self._pending:
            self._wake.set()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget partitions that are not this member's any more."""
        for tp in tps:
            self._pending.pop(tp, None)
            self._committed.pop(tp, None)
            self._errors.pop(tp, None)
        self._report_recovery()
        self._wake_waiting()

    def committed(self, tp: TopicPartition) -> int | None:
        return self._committed.get(tp)

    def find_held(
        self, tps: Collection[TopicPartition], wake: Callable[[], None]
    ) -> Set[TopicPartition]:
        """Return the partitions of which no batch may be begun now.

        If there are any, `wake` is called once when it may be time to ask again.
        """
        held = {
            tp
            for tp in tps
            if tp in self._errors or len(self._pending.get(tp, ())) >= MAX_UNCOMMITTED_BATCHES
        }
        if held:
            self._waiting.add(wake)
        return held

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_forever())
            tasks.create_task(self._retry_forever())

    async def _commit_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            async with self._lock:
                await self._commit(self._select(self._pending.keys() - self._list_failing()))

    async def _retry_forever(self) -> None:
        while True:
            await self._has_errors.wait()
            await asyncio.sleep(RETRY_DELAY_S)
            async with self._retry_lock:
                selected = self._select(self._errors)
                self._retrying = selected.keys()
                try:
                    await self._commit(selected)
                finally:
                    self._retrying = frozenset()
            self._wake.set()  # what was added meanwhile had to wait
            if not self._errors:
                self._has_errors.clear()

    async def flush(self, tps: Collection[TopicPartition] | None = None) -> None:
        """Commit pending offsets now; raises KafkaError. Those of another member stay pending."""
        async with self._lock:
            chosen, failing = set(self._pending if tps is None else tps), self._list_failing()
            first = await self._commit(self._select(chosen - failing))
            # Those that fail are last: their commit may take until its timeout.
            async with self._retry_lock:
                second = await self._commit(self._select(chosen & failing))
        for error in (first, second):
            if error is not None and not isinstance(error, NotOwned):
                raise error

    def _list_failing(self) -> Set[TopicPartition]:
        return self._errors.keys() | self._retrying

    def _select(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, _SettledOffset]:
        """Return the pending offsets of partitions.

        No two commits under way may have the same partition: the older offset might be accepted
        last. The holder of `_lock` takes those that do not fail, the holder of `_retry_lock` the
        others.
        """
        return {tp: self._pending[tp][-1] for tp in tps if tp in self._pending}

    async def _commit(self, selected: Mapping[TopicPartition, _SettledOffset]) -> KafkaError | None:
        if not selected:
            return None
        error, failed = None, frozenset[tuple[str, int]]()
        try:
            await self._commit_offsets({tp: latest.offset for tp, latest in selected.items()})
        except KafkaError as exc:
            error = exc
            failed = frozenset(selected) if exc.partitions is None else exc.partitions
        if isinstance(error, NotOwned):
            if not failed <= self._errors.keys():  # else it was said before
                log.info("group %s: %s", self._group, error)
        elif error is not None:
            self._outages.report_error(self._outage_label, error, group=self._group)
        for tp, latest in selected.items():
            self._apply_commit(tp, latest, error if tp in failed else None)
        self._report_recovery()
        if not selected.keys() <= failed:
            self._wake_waiting()
        return error

    def _apply_commit(
        self, tp: TopicPartition, latest: _SettledOffset, error: KafkaError | None
    ) -> None:
        """Apply the result of a commit, unless its offset was forgotten meanwhile."""
        settled = self._pending.get(tp, [])
        left = [each for each in settled if each.number > latest.number]
        if len(left) == len(settled):
            return
        if error is not None:
            self._errors[tp] = error
            self._has_errors.set()
            return
        self._errors.pop(tp, None)
        self._committed[tp] = latest.offset
        if left:
            self._pending[tp] = left
            self._wake.set()  # it may have been added when the partition still had an error
        else:
            del self._pending[tp]

    def _report_recovery(self) -> None:
        if not self.failure:
            self._outages.report_recovery(self._outage_label, "work again")

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            wake()

    @property
    def _outage_label(self) -> str:
        return f"commits of group={self._group}"
