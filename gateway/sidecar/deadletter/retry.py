"""Dead letters to the back end once more, and what becomes of them: in one transaction.

What is processed is done with. What fails again goes behind the last of the dead letters, its count
of retries one up, so that it holds up nothing; at the last retry it is parked instead: audited, and
passed over, and in the topic for as long as that keeps records. Each is one transaction with how
far the group is, by an id that only one has at a time: whatever crashes, a letter is never lost nor
there twice, though the back end may be asked for one twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    Verdict,
)
from gateway.errors import RegistryUnavailable
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.transactional_producer import TransactionalProducer, TransactionRecord
from gateway.sidecar.context import Auditor, Context
from gateway.sidecar.http.ids import get_current_ids
from gateway.sidecar.reactive.backend import BackendClient
from gateway.sidecar.reactive.batch_encoder import BatchEncoder
from gateway.sidecar.reactive.dead_letters import choose_partition
from gateway.sidecar.reactive.lane_runner import GROUP_HEADER
from gateway.sidecar.reactive.message import RETRIES_HEADER

from .queue import DeadLetterQueue, NextOffsets, QueuedDeadLetter

PROCESSED, RETURNED, PARKED, COPIED = "processed", "returned", "parked", "copied"


class RetriedLetter(NamedTuple):
    """What became of one. reason: why it failed; empty otherwise."""

    found: QueuedDeadLetter
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class RetryResult:
    """away: why the back end was asked for no more; retry_after: seconds, as it wants."""

    letters: list[RetriedLetter] = field(default_factory=list)
    backend_failure: str = ""
    retry_after: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return Counter(each.outcome for each in self.letters)


def create_transactions(cluster: Cluster, queue: DeadLetterQueue) -> TransactionalProducer:
    """The one writer of what the group does with its letters in that topic."""
    return TransactionalProducer(cluster, f"dead-letters-{queue.group}-{queue.topic}")


class DeadLetterRetry:
    """One batch at a time. audit: told of what is done with."""

    def __init__(
        self,
        queue: DeadLetterQueue,
        back_end: BackendClient,
        writer: BatchEncoder,
        auditor: Auditor,
    ) -> None:
        self._queue = queue
        self._back_end = back_end
        self._writer = writer
        self._auditor = auditor

    async def retry_batch(
        self,
        transactions: TransactionalProducer,
        letters: Sequence[QueuedDeadLetter],
        offsets: NextOffsets,
        *,
        last: bool,
    ) -> RetryResult:
        """points: behind all of them. Raises KafkaError: then nothing has become of them, but that
        the back end may have processed some."""
        result = RetryResult()
        for item, found in zip(await self._deliver(letters, result), letters, strict=False):
            outcome = PROCESSED if item.is_processed else PARKED if last else RETURNED
            result.letters.append(RetriedLetter(found, outcome, item.reason))
        if len(result.letters) < len(letters):
            offsets = _get_next_offsets(letters[: len(result.letters)])
        if offsets:
            writes = [
                _build_returned_write(each) for each in result.letters if each.outcome == RETURNED
            ]
            await transactions.commit(writes, group=self._queue.offsets_group, offsets=offsets)
        for each in result.letters:
            self._audit_letter(each)
        return result

    async def _deliver(
        self, letters: Sequence[QueuedDeadLetter], result: RetryResult
    ) -> Sequence[RecordResult]:
        """Of all, or of those before the one at which the back end went away."""
        if not letters:
            return []
        verdict = await self._request_verdict(letters)
        match verdict:
            case BatchResults(items):
                return items
            case SuspectBatch(reason) if len(letters) == 1:
                unwell = await self._back_end.describe_failure()
                if not unwell:
                    return [RecordResult(False, reason)]
                result.backend_failure = f"{reason}; {unwell}"
            case SuspectBatch():
                return await self._deliver_one_by_one(letters, result)
            case BackendUnavailable(reason, retry_after):
                result.backend_failure, result.retry_after = reason, retry_after
        return []

    async def _deliver_one_by_one(
        self, letters: Sequence[QueuedDeadLetter], result: RetryResult
    ) -> Sequence[RecordResult]:
        """One of them may be what the back end stumbles over."""
        items: list[RecordResult] = []
        for each in letters:
            items += await self._deliver([each], result)
            if result.backend_failure:
                break
        return items

    async def _request_verdict(self, letters: Sequence[QueuedDeadLetter]) -> Verdict:
        try:
            written = await self._writer.encode([each.origin for each in letters])
        except RegistryUnavailable as error:
            return BackendUnavailable(str(error), error.retry_after)
        verdict: Verdict = BatchResults([])
        if written.sent:
            retries = max(each.message.retries for each in letters) + 1
            ids = dict(get_current_ids().to_http_headers())
            headers = {GROUP_HEADER: self._queue.group, RETRIES_HEADER: str(retries), **ids}
            verdict = await self._back_end.post(written.body, written.sent, headers)
        return written.complete_verdict(verdict)

    def _audit_letter(self, told: RetriedLetter) -> None:
        if told.outcome == RETURNED:
            return
        letter = told.found.message
        self._auditor.record_consumed(
            letter.origin.topic, letter.origin.partition, letter.offset, letter.key,
            reactive=True, correlation=letter.correlation_id,
            traceability=letter.traceability_id, error=told.reason or None,
        )  # fmt: skip


class DeadLetterCopier:
    """Back to the topics that they are from: as any record there, for all groups that read it.

    The header X-Dead-Letter-Retries says so. context: to know those topics by.
    """

    def __init__(self, queue: DeadLetterQueue, context: Context) -> None:
        self._queue = queue
        self._context = context

    async def copy_batch(
        self,
        transactions: TransactionalProducer,
        letters: Sequence[QueuedDeadLetter],
        offsets: NextOffsets,
    ) -> RetryResult:
        """points: behind all of them. Raises KafkaError: then nothing has become of them."""
        writes = [await self._build_write(each) for each in letters]
        if offsets:
            await transactions.commit(writes, group=self._queue.offsets_group, offsets=offsets)
        return RetryResult([RetriedLetter(each, COPIED) for each in letters])

    async def _build_write(self, found: QueuedDeadLetter) -> TransactionRecord:
        letter, origin = found.message, found.message.origin
        tp = choose_partition(await self._context.get_topic(origin.topic), letter)
        kept = [each for each in letter.headers if each[0] != RETRIES_HEADER]
        headers = [*kept, (RETRIES_HEADER, str(letter.retries + 1).encode())]
        return TransactionRecord(tp, letter.key, letter.value, headers, letter.timestamp)


def _get_next_offsets(letters: Sequence[QueuedDeadLetter]) -> NextOffsets:
    return {each.record.tp: each.record.next_offset for each in letters}


def _build_returned_write(told: RetriedLetter) -> TransactionRecord:
    letter = replace(
        told.found.message, retries=told.found.message.retries + 1, stacktrace=told.reason
    )
    tp, now = told.found.record.tp, time.time_ns() // 1_000_000
    return TransactionRecord(tp, letter.key, letter.value, letter.to_headers(), now)
