"""Read dead letters, deliver them to the back end again, and write what becomes of them.

The position of a group in the dead letters of a topic is a committed offset. A dead letter that is
processed is done. One that fails again is appended to the topic with a higher count of retries, so
that it holds up nothing. At the last retry, or if it is too large to be appended, it is parked
instead: audited, skipped from then on, and kept in the topic for its retention time.

The transaction has the new records and the offsets of the group, under an id that one process has
at a time. So in any crash, a dead letter is neither lost nor duplicated in the topic, though the
back end may get one twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
)
from gateway.core.group.partition_state import TopicMark, prefetched_size
from gateway.core.log.record import Record, TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.fetch.bounded_read import fetch_log_bounds, read_committed
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import TransactionalProducer, find_left_out
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.context import AuditEvent, Auditor
from gateway.sidecar.http.requests import get_current_ids
from gateway.sidecar.reactive.backend import (
    BackendClient,
    BatchEncoder,
    deliver_batch,
    get_ids,
)
from gateway.sidecar.reactive.dead_letters import (
    GROUP_HEADER,
    RETRIES_HEADER,
    DeadLetterMessage,
    parse_message,
    shorten_headers,
)
from gateway.sidecar.turns import take_turns

NextOffsets = Mapping[TopicPartition, int]

log = logging.getLogger(__name__)


class QueuedDeadLetter(NamedTuple):
    record: Record
    message: DeadLetterMessage

    @property
    def origin(self) -> Record:
        """Return the record as it was in its own topic."""
        message = self.message
        return Record(
            message.origin, message.offset, -1, message.timestamp, message.key, message.value,
            message.headers,
        )  # fmt: skip


@dataclass(slots=True)
class RetryPass:
    """The dead letters of a queue that are retried before any of them is retried once more.

    Those that fail are appended to their partition. Without an end, a partition with more of them
    than a batch would keep the others from ever being retried.

    Attributes:
        ends: The ends of the partitions when the pass began.
        max_records: The largest batch for a back end that was late; 0 to follow the settings.
    """

    ends: NextOffsets = field(default_factory=dict)
    max_records: int = 0

    def limit_ranges(self, ranges: Mapping[TopicPartition, range]) -> dict[TopicPartition, range]:
        return {
            tp: range(offsets.start, min(offsets.stop, self.ends.get(tp, 0)))
            for tp, offsets in ranges.items()
        }

    def adapt_batches(self, sent_count: int, result: RetryResult, most: int) -> None:
        """Halve the batches for a back end that was late, and double them while it is in time."""
        if result.is_late:
            self.max_records = max(1, sent_count // 2)
        elif result.letters:
            doubled = self.max_records * 2
            self.max_records = doubled if doubled < most else 0


class DeadLetterQueue:
    """Read the dead letters of a group in one topic. The methods raise KafkaError.

    The position is the committed offset of the group `<group>.dlq`. It is not the group itself,
    whose offsets only its members may commit. Dead letters of other groups in the same topic are
    skipped.

    The topic of the dead letters must be watched. Its name ends in `ext`.
    Offsets are committed under the name `offsets_group`. Portions are read while holding one of
    `reads`, which requests share: a portion may take 16 MiB, of which one letter is wanted.
    """

    def __init__(
        self, cluster: Cluster, topic: str, group: str, ext: str, reads: asyncio.Semaphore
    ) -> None:
        self.topic = topic
        self.origin_topic = topic.removesuffix(ext)
        self.group = group
        self.offsets_group = f"{group}{ext}"
        self._cluster = cluster
        self._reads = reads
        self._commits = GroupOffsets(cluster.coordinators, self.offsets_group)

    async def fetch_ranges(
        self, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, range]:
        """Return the ranges from the group's position to the ends as of now; by default all."""
        metadata = self._cluster.get_topic(self.topic)
        if metadata is None:
            return {}
        if tps is None:
            tps = [TopicPartition(self.topic, number) for number in metadata.partitions]
        committed = await self._commits.committed_with_topics(tps)
        # Behind the positions: others may have committed up to an end that is new.
        logs = await fetch_log_bounds(self._cluster, list(tps))
        ranges = {}
        for tp, log in logs.items():
            start = log.start
            if tp in committed:
                (offset, _, _), mark = committed[tp]
                known_ids = {mark and mark.topic_id, metadata.topic_id} - {None}
                # Otherwise it is of a topic of the same name that was deleted.
                if len(known_ids) < 2 and offset <= log.stop:
                    start = max(offset, log.start)
            ranges[tp] = range(start, log.stop)
        return dict(sorted(ranges.items()))

    async def fetch_starts(self, tps: Collection[TopicPartition] | None = None) -> NextOffsets:
        """Return where the group goes on; by default in all partitions."""
        return {tp: left.start for tp, left in (await self.fetch_ranges(tps)).items()}

    async def iter_dead_letters(
        self, ranges: Mapping[TopicPartition, range]
    ) -> AsyncIterator[tuple[Sequence[QueuedDeadLetter], NextOffsets]]:
        """Yield dead letters in portions, with the next offsets of the group after each portion.

        No dead letter comes twice. It ends with the ranges, or before an open transaction.
        """
        for tp, offsets in ranges.items():
            position = offsets.start
            while position < offsets.stop:
                # Others have their turns between the portions of one that finds nothing.
                async with self._reads:
                    batch = await read_committed(self._cluster, tp, position)
                    if batch.next_offset == position:
                        log.warning(
                            "dead letters wait at offset %d of %s, where a transaction is open",
                            position,
                            tp,
                        )
                        break
                    # Those behind the range came since it was asked for, and are not looked at.
                    position = min(batch.next_offset, offsets.stop)
                    records = [record for record in batch.records if record.offset < offsets.stop]
                    portion = await self._parse_records(records)
                yield portion, {tp: position}

    async def fetch_dead_letters(
        self,
        max_records: int,
        max_bytes: int,
        retry_pass: RetryPass | None = None,
    ) -> tuple[Sequence[QueuedDeadLetter], NextOffsets]:
        """Return the next dead letters, and the next offsets of the group after them.

        Args:
            max_records: At most so many; fewer may come while other requests wait to read.
            max_bytes: At most so many bytes of keys and values, but at least one dead letter.
            retry_pass: Whose dead letters come before those behind it. If none of them is left,
                another pass begins.
        """
        retry_pass = retry_pass or RetryPass()
        ranges = await self.fetch_ranges()
        in_pass = retry_pass.limit_ranges(ranges)
        taken, next_offsets = await self._take(in_pass, max_records, max_bytes)
        if not taken:
            retry_pass.ends = {tp: offsets.stop for tp, offsets in ranges.items()}
            behind = {
                tp: range(next_offsets.get(tp, offsets.start), offsets.stop)
                for tp, offsets in ranges.items()
            }
            taken, more_offsets = await self._take(behind, max_records, max_bytes)
            next_offsets |= more_offsets
        return taken, next_offsets

    async def _take(
        self, ranges: Mapping[TopicPartition, range], max_records: int, remaining_bytes: int
    ) -> tuple[Sequence[QueuedDeadLetter], dict[TopicPartition, int]]:
        taken: list[QueuedDeadLetter] = []
        next_offsets: dict[TopicPartition, int] = {}
        async for dead_letters, offsets_after in self.iter_dead_letters(ranges):
            for dead_letter in dead_letters:
                record = dead_letter.record
                remaining_bytes -= prefetched_size(record)
                if len(taken) >= max_records or (taken and remaining_bytes < 0):
                    return taken, next_offsets
                taken.append(dead_letter)
                next_offsets[record.tp] = record.next_offset
            # All of the portion are taken, so what was skipped after them is done with, too.
            next_offsets |= offsets_after
            # What is taken is in no account yet, so it does not wait for the turns of others.
            if len(taken) >= max_records or (taken and self._reads.locked()):
                break
        return taken, next_offsets

    def mark_offsets(self, offsets: NextOffsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return next offsets as they are committed: they say of which topic they are."""
        metadata, text = self._cluster.get_topic(self.topic), ""
        if metadata is not None and metadata.topic_id is not None:
            text = str(TopicMark(metadata.topic_id, self._cluster.coordinators.cluster_id))
        return {tp: OffsetAndMetadata(offset, metadata=text) for tp, offset in offsets.items()}

    async def _parse_records(self, records: Sequence[Record]) -> list[QueuedDeadLetter]:
        """Return the dead letters of the group in records."""
        own: list[QueuedDeadLetter] = []
        async with take_turns() as turns:
            for record in records:
                dead_letter = self._parse_record(record)
                if dead_letter.message.group in ("", self.group):
                    own.append(dead_letter)
                if turns.is_over():
                    await turns.pass_on()
        return own

    def _parse_record(self, record: Record) -> QueuedDeadLetter:
        """Return the dead letter in a record; another program's counts as one of this topic."""
        message = parse_message(record)
        if message is None:
            origin = TopicPartition(self.origin_topic, record.tp.partition)
            message = DeadLetterMessage(
                origin, record.offset, record.timestamp, record.key, record.value,
                tuple(record.headers), "", "",
            )  # fmt: skip
        if not message.correlation_id:
            correlation, traceability = get_ids(record)
            message = replace(message, correlation_id=correlation, traceability_id=traceability)
        return QueuedDeadLetter(record, message)


# The outcomes of a dead letter.
PROCESSED, RETURNED, PARKED = "processed", "returned", "parked"
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
        is_late: The back end did not answer in time: a smaller batch may do.
    """

    letters: list[RetriedLetter] = field(default_factory=list)
    backend_failure: str = ""
    retry_after: float = 0.0
    is_late: bool = False

    @property
    def counts(self) -> Counter[str]:
        return Counter(retried.outcome for retried in self.letters)


@dataclass(frozen=True, slots=True)
class DeadLetterRetry:
    _queue: DeadLetterQueue
    _backend: BackendClient
    _encoder: BatchEncoder
    _auditor: Auditor | None

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
            transactions: A producer that is started, which has fenced other processes.
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
            done = [each.queued.record for each in result.letters]
            offsets = {record.tp: record.next_offset for record in done}
        if offsets:
            returned = [
                index for index, each in enumerate(result.letters) if each.outcome == RETURNED
            ]
            writes = [_build_returned_write(result.letters[index]) for index in returned]
            written = await transactions.commit(
                writes,
                group=self._queue.offsets_group,
                offsets=self._queue.mark_offsets(offsets),
                shorten=_shorten_returned,
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
        # The batch may have records with different counts: the header has the highest one.
        retries = max(dead_letter.message.retries for dead_letter in letters) + 1
        ids = dict(get_current_ids().to_http_headers())
        headers = {GROUP_HEADER: self._queue.group, RETRIES_HEADER: str(retries), **ids}
        origins = [dead_letter.origin for dead_letter in letters]
        verdict = await deliver_batch(self._backend, self._encoder, origins, headers)
        match verdict:
            case BatchResults(items):
                return items
            # The answer says nothing about single records. With one record that is its failure,
            # unless the back end is unhealthy.
            case SuspectBatch(reason) | BackendUnavailable(reason, _, True) if len(letters) == 1:
                health_failure = await self._backend.describe_failure()
                if not health_failure:
                    return [RecordResult(False, reason)]
                result.backend_failure = f"{reason}; {health_failure}"
            case SuspectBatch():  # the back end may fail at only one of them
                results: list[RecordResult] = []
                for dead_letter in letters:
                    results += await self._deliver([dead_letter], result)
                    if result.backend_failure:
                        break
                return results
            case BackendUnavailable(reason, retry_after, is_late):
                result.backend_failure, result.retry_after = reason, retry_after
                result.is_late = is_late
            case _:
                assert_never(verdict)
        return []

    def _audit_letter(self, retried: RetriedLetter) -> None:
        if retried.outcome == RETURNED or self._auditor is None:
            return
        message = retried.queued.message
        self._auditor.record(
            AuditEvent(
                "REACTIVE_CONSUMER", message.origin, message.offset, message.key,
                message.correlation_id, message.traceability_id, retried.reason or None,
            )
        )  # fmt: skip


def _shorten_returned(record: ProducerRecord) -> ProducerRecord | None:
    headers = shorten_headers(record.headers)
    return None if headers is None else record._replace(headers=headers)


def _build_returned_write(retried: RetriedLetter) -> ProducerRecord:
    queued = retried.queued
    message = replace(queued.message, retries=queued.message.retries + 1, stacktrace=retried.reason)
    now = time.time_ns() // 1_000_000
    return ProducerRecord(queued.record.tp, message.key, message.value, message.to_headers(), now)
