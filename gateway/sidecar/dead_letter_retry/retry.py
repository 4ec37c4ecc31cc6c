"""Deliver dead letters to the back end again, and write their outcomes in one transaction.

A dead letter that is processed is done. One that fails again is appended to the topic with a higher
count of retries, so that it holds up nothing. At the last retry, or if it is too large to be
appended, it is parked instead: audited, skipped from then on, and kept in the topic for its
retention time.

The transaction has the new records and the offsets of the group, under an id that one process has
at a time. So in any crash, a dead letter is neither lost nor duplicated in the topic, though the
back end may get one twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    Verdict,
)
from gateway.errors import RegistryUnavailable
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import TransactionalProducer, find_left_out
from gateway.sidecar.context import AuditEvent, Auditor, Context
from gateway.sidecar.http.ids import get_current_ids
from gateway.sidecar.reactive.backend import BackendClient
from gateway.sidecar.reactive.batch_encoder import BatchEncoder
from gateway.sidecar.reactive.message import GROUP_HEADER, RETRIES_HEADER, shorten_headers
from gateway.sidecar.topics import check_writable, choose_partition

from .queue import DeadLetterQueue, NextOffsets, QueuedDeadLetter

# The outcomes of a dead letter; COPIED is that of `DeadLetterCopier`.
PROCESSED, RETURNED, PARKED, COPIED = "processed", "returned", "parked", "copied"
# Of what is parked, because nothing could be written in its place.
TOO_LARGE_REASON = "too large for the topic; raise its max.message.bytes"


class RetriedLetter(NamedTuple):
    """A dead letter, its outcome (one of the constants above), and why it failed."""

    queued: QueuedDeadLetter
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class RetryResult:
    """The outcomes of a batch of dead letters.

    Attributes:
        letters: Those with an outcome, the first ones of the batch.
        backend_failure: Why the back end was not asked about the others; empty if it was.
        retry_after: The delay that the back end requested, in seconds; 0.0 if none.
    """

    letters: list[RetriedLetter] = field(default_factory=list)
    backend_failure: str = ""
    retry_after: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return Counter(retried.outcome for retried in self.letters)


def create_transactions(context: Context, queue: DeadLetterQueue) -> TransactionalProducer:
    """Return the producer for a group's dead letters; starting it fences other processes."""
    return context.create_transactions(f"dead-letters-{queue.group}-{queue.topic}")


class DeadLetterRetry:
    def __init__(
        self,
        queue: DeadLetterQueue,
        backend: BackendClient,
        encoder: BatchEncoder,
        auditor: Auditor,
    ) -> None:
        self._queue = queue
        self._backend = backend
        self._encoder = encoder
        self._auditor = auditor

    async def retry_batch(
        self,
        transactions: TransactionalProducer,
        letters: Sequence[QueuedDeadLetter],
        offsets: NextOffsets,
        *,
        last: bool,
    ) -> RetryResult:
        """Deliver a batch, and commit its outcomes.

        Args:
            transactions: The producer of `create_transactions`, started.
            offsets: The next offsets of the group after all of them.
            last: Whether to park those that fail, instead of appending them.

        Raises:
            BrokerUnavailable: With `timeout`, it may be committed.
            KafkaError: Nothing is committed, but the back end may have processed some.
        """
        result = RetryResult()
        # The results may be fewer: of those before the back end became unavailable.
        for item, queued in zip(await self._deliver(letters, result), letters, strict=False):
            outcome = PROCESSED if item.is_processed else PARKED if last else RETURNED
            result.letters.append(RetriedLetter(queued, outcome, item.reason))
        # Offsets are committed only up to the last one that something became of.
        if len(result.letters) < len(letters):
            offsets = _get_next_offsets(letters[: len(result.letters)])
        if offsets:
            returned = [
                index for index, each in enumerate(result.letters) if each.outcome == RETURNED
            ]
            writes = [_build_returned_write(result.letters[index]) for index in returned]
            written = await transactions.commit(
                writes, group=self._queue.offsets_group, offsets=offsets, shorten=_shorten_returned
            )
            for position in find_left_out(writes, written):
                retried = result.letters[returned[position]]
                reason = f"{retried.reason}; {TOO_LARGE_REASON}"
                result.letters[returned[position]] = RetriedLetter(retried.queued, PARKED, reason)
        for retried in result.letters:
            self._audit_letter(retried)
        return result

    async def _deliver(
        self, letters: Sequence[QueuedDeadLetter], result: RetryResult
    ) -> Sequence[RecordResult]:
        """Return the results of all, or of those before the back end became unavailable."""
        if not letters:
            return []
        verdict = await self._request_verdict(letters)
        match verdict:
            case BatchResults(items):
                return items
            # The answer says nothing about single records. With one record that is its failure,
            # unless the back end is unhealthy.
            case SuspectBatch(reason) if len(letters) == 1:
                health_failure = await self._backend.describe_failure()
                if not health_failure:
                    return [RecordResult(False, reason)]
                result.backend_failure = f"{reason}; {health_failure}"
            case SuspectBatch():
                return await self._deliver_one_by_one(letters, result)
            case BackendUnavailable(reason, retry_after):
                result.backend_failure, result.retry_after = reason, retry_after
            case _:
                assert_never(verdict)
        return []

    async def _deliver_one_by_one(
        self, letters: Sequence[QueuedDeadLetter], result: RetryResult
    ) -> Sequence[RecordResult]:
        """Deliver dead letters one by one, because the back end may fail at only one of them."""
        results: list[RecordResult] = []
        for dead_letter in letters:
            results += await self._deliver([dead_letter], result)
            if result.backend_failure:
                break
        return results

    async def _request_verdict(self, letters: Sequence[QueuedDeadLetter]) -> Verdict:
        try:
            batch = await self._encoder.encode([dead_letter.origin for dead_letter in letters])
        except RegistryUnavailable as error:
            return BackendUnavailable(str(error), error.retry_after)
        verdict: Verdict = BatchResults([])
        if batch.sent:
            # The batch may have records with different counts: the header has the highest one.
            retries = max(dead_letter.message.retries for dead_letter in letters) + 1
            ids = dict(get_current_ids().to_http_headers())
            headers = {GROUP_HEADER: self._queue.group, RETRIES_HEADER: str(retries), **ids}
            verdict = await self._backend.post(batch.body, batch.sent, headers)
        return batch.complete_verdict(verdict)

    def _audit_letter(self, retried: RetriedLetter) -> None:
        if retried.outcome == RETURNED:
            return
        message = retried.queued.message
        self._auditor.record(
            AuditEvent(
                "REACTIVE_CONSUMER", message.origin, message.offset, message.key,
                message.correlation_id, message.traceability_id, retried.reason or None,
            )
        )  # fmt: skip


class DeadLetterCopier:
    """Copy dead letters back to the topics of their records, for all groups that read these."""

    def __init__(self, queue: DeadLetterQueue, context: Context) -> None:
        self._queue = queue
        self._context = context

    async def copy_batch(
        self,
        transactions: TransactionalProducer,
        letters: Sequence[QueuedDeadLetter],
        offsets: NextOffsets,
    ) -> RetryResult:
        """Copy a batch, and commit that it is done; arguments and errors as of `retry_batch`.

        A copy that is too large for its topic is left out, and the dead letter is parked. So is one
        that names another topic than the queue's: whoever may write dead letters could write to any
        topic. Raises StatusError 403 for a queue of a topic for Kafka or the sidecars alone.
        """
        check_writable(self._context, self._queue.origin_topic)
        parked = {
            index: f"it is of {dead_letter.message.origin.topic}; write it there yourself"
            for index, dead_letter in enumerate(letters)
            if dead_letter.message.origin.topic != self._queue.origin_topic
        }
        copied = [index for index in range(len(letters)) if index not in parked]
        writes = [await self._build_write(letters[index]) for index in copied]
        if offsets:
            written = await transactions.commit(
                writes, group=self._queue.offsets_group, offsets=offsets, shorten=_shorten_copy
            )
            left_out = find_left_out(writes, written)
            parked |= {copied[position]: TOO_LARGE_REASON for position in left_out}
        return RetryResult(
            [
                RetriedLetter(dead_letter, PARKED, parked[index])
                if index in parked
                else RetriedLetter(dead_letter, COPIED)
                for index, dead_letter in enumerate(letters)
            ]
        )

    async def _build_write(self, queued: QueuedDeadLetter) -> ProducerRecord:
        message, origin = queued.message, queued.message.origin
        topic = await self._context.get_topic(origin.topic)
        tp = choose_partition(topic, origin.partition, message.key)
        kept = [header for header in message.headers if header[0] != RETRIES_HEADER]
        headers = [*kept, (RETRIES_HEADER, str(message.retries + 1).encode())]
        return ProducerRecord(tp, message.key, message.value, headers, message.timestamp)


def _shorten_copy(record: ProducerRecord) -> ProducerRecord | None:
    """Remove the header that was added to a copy; None if it is gone already."""
    kept = [header for header in record.headers if header[0] != RETRIES_HEADER]
    return record._replace(headers=kept) if len(kept) < len(record.headers) else None


def _shorten_returned(record: ProducerRecord) -> ProducerRecord | None:
    headers = shorten_headers(record.headers)
    return None if headers is None else record._replace(headers=headers)


def _get_next_offsets(letters: Sequence[QueuedDeadLetter]) -> NextOffsets:
    return {dead_letter.record.tp: dead_letter.record.next_offset for dead_letter in letters}


def _build_returned_write(retried: RetriedLetter) -> ProducerRecord:
    queued = retried.queued
    message = replace(queued.message, retries=queued.message.retries + 1, stacktrace=retried.reason)
    now = time.time_ns() // 1_000_000
    return ProducerRecord(queued.record.tp, message.key, message.value, message.to_headers(), now)
