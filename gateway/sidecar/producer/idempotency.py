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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.sections.sidecar import Producer as Settings
from gateway.core.backoff import BackoffPolicy, ContentionBackoff
from gateway.core.delivery.claims import Claim, ClaimResult
from gateway.errors import AccessDenied, BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.produce.transactional_producer import TransactionalProducer, WrittenOffsets
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import StatusError

from .claim_log import KEY_BYTES, ClaimLog, build_in_doubt_error
from .transactions import TransactionPool

log = logging.getLogger(__name__)

TAKEOVER_POLL_S = 1.0  # between looks at a claim that this process takes over already
TAKEOVER_RETRY_DELAY_S = 1.5  # at most, after the first time that others fenced us under a claim

# Writes the records in a transaction whose last record is what the given function makes of the
# answer, and returns the answer and the offsets of all records.
ProduceCallback = Callable[
    [TransactionalProducer, Callable[[bytes], ProducerRecord]],
    Awaitable[tuple[bytes, WrittenOffsets]],
]


class StoredResponse(NamedTuple):
    """The answer to a request, and whether another attempt did the work."""

    body: bytes
    is_repeated: bool


class IdempotencyStore:
    """Run requests by their keys.

    The producer component creates it and runs `run`, which does nothing until the first request
    with a key.
    """

    def __init__(
        self, context: Context, settings: Settings, transaction_pool: TransactionPool
    ) -> None:
        self._context = context
        self._timeout_s = settings.timeout
        self._transaction_timeout_s = settings.transaction_timeout
        # A second more than its owner may take to write: a request that is in time keeps its claim.
        self._claim_timeout_s = settings.timeout + 1.0
        self.claim_log = ClaimLog(context, settings, self._claim_timeout_s)
        self.claims = self.claim_log.claims
        self._transaction_pool = transaction_pool
        self._keys_in_takeover: set[bytes] = set()  # by requests of this process
        self._lost_claims: ContentionBackoff[Claim] = ContentionBackoff(
            BackoffPolicy(TAKEOVER_RETRY_DELAY_S, self._claim_timeout_s, jitter=2 / 3),
            random.random,
        )
        self._is_requested = asyncio.Event()  # set by the first request

    async def run(self) -> None:
        """Read the topic until cancelled, from the first request on."""
        await self._is_requested.wait()
        await self.claim_log.run()

    async def find_response(self, scope: str, digest: bytes) -> StoredResponse | None:
        """Return the answer to an earlier request with this scope, or raise StatusError 422.

        Call it before a request is encoded: its topic or schema may have changed since it was
        written.
        """
        with suppress(TimeoutError):  # `run_once` says why
            async with asyncio.timeout(self._timeout_s):
                await self._wait_until_read()
        return await self._load_response(_hash_scope(scope), digest, is_repeated=True)

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
        key, attempt = _hash_scope(scope), _Attempt()
        try:
            # The time of another owner's claim, and twice that of writing: the claim and the work.
            async with asyncio.timeout(self._claim_timeout_s + 2 * self._timeout_s):
                await self._wait_until_read()
                while True:
                    response = await self._attempt(key, digest, produce, attempt)
                    if response is not None:
                        return response
        except TimeoutError:
            reason = self._describe_delay(key, attempt)
            if attempt.may_be_written or self.claims.get_first_claim(key) is not None:
                raise build_in_doubt_error(f"it may have been done: {reason}") from None
            problem = f"{reason}; try again with the same Idempotency-Key"
            raise BrokerUnavailable(problem, retry_after=1.0) from None
        except KafkaError as exc:
            is_told = isinstance(exc, BrokerUnavailable) and exc.timeout
            if attempt.may_be_written and not is_told:  # `_resolve_failure` could not find out
                raise build_in_doubt_error(f"it may have been done: {exc}") from exc
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

    async def _wait_until_read(self) -> None:
        self._is_requested.set()
        follower = self.claim_log.follower
        await follower.wait_for(lambda: follower.is_reading or self._find_denial() is not None)

    async def _load_response(
        self, key: bytes, digest: bytes, *, is_repeated: bool
    ) -> StoredResponse | None:
        result = self.claims.get_result(key, time.time())
        if result is None:
            return None
        _check_digest(result.digest, digest)
        return StoredResponse(await self.claim_log.load_response(key, result), is_repeated)

    def _describe_delay(self, key: bytes, attempt: _Attempt) -> str:
        if attempt.is_interrupted:
            return "its own transaction has not finished"
        if (failure := self.claim_log.follower.failure) is not None:
            return str(failure)
        if attempt.is_catching_up:
            topic = self.claim_log.topic
            return f"{topic} is not read to its end, as if a transaction were open there"
        first, own = self.claims.get_first_claim(key), attempt.transactions
        if first is not None and (own is None or first.owner != own.id):
            return "another request with this key has not finished"
        return "Kafka did not answer in time"

    def _find_denial(self) -> AccessDenied | None:
        failures = self.claim_log.follower.failures.values()
        return next((each for each in failures if isinstance(each, AccessDenied)), None)

    async def _attempt(
        self, key: bytes, digest: bytes, produce: ProduceCallback, attempt: _Attempt
    ) -> StoredResponse | None:
        """Take the next step for a key by its state. None means that the caller must look again."""
        if (denial := self._find_denial()) is not None:
            raise denial.with_traceback(None)
        is_repeated = not attempt.may_be_written
        if response := await self._load_response(key, digest, is_repeated=is_repeated):
            return response
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
            raise build_in_doubt_error(f"its owner may have done it: {exc}") from exc
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
        tp, layout, timestamp_ms = self.claim_log.get_partitions(key)[1], self.claim_log.layout, 0

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
        if offset >= 0 and layout == self.claim_log.layout:
            result = ClaimResult(digest, tp, offset, timestamp_ms / 1000)
            self.claim_log.store_response(key, result, body)
            self.claims.apply_result(key, result)
            await self.claim_log.follower.notify()
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
        tp, layout = self.claim_log.get_partitions(key)[0], self.claim_log.layout
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
        await self.claim_log.wait_read({tp: offset + 1}, layout, unless_done=key)
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
        tp, owner = self.claim_log.get_partitions(key)[0], transactions.id
        claim, layout = self.claims.get_claim(key, owner), self.claim_log.layout
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
        if layout != self.claim_log.layout:
            return True  # the offset may be of another topic than the claims that are read
        offset = offsets[tp][0]
        if claim is not None:  # Kafka may not say the offset (-1), but it is after the claim
            offset = max(offset, claim.offset + 1)
        self.claims.apply_release(key, owner, tp, offset)
        await self.claim_log.follower.notify()
        return True

    # Reading

    async def _wait_for_change(self, key: bytes, first: Claim, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.claim_log.follower.wait_for(
                    lambda: self.claims.get_first_claim(key) != first
                )

    async def _catch_up(self, key: bytes, attempt: _Attempt) -> None:
        """Wait until all present records of a key are read, also those of open transactions."""
        while True:
            layout = self.claim_log.layout
            ends = await self.claim_log.fetch_ends(key)
            attempt.is_catching_up = True
            await self.claim_log.wait_read(ends, layout)
            attempt.is_catching_up = False
            if layout == self.claim_log.layout:
                return


@dataclass(slots=True)
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

    transactions: TransactionalProducer | None = None
    claim: asyncio.Future[int] | None = None
    may_be_written: bool = False
    is_interrupted: bool = False
    is_catching_up: bool = False

    def finish(self, transactions: TransactionalProducer) -> None:
        """Note that the outcome of the work under an id is known."""
        self.may_be_written = False
        if transactions is self.transactions:
            self.transactions = None


def compute_digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:KEY_BYTES]


def _hash_scope(scope: str) -> bytes:
    return hashlib.sha256(scope.encode()).digest()[:KEY_BYTES]


def _check_digest(stored: bytes, requested: bytes) -> None:
    if stored != requested:
        problem = "this Idempotency-Key came with another body before"
        raise StatusError(422, f"{problem}; use another key for another request", code="KEY_REUSED")
