"""Run a request with an `Idempotency-Key` once, whichever replicas get it, however often.

All replicas read one topic. A request writes a claim there, which names a transactional id, and
waits until it has read its own claim: the first claim of a key in the log owns the key
(`core.delivery.claims`). The owner writes the records and their answer in one transaction under
that id; the other requests wait for the answer.

An expired claim is taken over by starting its transactional id again: that fences the owner and
aborts its open transaction. Then the log is read once more to its end, and the records are written
only if there is no answer yet and the claim was not released meanwhile. A release is a transaction
under the same id, too: a fenced owner cannot release a claim under which another request works.

Claims and answers have partitions of their own, because readers of committed records stop at an
open transaction, and those of requests may be long. A process knows its own releases and answers as
soon as Kafka has acknowledged them, however far behind it reads; `core.delivery.claims` says why
that is safe.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from gateway.config.sections.sidecar import Producer as Settings
from gateway.core.backoff import BackoffPolicy, ContentionBackoff
from gateway.core.caches import SizedCache
from gateway.core.delivery.claims import CLAIM_SLACK_S, Claim, ClaimResult, Claims
from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    Fenced,
    KafkaError,
    PartitionFailed,
    UnknownTopic,
)
from gateway.kafka.admin import create_topic
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.fetch.bounded_read import fetch_offset, read_committed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import (
    TransactionalProducer,
    WrittenOffsets,
)
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import StatusError

from .transactions import TransactionPool

log = logging.getLogger(__name__)

FETCH_MAX_WAIT_S = 1.0  # for Kafka to answer a fetch without new records
RETRY_DELAY_S = 0.25  # before what failed is tried again
DENIED_RETRY_DELAY_S = 5.0  # before what is not allowed is tried again
SWEEP_INTERVAL_S = 60.0  # between two sweeps of expired claims and results
TAKEOVER_POLL_S = 1.0  # between looks at a claim that this process takes over already
TAKEOVER_RETRY_DELAY_S = 1.5  # at most, after the first time that others fenced us under a claim
MAX_RECENT_RESPONSE_BYTES = 16 << 20  # of answers that are kept in memory; Kafka has all
_RESPONSE_OVERHEAD_BYTES = 200  # of each, beside its body
KEY_BYTES = 16  # of a hashed key, and of a digest; a claim's record has its owner after the key

# Writes the records in a transaction whose last record is what the given function makes of the
# answer, and returns the answer and the offsets of all records.
ProduceCallback = Callable[
    [TransactionalProducer, Callable[[bytes], ProducerRecord]],
    Awaitable[tuple[bytes, WrittenOffsets]],
]


class Layout(NamedTuple):
    """The topic that is read and its used partitions (1, or an even number) decide where a key is.

    The id is None where brokers do not have topic ids.
    """

    topic_id: UUID | None
    partitions: int


class StoredResponse(NamedTuple):
    """The answer to a request, and whether another attempt did the work."""

    body: bytes
    is_repeated: bool


class IdempotencyStore:
    """Run requests by their keys, and follow the topic of claims and answers.

    The producer component creates it and runs `run`, which does nothing until the first request
    with a key. `_next_offsets` and `_layout` change together, when the topic was found or found
    again: any offset is meaningless under another layout, so callers compare the layout before and
    after an await.
    """

    def __init__(
        self, context: Context, settings: Settings, transaction_pool: TransactionPool
    ) -> None:
        section = settings.idempotency
        self.claims = Claims(section.keys, section.window)
        self._context = context
        self._outages = context.cluster.outages
        self._section = section
        self._timeout_s = settings.timeout
        self._transaction_timeout_s = settings.transaction_timeout
        # A second more than its owner may take to write: a request that is in time keeps its claim.
        self._claim_timeout_s = settings.timeout + 1.0
        self._transaction_pool = transaction_pool
        # By the place of the answer, too: a key gets another one after its window.
        self._recent_responses: SizedCache[tuple[bytes, TopicPartition, int], bytes] = SizedCache(
            MAX_RECENT_RESPONSE_BYTES
        )
        self._keys_in_takeover: set[bytes] = set()  # by requests of this process
        self._lost_claims: ContentionBackoff[Claim] = ContentionBackoff(
            BackoffPolicy(TAKEOVER_RETRY_DELAY_S, self._claim_timeout_s, jitter=2 / 3),
            random.random,
        )
        self._next_offsets: dict[TopicPartition, int] = {}  # the next offset to read
        self._is_requested = asyncio.Event()  # set by the first request
        self._is_reading = asyncio.Event()  # set while requests may go on, if only to fail
        self._progress = asyncio.Condition()  # notified of whatever requests may wait for
        # Why a partition cannot be read; under None, why the topic cannot be found.
        self._failures: dict[TopicPartition | None, KafkaError] = {}
        self._layout: Layout | None = None  # of what is read, and of `_next_offsets`

    async def run_once(self, scope: str, digest: bytes, produce: ProduceCallback) -> StoredResponse:
        """Do the work unless a request with this scope did, and return the answer.

        Args:
            scope: The identity of the client, the topic, and the key.
            digest: The digest of the request's body.
            produce: Writes the records; its exceptions are raised, too.

        Raises:
            StatusError: 422, the scope was used with another digest.
            AccessDenied: Claims may not be read or written.
            BrokerUnavailable: The request is not done in time. With `timeout`, it may have been
                done, by this call or by another one with this scope.
        """
        key, attempt = hashlib.sha256(scope.encode()).digest()[:KEY_BYTES], _Attempt()
        try:
            # The time of another owner's claim, and twice that of writing: the claim and the work.
            async with asyncio.timeout(self._claim_timeout_s + 2 * self._timeout_s):
                self._is_requested.set()
                await self._is_reading.wait()
                while True:
                    response = await self._attempt(key, digest, produce, attempt)
                    if response is not None:
                        return response
        except TimeoutError:
            reason = self._describe_delay(key, attempt)
            if attempt.may_be_written or self.claims.get_first_claim(key) is not None:
                raise _build_in_doubt_error(f"it may have been done: {reason}") from None
            problem = f"{reason}; try again with the same Idempotency-Key"
            raise BrokerUnavailable(problem, retry_after=1.0) from None
        except KafkaError as exc:
            is_told = isinstance(exc, BrokerUnavailable) and exc.timeout
            if attempt.may_be_written and not is_told:  # `_resolve_failure` could not find out
                raise _build_in_doubt_error(f"it may have been done: {exc}") from exc
            raise
        finally:
            if attempt.transactions is not None and not attempt.may_be_written:
                # The claim came to nothing, or its work is done under another id. A result ends
                # all claims of its key, so nothing need be written. A release would be a
                # transaction, and where the process is killed before its end, the partition's
                # claims could not be read until Kafka aborts it.
                if self.claims.get_result(key, time.time()) is not None:
                    self._transaction_pool.release(attempt.transactions)
                else:
                    self._transaction_pool.run_in_background(self._withdraw(key, attempt))

    def _describe_delay(self, key: bytes, attempt: _Attempt) -> str:
        if attempt.is_interrupted:
            return "its own transaction has not finished"
        if attempt.is_catching_up and not self._failures:
            topic = self._section.topic
            return f"{topic} is not read to its end, as if a transaction were open there"
        if (failure := next(iter(self._failures.values()), None)) is not None:
            return str(failure)
        first, own = self.claims.get_first_claim(key), attempt.transactions
        if first is not None and (own is None or first.owner != own.id):
            return "another request with this key has not finished"
        return "Kafka did not answer in time"

    async def _attempt(
        self, key: bytes, digest: bytes, produce: ProduceCallback, attempt: _Attempt
    ) -> StoredResponse | None:
        """Take the next step for a key by its state. None means that the caller must look again."""
        for failure in self._failures.values():
            if isinstance(failure, AccessDenied):
                raise failure.with_traceback(None)
        result = self.claims.get_result(key, time.time())
        if result is not None:
            _check_digest(result.digest, digest)
            return StoredResponse(
                await self._load_response(key, result), is_repeated=not attempt.may_be_written
            )
        first = self.claims.get_first_claim(key)
        if first is None:  # nobody has the key: claim it, then look whose claim is the first
            attempt.transactions = attempt.transactions or await self._transaction_pool.acquire()
            await self._write_claim(key, digest, attempt, attempt.transactions.id)
            return None
        _check_digest(first.digest, digest)
        if (
            attempt.transactions is not None
            and first.owner == attempt.transactions.id
            and attempt.transactions.is_started
        ):  # it is this request's
            response = await self._execute(key, digest, produce, attempt, attempt.transactions)
        elif (delay_s := self._compute_takeover_delay(key, first)) > 0:  # others have the key
            await self._wait_for_change(key, first, delay_s)
            return None
        else:  # its owner has not finished in time
            self._keys_in_takeover.add(key)
            try:
                response = await self._take_over(key, digest, produce, attempt, first)
            finally:
                self._keys_in_takeover.discard(key)
        if response is None and self.claims.get_first_claim(key) == first:
            self._lost_claims.note_loss(first, time.monotonic())
        return response

    def _compute_takeover_delay(self, key: bytes, first: Claim) -> float:
        """Return after how many seconds a request may take over, or look again; 0 or less: now."""
        if key in self._keys_in_takeover:
            return TAKEOVER_POLL_S
        pause_s = self._lost_claims.get_remaining(first, time.monotonic())
        return max(pause_s, first.expires_at - time.time())

    async def _take_over(
        self, key: bytes, digest: bytes, produce: ProduceCallback, attempt: _Attempt, first: Claim
    ) -> StoredResponse | None:
        """Do the work in place of an owner whose claim has expired; None means: look again.

        Where claims are read late, the claim may have been released long since, and the key belong
        to another owner that is not fenced here. So the log is read to its end first. A release of
        this claim is in the log by then, or never will be: it takes the transactional id, which is
        ours now.
        """
        transactions = TransactionalProducer(
            self._context.cluster, first.owner, timeout=self._transaction_timeout_s
        )
        try:
            await transactions.start()
        except Fenced:
            return None
        except KafkaError as exc:
            raise _build_in_doubt_error(f"its owner may have done it: {exc}") from exc
        await self._catch_up(key, attempt)
        if (
            self.claims.get_result(key, time.time()) is not None
            or self.claims.get_first_claim(key) != first
        ):
            return None
        log.info("a request is taken over from %s, which did not finish it", first.owner)
        return await self._execute(key, digest, produce, attempt, transactions)

    async def _execute(
        self,
        key: bytes,
        digest: bytes,
        produce: ProduceCallback,
        attempt: _Attempt,
        transactions: TransactionalProducer,
    ) -> StoredResponse | None:
        """Do the work under a claim, and return its answer; None means: look again."""
        attempt.may_be_written = True
        tp, layout, timestamp_ms = self._get_partitions(key)[1], self._layout, 0

        def build_result(body: bytes) -> ProducerRecord:
            nonlocal timestamp_ms
            timestamp_ms = time.time_ns() // 1_000_000
            return ProducerRecord(tp, key, digest + body, (), timestamp_ms)

        try:
            body, offsets = await produce(transactions, build_result)
        except asyncio.CancelledError:
            attempt.is_interrupted = True
            raise
        except Fenced:
            return None  # another request took the claim over: wait for its answer
        except (PartitionFailed, AccessDenied):  # refused, so nothing is written
            if not await self._release_shielded(key, transactions):
                return None  # another request took the claim over here, too
            attempt.finish(transactions)
            raise
        except KafkaError as exc:
            return await self._resolve_failure(key, attempt, transactions, exc)
        if transactions is attempt.transactions:
            self._transaction_pool.release(transactions)
        attempt.finish(transactions)
        offset = offsets[tp][-1]
        if offset >= 0 and layout == self._layout:
            result = ClaimResult(digest, tp, offset, timestamp_ms / 1000)
            self._store_response(key, result, body)
            self.claims.apply_result(key, result)
            await self._notify()
        return StoredResponse(body, is_repeated=False)

    async def _resolve_failure(
        self,
        key: bytes,
        attempt: _Attempt,
        transactions: TransactionalProducer,
        failure: KafkaError,
    ) -> StoredResponse | None:
        """Find out whether the work was done after all, or raise the failure.

        Starting the id again aborts or completes its transaction, so the log is final then. None
        means: look again, for an answer or for another request's work.
        """
        try:
            await transactions.start()
        except Fenced:
            return None
        await self._catch_up(key, attempt)
        if self.claims.get_result(key, time.time()) is not None:
            return None
        if not await self._release_shielded(key, transactions):
            return None
        attempt.finish(transactions)
        reason = failure.__cause__ or failure  # without the doubt, which has ended
        raise BrokerUnavailable(f"{reason}; it is not written", retry_after=1.0) from failure

    # Writing

    async def _write_claim(self, key: bytes, digest: bytes, attempt: _Attempt, owner: str) -> None:
        """Write a claim and wait until it is read, and so are all claims before it.

        They decide whose the key is. An answer that is read decides it, too: a transaction that a
        killed replica left open may hold up the claims. If the topic was replaced meanwhile, the
        claim may be in either topic, and nothing is waited for. Errors are never in doubt
        (`timeout`): only the claim may be in Kafka.
        """
        tp, layout = self._get_partitions(key)[0], self._layout
        attempt.claim = self._context.producer.send(
            tp, key + owner.encode(), digest, timeout_s=self._timeout_s
        )
        # Shielded: a claim that Kafka gets must be released, so `_withdraw` waits for it.
        try:
            offset = await asyncio.shield(attempt.claim)
        except BrokerUnavailable as exc:
            problem = f"it is not written, as its key could not be claimed: {exc}"
            raise BrokerUnavailable(problem, retry_after=1.0) from exc
        attempt.is_catching_up = True
        await self._wait_read({tp: offset + 1}, layout, unless_done=key)
        attempt.is_catching_up = False

    async def _withdraw(self, key: bytes, attempt: _Attempt) -> None:
        if attempt.claim is not None and attempt.transactions is not None:
            await asyncio.wait([attempt.claim])
            await self._write_release(key, attempt.transactions)

    async def _release_shielded(self, key: bytes, transactions: TransactionalProducer) -> bool:
        """Release a claim, and continue in the background if the request is cancelled."""
        return await asyncio.shield(
            self._transaction_pool.run_in_background(self._write_release(key, transactions))
        )

    async def _write_release(self, key: bytes, transactions: TransactionalProducer) -> bool:
        """Write that a claim is released, and apply that as soon as Kafka has acknowledged it.

        A client whose records were refused may use the key for others at once, without a 422 until
        the release is read. False means that another request has taken the claim over.

        A release is not a plain record: that could arrive when another request had taken the claim
        over. All replicas would then drop the claim under which that request works, and yet another
        request with the key would write a second time.
        """
        tp, owner = self._get_partitions(key)[0], transactions.id
        claim, layout = self.claims.get_claim(key, owner), self._layout
        release = ProducerRecord(tp, key + owner.encode(), None, (), time.time_ns() // 1_000_000)
        try:
            offsets = await transactions.commit([release])
        except Fenced:
            return False
        except KafkaError as exc:
            log.debug("a claim is not released, and lasts until it expires: %s", exc)
            if not transactions.is_started:
                # An open transaction would hold up all readers of the claims' partition.
                self._transaction_pool.abort_in_background(transactions)
            return True
        if layout != self._layout:
            return True  # the offset may be of another topic than the claims that are read
        offset = offsets[tp][0]
        if claim is not None:  # Kafka may not say the offset (-1), but it is after the claim
            offset = max(offset, claim.offset + 1)
        self.claims.apply_release(key, owner, tp, offset)
        await self._notify()
        return True

    # Reading

    async def run(self) -> None:
        """Read the topic until cancelled, from the first request on.

        It starts again when the topic was deleted, replaced, or got more of the used partitions.
        """
        self._is_reading.clear()
        await self._is_requested.wait()
        while True:
            tps = await self._begin_with_retries()
            # Others that read the topic may end their watch of it.
            with self._context.cluster.metadata.watching([self._section.topic]):
                await self._follow_all(tps)
            await asyncio.sleep(RETRY_DELAY_S)  # brokers may not agree yet on the topic's state

    async def _follow_all(self, tps: Collection[TopicPartition]) -> None:
        tasks = [asyncio.create_task(self._follow(tp)) for tp in tps]
        tasks.append(asyncio.create_task(self._sweep()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # None of them is read now, so a failure is the topic's until it is found again.
            for tp in tps:
                if failure := self._failures.pop(tp, None):
                    self._failures[None] = failure

    async def _begin_with_retries(self) -> Mapping[TopicPartition, int]:
        while True:
            try:
                tps = await self.find_start_offsets()
            except KafkaError as exc:
                self._note_failure(None, exc)
                if isinstance(exc, AccessDenied):
                    self._is_reading.set()  # waiting requests go on, and raise the failure
                    await asyncio.sleep(DENIED_RETRY_DELAY_S)
                else:
                    self._is_reading.clear()
                    await asyncio.sleep(RETRY_DELAY_S)
            else:
                self._clear_failure(None)
                self._is_reading.set()
                await self._notify()
                return tps

    def _note_failure(self, tp: TopicPartition | None, error: KafkaError) -> None:
        self._failures[tp] = error
        if tp == next(iter(self._failures)):
            self._outages.report_error(format_topic_label(self._section.topic), error)

    def _clear_failure(self, tp: TopicPartition | None) -> None:
        if self._failures.pop(tp, None) is not None and not self._failures:
            self._outages.report_recovery(format_topic_label(self._section.topic), "is read")

    async def find_start_offsets(self) -> Mapping[TopicPartition, int]:
        cluster = self._context.cluster
        topic = await self._get_or_create_topic()
        layout = self._layout_of(topic)
        tps = [TopicPartition(topic.name, number) for number in range(layout.partitions)]
        since = int((time.time() - self._section.window - CLAIM_SLACK_S) * 1000)
        # The ends first: where no record is new enough, reading starts at the end, and a claim that
        # is written between the two requests must be read.
        ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST))
        starts = await cluster.list_offsets(dict.fromkeys(tps, since))
        next_offsets: dict[TopicPartition, int] = {}
        for tp in tps:
            end, start = ends[tp], starts[tp]
            if not isinstance(end, OffsetAndTimestamp) or not isinstance(start, OffsetAndTimestamp):
                code = end if isinstance(start, OffsetAndTimestamp) else start
                raise BrokerUnavailable(f"{tp} cannot be read (code {code})")
            next_offsets[tp] = start.offset if start.offset >= 0 else end.offset
        self.claims.restart()
        self._next_offsets, self._layout = next_offsets, layout
        return dict(next_offsets)

    def _layout_of(self, topic: TopicMetadata) -> Layout:
        """Return how a topic is used: by at most as many partitions as it is created with.

        Later ones are not used, so that replicas that started before and after look for a key in
        the same partition.
        """
        used = min(len(topic.partitions), self._section.partitions)
        # Pairs of one for claims and one for answers; a single partition has both.
        return Layout(topic.topic_id, used if used == 1 else used // 2 * 2)

    def is_current(self) -> bool:
        topic = self._context.cluster.get_topic(self._section.topic)
        return topic is not None and not topic.error and self._layout_of(topic) == self._layout

    async def _get_or_create_topic(self) -> TopicMetadata:
        name, section = self._section.topic, self._section
        try:
            return await self._context.get_topic(name)
        except UnknownTopic:
            configs = {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(int((section.window + 2 * CLAIM_SLACK_S) * 1000)),
            }
            replicas = -1 if section.replication is None else section.replication
            if await create_topic(
                self._context.cluster, name, partitions=section.partitions, replicas=replicas,
                configs=configs,
            ):  # fmt: skip
                log.info("created the topic %s, for requests with an Idempotency-Key", name)
            return await self._context.get_topic(name)

    def _get_partitions(self, key: bytes) -> tuple[TopicPartition, TopicPartition]:
        """Return the partition of a key's claims, and that of its answer."""
        pairs = len(self._next_offsets) // 2
        if not pairs:
            both = next(iter(self._next_offsets))
            return both, both
        number = 2 * (int.from_bytes(key[:4]) % pairs)
        return TopicPartition(self._section.topic, number), TopicPartition(
            self._section.topic, number + 1
        )

    async def _follow(self, tp: TopicPartition) -> None:
        cluster = self._context.cluster
        while self.is_current():
            try:
                batch = await read_committed(
                    cluster, tp, self._next_offsets[tp], max_wait=FETCH_MAX_WAIT_S
                )
            except KafkaError as exc:
                self._note_failure(tp, exc)
                await asyncio.sleep(
                    DENIED_RETRY_DELAY_S if isinstance(exc, AccessDenied) else RETRY_DELAY_S
                )
                if code_from_error(exc) == ErrorCode.OFFSET_OUT_OF_RANGE:
                    return  # records expired unread, or the topic was replaced: start again
                continue
            self._clear_failure(tp)
            now = time.time()
            for record in batch.records:
                self._apply_record(record, now)
            if batch.next_offset != self._next_offsets[tp]:
                self._next_offsets[tp] = batch.next_offset
                self.claims.set_read_position(tp, batch.next_offset)
            await self._notify()  # also without news: the topic may be current again

    async def _notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    def _apply_record(self, record: Record, now: float) -> None:
        key, owner = (
            (record.key or b"")[:KEY_BYTES],
            (record.key or b"")[KEY_BYTES:].decode("latin-1"),
        )
        value, written_at = record.value, record.timestamp / 1000
        # With an owner: a claim, or a release without a value. Without one: an answer.
        if owner and value is None:
            self.claims.on_release(key, owner, record.offset)
        elif owner and value is not None:
            claim = Claim(owner, value, record.offset, written_at + self._claim_timeout_s)
            self.claims.on_claim(key, claim, now)
        elif value is not None:
            self.claims.on_result(
                key, ClaimResult(value[:KEY_BYTES], record.tp, record.offset, written_at)
            )

    async def _wait_for_change(self, key: bytes, first: Claim, timeout_s: float) -> None:
        def has_changed() -> bool:
            return self.claims.get_first_claim(key) != first

        try:
            async with asyncio.timeout(timeout_s), self._progress:
                await self._progress.wait_for(has_changed)
        except TimeoutError:
            return

    async def _catch_up(self, key: bytes, attempt: _Attempt) -> None:
        """Wait until all present records of a key are read, also those of open transactions.

        Positions in a replaced topic mean nothing: they are beyond the new one's ends.
        """
        while True:
            layout = self._layout
            try:
                ends = {tp: await self._end_of(tp) for tp in self._get_partitions(key)}
            except (PartitionFailed, BrokerUnavailable) as exc:
                log.debug("the topic of keys cannot be read to its end: %s", exc)
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            if not self.is_current():
                await asyncio.sleep(RETRY_DELAY_S)  # `run` starts to read the new topic soon
                continue
            attempt.is_catching_up = True
            await self._wait_read(ends, layout)
            attempt.is_catching_up = False
            if layout == self._layout:
                return

    async def _wait_read(
        self,
        ends: Mapping[TopicPartition, int],
        layout: Layout | None,
        *,
        unless_done: bytes | None = None,
    ) -> None:
        """Wait until partitions are read to these ends, or the layout is another one.

        Records read from a deleted topic do not count. A result of the key `unless_done` ends the
        wait.
        """

        def is_read() -> bool:
            if layout != self._layout:
                return True
            if unless_done is not None and self.claims.get_result(unless_done, time.time()):
                return True
            return self.is_current() and all(
                self._next_offsets[tp] >= end for tp, end in ends.items()
            )

        async with self._progress:
            await self._progress.wait_for(is_read)

    async def _end_of(self, tp: TopicPartition) -> int:
        """Return the end of a partition of the topic that is known by its id."""
        cluster = self._context.cluster
        end = await fetch_offset(cluster, tp, LATEST)
        # ListOffsets names the topic. A fetch has its id, so it fails if the topic was replaced.
        await read_committed(cluster, tp, end, max_wait=0.0)
        return end

    async def _load_response(self, key: bytes, result: ClaimResult) -> bytes:
        """Return the answer of a result, from memory or from Kafka.

        Raises BrokerUnavailable (with `timeout` once the records are written), or StatusError 409
        if the answer is gone.
        """
        body = self._recent_responses.get((key, result.tp, result.offset))
        if body is None:
            try:
                batch = await read_committed(self._context.cluster, result.tp, result.offset)
            except KafkaError as exc:
                problem = f"it was done, and its answer cannot be read: {exc}"
                raise _build_in_doubt_error(problem) from exc
            # The topic may have been replaced, with another record at the offset, or none.
            record = batch.records[0] if batch.records else None
            if record is None and not self.claims.has_read_result(key):
                raise _build_in_doubt_error("it was done, and its answer cannot be read yet")
            if record is None or (record.offset, record.key) != (result.offset, key):
                problem = "it was done, and its answer is not there any more"
                raise StatusError(
                    409, f"{problem}; use another Idempotency-Key for another request"
                )
            body = (record.value or b"")[KEY_BYTES:]
            self._store_response(key, result, body)
        return body

    def _store_response(self, key: bytes, result: ClaimResult, body: bytes) -> None:
        place = key, result.tp, result.offset
        self._recent_responses.store(place, body, len(body) + _RESPONSE_OVERHEAD_BYTES)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.claims.expire(time.time())


class _Attempt:
    """The progress of one request.

    Attributes:
        transactions: The transactional id with which it claims; None before its first claim, and
            when the id went back to the pool or must not be used again.
        claim: The future offset of its latest claim.
        may_be_written: Whether this request may have written the records; only Kafka knows.
        is_interrupted: Whether the time was over while its transaction was written.
        is_catching_up: Whether it waits for records that are in the log to be read.
    """

    def __init__(self) -> None:
        self.transactions: TransactionalProducer | None = None
        self.claim: asyncio.Future[int] | None = None
        self.may_be_written = False
        self.is_interrupted = False
        self.is_catching_up = False

    def finish(self, transactions: TransactionalProducer) -> None:
        """Note that the outcome of the work under an id is known."""
        self.may_be_written = False
        if transactions is self.transactions:
            self.transactions = None


def _build_in_doubt_error(problem: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"{problem}; try again with the same Idempotency-Key", timeout=True, retry_after=1.0
    )


def compute_digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:KEY_BYTES]


def _check_digest(stored: bytes, requested: bytes) -> None:
    if stored != requested:
        problem = "this Idempotency-Key came with another body before"
        raise StatusError(422, f"{problem}; use another key for another request", code="KEY_REUSED")
