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
from gateway.core.delivery.claims import SLACK, Claim, Claims, Result
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, Fenced, KafkaError, PartitionFailed
from gateway.errors import UnknownTopic as Missing
from gateway.kafka.admin.topics import make_topic
from gateway.kafka.client.offsets import LATEST, Offset
from gateway.kafka.client.outages import label_topic
from gateway.kafka.fetch.piece import OUT_OF_RANGE, piece
from gateway.kafka.fetch.scan import offset
from gateway.kafka.produce.transactions import Placed, Transactions, Write
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import Refusal

from .transactions import Transactors

log = logging.getLogger(__name__)

WAIT = 1.0  # seconds that Kafka holds back a fetch without news
AGAIN = 0.25  # seconds until what failed is tried again
DENIED_AGAIN = 5.0  # seconds until what is not allowed is
SWEEP = 60.0  # seconds
TAKEN_AGAIN = (0.5, 1.5)  # seconds until one that another is taking over is, from and to
RECENT = 1000  # answers that are kept beside their places
KEY = 16  # bytes of a key; a claim's record has its owner behind that

Work = Callable[[Transactions, Callable[[bytes], Write]], Awaitable[tuple[bytes, Placed]]]
"""Writes the records, and as the last of the same transaction what the callable makes of the
answer, which it returns with the offsets of them all."""


class Layout(NamedTuple):
    """Which topic is read, and how many of its partitions; the places of a key follow from both.

    topic_id: None where brokers do not tell it.
    """

    topic_id: UUID | None
    partitions: int


class Answered(NamedTuple):
    """again: it was done before."""

    body: bytes
    again: bool


class Ledger:
    """See the module; `run` it. It reads from the first request on."""

    def __init__(self, context: Context, settings: Settings, transactors: Transactors) -> None:
        section = settings.idempotency
        self.claims = Claims(section.keys, section.window)
        self._context = context
        self._outages = context.cluster.outages
        self._section = section
        self._within = settings.timeout
        self._patience = settings.timeout + 1.0
        self._transactors = transactors
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._taken: set[bytes] = set()  # keys that a request of this process takes over now
        self._next: dict[TopicPartition, int] = {}
        self._wanted = asyncio.Event()
        self._reads = asyncio.Event()
        self._moved = asyncio.Condition()
        self._failing: dict[TopicPartition | None, KafkaError] = {}  # None: before it is read
        self._layout: Layout | None = None  # of what is read, and of `_next`

    async def once(self, scope: str, digest: bytes, work: Work) -> Answered:
        """Of the first who came with this scope, in the window. scope: identity, topic and key.
        digest: of what is to be done.

        Raises Refusal 422 for another digest; AccessDenied where claims may not be read or written;
        BrokerUnavailable, with `timeout` where nobody knows by now whether it was done; whatever
        `work` raises.
        """
        key, mine = hashlib.sha256(scope.encode()).digest()[:KEY], _Mine()
        try:
            async with asyncio.timeout(self._patience + 2 * self._within):
                self._wanted.set()
                await self._reads.wait()
                while True:
                    found = await self._attempt(key, digest, work, mine)
                    if found is not None:
                        return found
        except TimeoutError:
            failure = next(iter(self._failing.values()), None)
            why = str(failure) if failure else "another request with this key is not done"
            what = f"{why}; try again with the same Idempotency-Key"
            raise BrokerUnavailable(what, timeout=mine.working, retry_after=1.0) from None
        finally:
            if mine.lent is not None and not mine.working:
                self._transactors.beside(self._withdraw(key, mine))

    async def _attempt(self, key: bytes, digest: bytes, work: Work, mine: _Mine) -> Answered | None:
        """None: look again."""
        for failure in self._failing.values():
            if isinstance(failure, AccessDenied):
                raise failure.with_traceback(None)
        known = self.claims.result(key, time.time())
        if known is not None:
            _same(known.digest, digest)
            return Answered(await self._answer(key, known), again=not mine.working)
        first = self.claims.first(key)
        if first is None:
            mine.lent = mine.lent or await self._transactors.lend()
            await self._claim(key, digest, mine, mine.lent.id)
            return None
        _same(first.digest, digest)
        if mine.lent is not None and first.owner == mine.lent.id and mine.lent.started:
            found = await self._work(key, digest, work, mine, mine.lent)
            if found is not None or self.claims.first(key) != first:
                return found
        elif (left := first.until - time.time()) > 0:
            await self._changes(key, first, left)
            return None
        elif key not in self._taken:
            self._taken.add(key)
            try:
                found = await self._take_over(key, digest, work, mine, first)
            finally:
                self._taken.discard(key)
            if found is not None or self.claims.first(key) != first:
                return found
        # Requests that take over from each other without a pause fence each other for seconds.
        await self._changes(key, first, random.uniform(*TAKEN_AGAIN))
        return None

    async def _take_over(
        self, key: bytes, digest: bytes, work: Work, mine: _Mine, first: Claim
    ) -> Answered | None:
        """Do it in place of its owner, whose time is up. None: look again.

        Where claims are read late, it may have been released long since, and the key be another's
        who works on it under an id of its own, which is not fenced here. A release of the claim is
        in the log by now, or never will be: it takes the id, which is ours.
        """
        taken = Transactions(self._context.cluster, first.owner)
        await taken.start()
        await self._catch_up(key)
        if self.claims.result(key, time.time()) is not None or self.claims.first(key) != first:
            return None
        log.info("a request is taken over from %s, which did not end it", first.owner)
        return await self._work(key, digest, work, mine, taken)

    async def _work(
        self, key: bytes, digest: bytes, work: Work, mine: _Mine, by: Transactions
    ) -> Answered | None:
        mine.working = True
        place, layout, at = self._places(key)[1], self._layout, 0

        def result(body: bytes) -> Write:
            nonlocal at
            at = time.time_ns() // 1_000_000
            return Write(place, key, digest + body, (), at)

        try:
            body, placed = await work(by, result)
        except Fenced:
            return None  # another is at it: its answer is waited for, the claim stays
        except (PartitionFailed, AccessDenied):
            if not await self._release_shielded(key, by):
                return None  # another is at it, too
            mine.over(by)
            raise
        except KafkaError as exc:
            return await self._settled(key, mine, by, exc)
        if by is mine.lent:
            self._transactors.back(by)
        mine.over(by)
        self._keep(key, body)
        offset = placed[place][-1]
        if offset >= 0 and layout == self._layout:
            self.claims.apply_result(key, Result(digest, place, offset, at / 1000))
            await self._notify()
        return Answered(body, again=False)

    async def _settled(
        self, key: bytes, mine: _Mine, by: Transactions, failure: KafkaError
    ) -> Answered | None:
        """Was it written? Once the id is started anew that is certain. Raises the failure."""
        await by.start()
        await self._catch_up(key)
        if self.claims.result(key, time.time()) is not None:
            return None
        if not await self._release_shielded(key, by):
            return None
        mine.over(by)
        raise BrokerUnavailable(f"{failure}; it is not written", retry_after=1.0) from failure

    # what is written

    async def _claim(self, key: bytes, digest: bytes, mine: _Mine, owner: str) -> None:
        """And hear of it, and so of all claims before it: they decide whose it is.

        Or not, where the topic was made anew meanwhile: it may have been written to either.
        """
        place, layout = self._places(key)[0], self._layout
        mine.claim = self._context.producer.put(
            place, key + owner.encode(), digest, within=self._within
        )
        at = await asyncio.shield(mine.claim)
        await self._wait_read({place: at + 1}, layout)

    async def _withdraw(self, key: bytes, mine: _Mine) -> None:
        """Release a claim that came to nothing, once Kafka has it: not before it."""
        if mine.claim is not None and mine.lent is not None:
            await asyncio.wait([mine.claim])
            await self._release(key, mine.lent)

    async def _release_shielded(self, key: bytes, by: Transactions) -> bool:
        """Release a claim; a request that is cancelled meanwhile leaves that to go on beside it."""
        return await asyncio.shield(self._transactors.beside(self._release(key, by)))

    async def _release(self, key: bytes, by: Transactions) -> bool:
        """Write that a claim is released, and know it as soon as Kafka has it.

        A client that was told that its records are refused may use the key for others at once. It
        was refused (422) for as long as the release was not read.

        It is not a record by itself, which could be sent in time and come to Kafka when somebody
        had taken the claim over. All replicas would drop the claim that is worked under then, and
        another request with the key would be written beside.

        Returns:
            False where somebody has taken the claim over: it is not released then.
        """
        place, owner = self._places(key)[0], by.id
        held, layout = self.claims.claim_of(key, owner), self._layout
        release = Write(place, key + owner.encode(), None, (), time.time_ns() // 1_000_000)
        try:
            placed = await by.commit([release])
        except Fenced:
            return False
        except KafkaError as exc:
            log.debug("a claim is not released, which waits for its end now: %s", exc)
            if not by.started:
                self._transactors.settle(by)  # an open transaction holds up the hearing of claims
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
        self._reads.clear()
        await self._wanted.wait()
        while True:
            places = await self._retry_begin()
            await self._follow_all(places)
            await asyncio.sleep(AGAIN)  # brokers may not agree yet on what became of it

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
                if failure := self._failing.pop(place, None):
                    self._failing[None] = failure

    async def _retry_begin(self) -> Sequence[TopicPartition]:
        """Begin, however often that must be tried."""
        while True:
            try:
                places = await self._begin()
            except KafkaError as exc:
                self._fail(None, exc)
                if isinstance(exc, AccessDenied):
                    self._reads.set()  # the requests that wait are told
                    await asyncio.sleep(DENIED_AGAIN)
                else:
                    self._reads.clear()
                    await asyncio.sleep(AGAIN)
            else:
                self._recover(None)
                self._reads.set()
                await self._notify()
                return places

    def _fail(self, place: TopicPartition | None, error: KafkaError) -> None:
        """Note why a partition cannot be read. The log has the first one that cannot."""
        self._failing[place] = error
        if place == next(iter(self._failing)):
            self._outages.fail_with(label_topic(self._section.topic), error)

    def _recover(self, place: TopicPartition | None) -> None:
        if self._failing.pop(place, None) is not None and not self._failing:
            self._outages.recover(label_topic(self._section.topic), "is read")

    async def _begin(self) -> Sequence[TopicPartition]:
        """Find the topic, or make it, and where to read its partitions from."""
        cluster = self._context.cluster
        known = await self._topic()
        layout = self._layout_of(known)
        places = [TopicPartition(known.name, number) for number in range(layout.partitions)]
        since = int((time.time() - self._section.window - SLACK) * 1000)
        # First the ends, of what is committed: a claim that comes between the two is read then.
        ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
        found = await cluster.list_offsets(dict.fromkeys(places, since))
        begins: dict[TopicPartition, int] = {}
        for place in places:
            end, told = ends[place], found[place]
            if not isinstance(end, Offset) or not isinstance(told, Offset):
                code = end if isinstance(told, Offset) else told
                raise BrokerUnavailable(f"{place} cannot be read (code {code})")
            begins[place] = told.offset if told.offset >= 0 else end.offset
        self.claims.restart()
        self._next, self._layout = begins, layout
        return places

    def _layout_of(self, known: TopicAnswer) -> Layout:
        """Return how a topic is used.

        At most as many partitions are used as the topic is made with. Partitions that are added
        later are not, so that a replica that started before that and one that started after it
        look for a key in the same place.
        """
        used = min(len(known.partitions), self._section.partitions)
        return Layout(known.topic_id, used if used == 1 else used // 2 * 2)

    def _is_current(self) -> bool:
        """Return whether the topic is there, and used as it is read."""
        known = self._context.cluster.topic(self._section.topic)
        return known is not None and not known.error and self._layout_of(known) == self._layout

    async def _topic(self) -> TopicAnswer:
        name, section = self._section.topic, self._section
        try:
            return await self._context.topic(name)
        except Missing:
            configs = {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(int((section.window + 2 * SLACK) * 1000)),
            }
            replicas = -1 if section.replication is None else section.replication
            if await make_topic(
                self._context.cluster, name, partitions=section.partitions, replicas=replicas,
                configs=configs,
            ):  # fmt: skip
                log.info("made the topic %s, for requests with an Idempotency-Key", name)
            return await self._context.topic(name)

    def _places(self, key: bytes) -> tuple[TopicPartition, TopicPartition]:
        """Of its claims, and of its result."""
        pairs = len(self._next) // 2
        if not pairs:
            both = next(iter(self._next))
            return both, both
        at = 2 * (int.from_bytes(key[:4]) % pairs)
        return TopicPartition(self._section.topic, at), TopicPartition(self._section.topic, at + 1)

    async def _follow(self, place: TopicPartition) -> None:
        """Read a partition until the topic is not current any more."""
        cluster = self._context.cluster
        while self._is_current():
            try:
                got = await piece(cluster, place, self._next[place], max_wait=WAIT)
            except KafkaError as exc:
                self._fail(place, exc)
                await asyncio.sleep(DENIED_AGAIN if isinstance(exc, AccessDenied) else AGAIN)
                if isinstance(exc, PartitionFailed) and exc.code == OUT_OF_RANGE:
                    return
                continue
            self._recover(place)
            now = time.time()
            for record in got.records:
                self._hear(record, now)
            if got.next != self._next[place]:
                self._next[place] = got.next
                self.claims.advance(place, got.next)
            await self._notify()  # also without news: the topic may be current again

    async def _notify(self) -> None:
        """Have the requests that wait for a change look again."""
        async with self._moved:
            self._moved.notify_all()

    def _hear(self, record: Record, now: float) -> None:
        key, owner = (record.key or b"")[:KEY], (record.key or b"")[KEY:].decode("latin-1")
        value, at = record.value, record.timestamp / 1000
        if owner and value is None:
            self.claims.released(key, owner, record.offset)
        elif owner and value is not None:
            claim = Claim(owner, value, record.offset, at + self._patience)
            self.claims.claimed(key, claim, now)
        elif value is not None:
            self.claims.done(key, Result(value[:KEY], record.tp, record.offset, at))

    async def _changes(self, key: bytes, first: Claim, left: float) -> None:
        def changed() -> bool:
            return self.claims.first(key) != first

        try:
            async with asyncio.timeout(left), self._moved:
                await self._moved.wait_for(changed)
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
                ends = {place: await self._end_of(place) for place in self._places(key)}
            except (PartitionFailed, BrokerUnavailable) as exc:
                log.debug("the topic of keys cannot be read to its end: %s", exc)
                await asyncio.sleep(AGAIN)
                continue
            if not self._is_current():
                await asyncio.sleep(AGAIN)  # it is read anew soon
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
            return self._is_current() and all(self._next[tp] >= end for tp, end in ends.items())

        async with self._moved:
            await self._moved.wait_for(is_read)

    async def _end_of(self, place: TopicPartition) -> int:
        """Return where a partition ends, of the topic with the id that is known."""
        cluster = self._context.cluster
        end = await offset(cluster, place, LATEST)
        # Ends are asked for by the topic's name. A fetch, by its id, fails where it was made anew.
        await piece(cluster, place, end, max_wait=0.0)
        return end

    async def _answer(self, key: bytes, result: Result) -> bytes:
        body = self._recent.get(key)
        if body is None:
            got = await piece(self._context.cluster, result.tp, result.offset)
            # The offset may be of a topic that was made anew since.
            found = got.records[0] if got.records else None
            if found is None and not self.claims.has_read(key):
                what = "it was done, and its answer cannot be read yet"
                raise BrokerUnavailable(f"{what}; try again", retry_after=1.0)
            if found is None or (found.offset, found.key) != (result.offset, key):
                what = "it was done, and its answer is not there any more"
                raise Refusal(409, f"{what}; use another Idempotency-Key for another request")
            body = (found.value or b"")[KEY:]
            self._keep(key, body)
        return body

    def _keep(self, key: bytes, body: bytes) -> None:
        self._recent[key] = body
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self.claims.sweep(time.time())


class _Mine:
    """lent: what this request claims with. claim: its record, the latest. working: it may have
    been done by this request."""

    def __init__(self) -> None:
        self.lent: Transactions | None = None
        self.claim: asyncio.Future[int] | None = None
        self.working = False

    def over(self, by: Transactions) -> None:
        """What became of the attempt is known."""
        self.working = False
        if by is self.lent:
            self.lent = None


def digest_of(body: bytes) -> bytes:
    """Of what a request asks for."""
    return hashlib.sha256(body).digest()[:KEY]


def _same(one: bytes, other: bytes) -> None:
    if one != other:
        what = "this Idempotency-Key came with another body before"
        raise Refusal(422, f"{what}; use another key for another request", code="KEY_REUSED")
