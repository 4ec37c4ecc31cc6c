"""Requests with an `Idempotency-Key`: done once, whichever replica they come to, and come again to.

All replicas read one topic. A request writes a claim there, which names a transactional id, and
waits until it has heard it: the first claim of a key has it (`core.claims`). Its owner writes the
records and their answer in one transaction under that id; the others wait for the answer. A claim
whose time is up is taken over, by its transactional id: whoever had that is fenced, and what it
left open is undone, before the log is read once more to its end. Only then, if there is no answer
yet and the claim was not released meanwhile, are the records written. A release is a transaction
under the same id, too: whoever is fenced cannot release a claim that another works under by then,
however late its requests come to Kafka. Claims and answers have partitions of their own, so that
the transactions of requests, which may be long, do not hold up the hearing of claims.

What this process wrote, releases and answers, it knows once Kafka has acknowledged it, however far
behind it reads; `core.claims` says why that is safe. Other replicas read it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.config.sections.sidecar import Producer as Settings
from gateway.core.delivery.claims import CLAIM_SLACK_S, Claim, ClaimResult, Claims
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.errors import UnknownTopic as Missing
from gateway.kafka.admin.topics import create_topic
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.fetch.committed_read import OUT_OF_RANGE, read_committed
from gateway.kafka.fetch.scan import fetch_offset
from gateway.kafka.produce.transactional_producer import (
    TransactionalProducer,
    TransactionRecord,
    WrittenOffsets,
)
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import StatusError

from .transactions import TransactionPool

log = logging.getLogger(__name__)

FETCH_MAX_WAIT_S = 1.0  # seconds that Kafka holds back a fetch without news
RETRY_DELAY_S = 0.25  # seconds until what failed is tried again
DENIED_RETRY_DELAY_S = 5.0  # seconds until what is not allowed is
SWEEP_INTERVAL_S = 60.0  # seconds
TAKEOVER_RETRY_RANGE_S = (0.5, 1.5)  # seconds until one that another is taking over is, from and to
MAX_RECENT_RESPONSES = 1000  # answers that are kept beside their places
KEY_BYTES = 16  # bytes of a key; a claim's record has its owner behind that

ProduceCallback = Callable[
    [TransactionalProducer, Callable[[bytes], TransactionRecord]],
    Awaitable[tuple[bytes, WrittenOffsets]],
]
"""Writes the records, and as the last of the same transaction what the callable makes of the
answer, which it returns with the offsets of them all."""


class Layout(NamedTuple):
    """Which topic is read, and how many of its partitions; the places of a key follow from both.

    topic_id: None where brokers do not tell it.
    """

    topic_id: UUID | None
    partitions: int


class StoredResponse(NamedTuple):
    """again: it was done before."""

    body: bytes
    is_repeated: bool


class IdempotencyStore:
    """See the module; `run` it. It reads from the first request on."""

    def __init__(
        self, context: Context, settings: Settings, transaction_pool: TransactionPool
    ) -> None:
        section = settings.idempotency
        self.claims = Claims(section.keys, section.window)
        self._context = context
        self._outages = context.cluster.outages
        self._section = section
        self._timeout_s = settings.timeout
        self._claim_timeout_s = settings.timeout + 1.0
        self._transaction_pool = transaction_pool
        self._recent_responses: OrderedDict[bytes, bytes] = OrderedDict()
        self._keys_in_takeover: set[bytes] = (
            set()
        )  # keys that a request of this process takes over now
        self._next_offsets: dict[TopicPartition, int] = {}
        self._is_requested = asyncio.Event()
        self._is_reading = asyncio.Event()
        self._progress = asyncio.Condition()
        self._failures: dict[TopicPartition | None, KafkaError] = {}  # None: before it is read
        self._layout: Layout | None = None  # of what is read, and of `_next`

    async def run_once(self, scope: str, digest: bytes, work: ProduceCallback) -> StoredResponse:
        """Of the first who came with this scope, in the window. scope: identity, topic and key.
        digest: of what is to be done.

        Raises Refusal 422 for another digest; AccessDenied where claims may not be read or written;
        BrokerUnavailable, with `timeout` where nobody knows by now whether it was done; whatever
        `work` raises.
        """
        key, mine = hashlib.sha256(scope.encode()).digest()[:KEY_BYTES], _Attempt()
        try:
            async with asyncio.timeout(self._claim_timeout_s + 2 * self._timeout_s):
                self._is_requested.set()
                await self._is_reading.wait()
                while True:
                    found = await self._attempt(key, digest, work, mine)
                    if found is not None:
                        return found
        except TimeoutError:
            failure = next(iter(self._failures.values()), None)
            why = str(failure) if failure else "another request with this key is not done"
            what = f"{why}; try again with the same Idempotency-Key"
            raise BrokerUnavailable(what, timeout=mine.may_be_written, retry_after=1.0) from None
        finally:
            if mine.transactions is not None and not mine.may_be_written:
                self._transaction_pool.run_in_background(self._withdraw(key, mine))

    async def _attempt(
        self, key: bytes, digest: bytes, work: ProduceCallback, attempt: _Attempt
    ) -> StoredResponse | None:
        """None: look again."""
        for failure in self._failures.values():
            if isinstance(failure, AccessDenied):
                raise failure.with_traceback(None)
        known = self.claims.get_result(key, time.time())
        if known is not None:
            _check_digest(known.digest, digest)
            return StoredResponse(
                await self._load_response(key, known), is_repeated=not attempt.may_be_written
            )
        first = self.claims.get_first_claim(key)
        if first is None:
            attempt.transactions = attempt.transactions or await self._transaction_pool.acquire()
            await self._write_claim(key, digest, attempt, attempt.transactions.id)
            return None
        _check_digest(first.digest, digest)
        if (
            attempt.transactions is not None
            and first.owner == attempt.transactions.id
            and attempt.transactions.is_started
        ):
            found = await self._execute(key, digest, work, attempt, attempt.transactions)
            if found is not None or self.claims.get_first_claim(key) != first:
                return found
        elif (left := first.expires_at - time.time()) > 0:
            await self._wait_for_change(key, first, left)
            return None
        elif key not in self._keys_in_takeover:
            self._keys_in_takeover.add(key)
            try:
                found = await self._take_over(key, digest, work, attempt, first)
            finally:
                self._keys_in_takeover.discard(key)
            if found is not None or self.claims.get_first_claim(key) != first:
                return found
        # Requests that take over from each other without a pause fence each other for seconds.
        await self._wait_for_change(key, first, random.uniform(*TAKEOVER_RETRY_RANGE_S))
        return None

    async def _take_over(
        self, key: bytes, digest: bytes, work: ProduceCallback, attempt: _Attempt, first: Claim
    ) -> StoredResponse | None:
        """Do it in place of its owner, whose time is up. None: look again.

        Where claims are read late, it may have been released long since, and the key be another's
        who works on it under an id of its own, which is not fenced here. A release of the claim is
        in the log by now, or never will be: it takes the id, which is ours.
        """
        taken = TransactionalProducer(self._context.cluster, first.owner)
        await taken.start()
        await self._catch_up(key)
        if (
            self.claims.get_result(key, time.time()) is not None
            or self.claims.get_first_claim(key) != first
        ):
            return None
        log.info("a request is taken over from %s, which did not end it", first.owner)
        return await self._execute(key, digest, work, attempt, taken)

    async def _execute(
        self,
        key: bytes,
        digest: bytes,
        work: ProduceCallback,
        attempt: _Attempt,
        transactions: TransactionalProducer,
    ) -> StoredResponse | None:
        attempt.may_be_written = True
        place, layout, at = self._get_partitions(key)[1], self._layout, 0

        def build_result(body: bytes) -> TransactionRecord:
            nonlocal at
            at = time.time_ns() // 1_000_000
            return TransactionRecord(place, key, digest + body, (), at)

        try:
            body, placed = await work(transactions, build_result)
        except Fenced:
            return None  # another is at it: its answer is waited for, the claim stays
        except (PartitionFailed, AccessDenied):
            if not await self._release_shielded(key, transactions):
                return None  # another is at it, too
            attempt.finish(transactions)
            raise
        except KafkaError as exc:
            return await self._resolve_failure(key, attempt, transactions, exc)
        if transactions is attempt.transactions:
            self._transaction_pool.release(transactions)
        attempt.finish(transactions)
        self._store_response(key, body)
        offset = placed[place][-1]
        if offset >= 0 and layout == self._layout:
            self.claims.apply_result(key, ClaimResult(digest, place, offset, at / 1000))
            await self._notify()
        return StoredResponse(body, is_repeated=False)

    async def _resolve_failure(
        self,
        key: bytes,
        attempt: _Attempt,
        transactions: TransactionalProducer,
        failure: KafkaError,
    ) -> StoredResponse | None:
        """Was it written? Once the id is started anew that is certain. Raises the failure."""
        await transactions.start()
        await self._catch_up(key)
        if self.claims.get_result(key, time.time()) is not None:
            return None
        if not await self._release_shielded(key, transactions):
            return None
        attempt.finish(transactions)
        raise BrokerUnavailable(f"{failure}; it is not written", retry_after=1.0) from failure

    # what is written

    async def _write_claim(self, key: bytes, digest: bytes, mine: _Attempt, owner: str) -> None:
        """And hear of it, and so of all claims before it: they decide whose it is.

        Or not, where the topic was made anew meanwhile: it may have been written to either.
        """
        place, layout = self._get_partitions(key)[0], self._layout
        mine.claim = self._context.producer.send(
            place, key + owner.encode(), digest, timeout_s=self._timeout_s
        )
        at = await asyncio.shield(mine.claim)
        await self._wait_read({place: at + 1}, layout)

    async def _withdraw(self, key: bytes, mine: _Attempt) -> None:
        """Release a claim that came to nothing, once Kafka has it: not before it."""
        if mine.claim is not None and mine.transactions is not None:
            await asyncio.wait([mine.claim])
            await self._write_release(key, mine.transactions)

    async def _release_shielded(self, key: bytes, by: TransactionalProducer) -> bool:
        """Release a claim; a request that is cancelled meanwhile leaves that to go on beside it."""
        return await asyncio.shield(
            self._transaction_pool.run_in_background(self._write_release(key, by))
        )

    async def _write_release(self, key: bytes, by: TransactionalProducer) -> bool:
        """Write that a claim is released, and know it as soon as Kafka has it.

        A client that was told that its records are refused may use the key for others at once. It
        was refused (422) for as long as the release was not read.

        It is not a record by itself, which could be sent in time and come to Kafka when somebody
        had taken the claim over. All replicas would drop the claim that is worked under then, and
        another request with the key would be written beside.

        Returns:
            False where somebody has taken the claim over: it is not released then.
        """
        place, owner = self._get_partitions(key)[0], by.id
        held, layout = self.claims.get_claim(key, owner), self._layout
        release = TransactionRecord(
            place, key + owner.encode(), None, (), time.time_ns() // 1_000_000
        )
        try:
            placed = await by.commit([release])
        except Fenced:
            return False
        except KafkaError as exc:
            log.debug("a claim is not released, which waits for its end now: %s", exc)
            if not by.is_started:
                self._transaction_pool.abort_in_background(
                    by
                )  # an open transaction holds up the hearing of claims
            return True
        if layout != self._layout:
            return True  # the offset is of another partition than the claims, or may be
        offset = placed[place][0]
        if held is not None:  # where Kafka does not say the offset: it is behind that claim
            offset = max(offset, held.offset + 1)
        self.claims.apply_release(key, owner, place, offset)
        await self._notify()
        return True

    # what is read

    async def run(self) -> None:
        """Read for as long as it runs; anew where the topic was deleted, replaced or enlarged to
        what is used of it."""
        self._is_reading.clear()
        await self._is_requested.wait()
        while True:
            places = await self._begin_with_retries()
            await self._follow_all(places)
            await asyncio.sleep(RETRY_DELAY_S)  # brokers may not agree yet on what became of it

    async def _follow_all(self, places: Sequence[TopicPartition]) -> None:
        """Read all partitions that are used, until the topic is not current any more."""
        tasks = [asyncio.create_task(self._follow(place)) for place in places]
        tasks.append(asyncio.create_task(self._sweep()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for place in places:  # none of them fails by itself any more
                if failure := self._failures.pop(place, None):
                    self._failures[None] = failure

    async def _begin_with_retries(self) -> Sequence[TopicPartition]:
        """Begin, however often that must be tried."""
        while True:
            try:
                places = await self._find_start_offsets()
            except KafkaError as exc:
                self._note_failure(None, exc)
                if isinstance(exc, AccessDenied):
                    self._is_reading.set()  # the requests that wait are told
                    await asyncio.sleep(DENIED_RETRY_DELAY_S)
                else:
                    self._is_reading.clear()
                    await asyncio.sleep(RETRY_DELAY_S)
            else:
                self._clear_failure(None)
                self._is_reading.set()
                await self._notify()
                return places

    def _note_failure(self, place: TopicPartition | None, error: KafkaError) -> None:
        """Note why a partition cannot be read. The log has the first one that cannot."""
        self._failures[place] = error
        if place == next(iter(self._failures)):
            self._outages.report_error(format_topic_label(self._section.topic), error)

    def _clear_failure(self, place: TopicPartition | None) -> None:
        if self._failures.pop(place, None) is not None and not self._failures:
            self._outages.report_recovery(format_topic_label(self._section.topic), "is read")

    async def _find_start_offsets(self) -> Sequence[TopicPartition]:
        """Find the topic, or make it, and where to read its partitions from."""
        cluster = self._context.cluster
        known = await self._get_or_create_topic()
        layout = self._layout_of(known)
        places = [TopicPartition(known.name, number) for number in range(layout.partitions)]
        since = int((time.time() - self._section.window - CLAIM_SLACK_S) * 1000)
        # First the ends, of what is committed: a claim that comes between the two is read then.
        ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
        found = await cluster.list_offsets(dict.fromkeys(places, since))
        begins: dict[TopicPartition, int] = {}
        for place in places:
            end, told = ends[place], found[place]
            if not isinstance(end, OffsetAndTimestamp) or not isinstance(told, OffsetAndTimestamp):
                code = end if isinstance(told, OffsetAndTimestamp) else told
                raise BrokerUnavailable(f"{place} cannot be read (code {code})")
            begins[place] = told.offset if told.offset >= 0 else end.offset
        self.claims.restart()
        self._next_offsets, self._layout = begins, layout
        return places

    def _layout_of(self, known: TopicMetadata) -> Layout:
        """Return how a topic is used.

        At most as many partitions are used as the topic is made with. Partitions that are added
        later are not, so that a replica that started before that and one that started after it
        look for a key in the same place.
        """
        used = min(len(known.partitions), self._section.partitions)
        return Layout(known.topic_id, used if used == 1 else used // 2 * 2)

    def _is_current(self) -> bool:
        """Return whether the topic is there, and used as it is read."""
        known = self._context.cluster.get_topic(self._section.topic)
        return known is not None and not known.error and self._layout_of(known) == self._layout

    async def _get_or_create_topic(self) -> TopicMetadata:
        name, section = self._section.topic, self._section
        try:
            return await self._context.get_topic(name)
        except Missing:
            configs = {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(int((section.window + 2 * CLAIM_SLACK_S) * 1000)),
            }
            replicas = -1 if section.replication is None else section.replication
            if await create_topic(
                self._context.cluster, name, partitions=section.partitions, replicas=replicas,
                configs=configs,
            ):  # fmt: skip
                log.info("made the topic %s, for requests with an Idempotency-Key", name)
            return await self._context.get_topic(name)

    def _get_partitions(self, key: bytes) -> tuple[TopicPartition, TopicPartition]:
        """Of its claims, and of its result."""
        pairs = len(self._next_offsets) // 2
        if not pairs:
            both = next(iter(self._next_offsets))
            return both, both
        at = 2 * (int.from_bytes(key[:4]) % pairs)
        return TopicPartition(self._section.topic, at), TopicPartition(self._section.topic, at + 1)

    async def _follow(self, place: TopicPartition) -> None:
        """Read a partition until the topic is not current any more."""
        cluster = self._context.cluster
        while self._is_current():
            try:
                got = await read_committed(
                    cluster, place, self._next_offsets[place], max_wait=FETCH_MAX_WAIT_S
                )
            except KafkaError as exc:
                self._note_failure(place, exc)
                await asyncio.sleep(
                    DENIED_RETRY_DELAY_S if isinstance(exc, AccessDenied) else RETRY_DELAY_S
                )
                if isinstance(exc, PartitionFailed) and exc.code == OUT_OF_RANGE:
                    return
                continue
            self._clear_failure(place)
            now = time.time()
            for record in got.records:
                self._apply_record(record, now)
            if got.next_offset != self._next_offsets[place]:
                self._next_offsets[place] = got.next_offset
                self.claims.set_read_position(place, got.next_offset)
            await self._notify()  # also without news: the topic may be current again

    async def _notify(self) -> None:
        """Have the requests that wait for a change look again."""
        async with self._progress:
            self._progress.notify_all()

    def _apply_record(self, record: Record, now: float) -> None:
        key, owner = (
            (record.key or b"")[:KEY_BYTES],
            (record.key or b"")[KEY_BYTES:].decode("latin-1"),
        )
        value, at = record.value, record.timestamp / 1000
        if owner and value is None:
            self.claims.on_release(key, owner, record.offset)
        elif owner and value is not None:
            claim = Claim(owner, value, record.offset, at + self._claim_timeout_s)
            self.claims.on_claim(key, claim, now)
        elif value is not None:
            self.claims.on_result(key, ClaimResult(value[:KEY_BYTES], record.tp, record.offset, at))

    async def _wait_for_change(self, key: bytes, first: Claim, timeout_s: float) -> None:
        def has_changed() -> bool:
            return self.claims.get_first_claim(key) != first

        try:
            async with asyncio.timeout(timeout_s), self._progress:
                await self._progress.wait_for(has_changed)
        except TimeoutError:
            return

    async def _catch_up(self, key: bytes) -> None:
        """Wait until all is read that is there now of a key, also of transactions that are open.

        Where the topic was made anew, positions say nothing until it is read: those of the topic
        before it are beyond its ends.
        """
        while True:
            layout = self._layout
            try:
                ends = {place: await self._end_of(place) for place in self._get_partitions(key)}
            except (PartitionFailed, BrokerUnavailable) as exc:
                log.debug("the topic of keys cannot be read to its end: %s", exc)
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            if not self._is_current():
                await asyncio.sleep(RETRY_DELAY_S)  # it is read anew soon
                continue
            await self._wait_read(ends, layout)
            if layout == self._layout:
                return

    async def _wait_read(self, ends: Mapping[TopicPartition, int], layout: Layout | None) -> None:
        """Wait until partitions are read to these ends, or others are read than those of a layout.

        What was read of a topic that is gone does not count.
        """

        def is_read() -> bool:
            if layout != self._layout:
                return True
            return self._is_current() and all(
                self._next_offsets[tp] >= end for tp, end in ends.items()
            )

        async with self._progress:
            await self._progress.wait_for(is_read)

    async def _end_of(self, place: TopicPartition) -> int:
        """Return where a partition ends, of the topic with the id that is known."""
        cluster = self._context.cluster
        end = await fetch_offset(cluster, place, LATEST)
        # Ends are asked for by the topic's name. A fetch, by its id, fails where it was made anew.
        await read_committed(cluster, place, end, max_wait=0.0)
        return end

    async def _load_response(self, key: bytes, result: ClaimResult) -> bytes:
        body = self._recent_responses.get(key)
        if body is None:
            got = await read_committed(self._context.cluster, result.tp, result.offset)
            # The offset may be of a topic that was made anew since.
            found = got.records[0] if got.records else None
            if found is None and not self.claims.has_read_result(key):
                what = "it was done, and its answer cannot be read yet"
                raise BrokerUnavailable(f"{what}; try again", retry_after=1.0)
            if found is None or (found.offset, found.key) != (result.offset, key):
                what = "it was done, and its answer is not there any more"
                raise StatusError(409, f"{what}; use another Idempotency-Key for another request")
            body = (found.value or b"")[KEY_BYTES:]
            self._store_response(key, body)
        return body

    def _store_response(self, key: bytes, body: bytes) -> None:
        self._recent_responses[key] = body
        if len(self._recent_responses) > MAX_RECENT_RESPONSES:
            self._recent_responses.popitem(last=False)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.claims.expire(time.time())


class _Attempt:
    """lent: what this request claims with. claim: its record, the latest. working: it may have
    been done by this request."""

    def __init__(self) -> None:
        self.transactions: TransactionalProducer | None = None
        self.claim: asyncio.Future[int] | None = None
        self.may_be_written = False

    def finish(self, transactions: TransactionalProducer) -> None:
        """What became of the attempt is known."""
        self.may_be_written = False
        if transactions is self.transactions:
            self.transactions = None


def compute_digest(body: bytes) -> bytes:
    """Of what a request asks for."""
    return hashlib.sha256(body).digest()[:KEY_BYTES]


def _check_digest(one: bytes, other: bytes) -> None:
    if one != other:
        what = "this Idempotency-Key came with another body before"
        raise StatusError(422, f"{what}; use another key for another request", code="KEY_REUSED")
