"""Records to Kafka: acks of all, idempotent, one batch a partition under way.

By requests of our own, as records are fetched here, because of what aiokafka's producer does
with a fault: a record refused as too large leaves a hole in its sequence, and that partition
refuses everything after it; a batch that cannot be sent is never given up, nor does `stop`
return then; a topic deleted meanwhile is asked for, and so created, again. What becomes of a
batch is decided in `core.outbox`; here it is carried: at most one request a broker at a time,
with a batch of every partition that it leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import RULES, Action, Backoff, Cause, cause_of
from gateway.core.produce.outbox import Fate, Outbox, Outcome
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Link, Role
from gateway.kafka.client.offsets import LEADER_NOT_AVAILABLE, UNKNOWN, code_of
from gateway.kafka.protocol.produce_messages import Appended, InitProducerIdRequest, ProduceRequest
from gateway.telemetry.about import apart
from gateway.telemetry.tallies import Writes

from .pending_records import (
    CODECS,
    DENIED,
    OVERHEAD,
    Compression,
    Headers,
    Item,
    Letter,
    Parcel,
    Results,
    doubt,
    encoded,
    refusal,
    size_of,
)

log = logging.getLogger(__name__)

MOST = 32 << 20  # bytes that may wait for Kafka, of all partitions
GRACE = 5.0  # seconds for what was taken on when the gateway closes
REPLICAS = 0.8  # of the request timeout: the broker gives up first, and says so
# Another broker may lead it by now.
ELSEWHERE = frozenset({Action.REFRESH, Action.RECONNECT, Action.WATCH})


@dataclass(slots=True, eq=False)
class _Partition:
    tp: TopicPartition
    backoff: Backoff
    outbox: Outbox[Letter] = field(default_factory=Outbox)
    busy: bool = False
    retry_at: float = 0.0
    failure: str = "its broker is busy"


class Producer:
    """Writes to any topic of a cluster. Begins with the first record; `close` it in the loop.

    The topics must be watched (`Cluster.metadata`): a leader is not looked for otherwise.
    """

    def __init__(
        self, cluster: Cluster, *, most: int = MOST, compression: Compression = "none"
    ) -> None:
        self.writes = Writes()
        self._cluster = cluster
        self._most = most
        self._codec = CODECS[compression]
        self._bytes = 0
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._nodes: set[int] = set()  # with a request under way
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()  # some were told what became of them
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False

    def put(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        within: float,
    ) -> asyncio.Future[int]:
        """Write a record behind those that were put before it. Gives its offset, -1 if Kafka
        has it and does not say where.

        within: seconds. What was not sent by then is not written: BrokerUnavailable. What was
                sent stays until Kafka has said what became of it, for at most two minutes.
        The future raises also AccessDenied, and PartitionFailed with Kafka's code where the record
        is refused; BrokerUnavailable with `timeout` is a record that may have been written.
        Raises BrokerUnavailable where too much is waiting already.
        """
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._post([Item(tp, key, value, headers)], within, lambda told: _hand_on(told, written))
        return written

    def put_many(self, items: Sequence[Item], *, within: float) -> asyncio.Future[Results]:
        """As `put`, of several at once, or none of them: the future gives what became of each, in
        their order, and raises nothing.

        100 of 1 KB with three headers took 0.5 ms of CPU, by `put` 1.7 (the embedded broker's
        share in both).
        """
        every: asyncio.Future[Results] = asyncio.get_running_loop().create_future()

        def told(results: Results) -> None:
            if not every.done():
                every.set_result(results)

        if items:
            self._post(items, within, told)
        else:
            told([])
        return every

    def _post(self, items: Sequence[Item], within: float, told: Callable[[Results], None]) -> None:
        sizes = _sizes(items)
        total = sum(sizes)
        if self._closed or (self._bytes and self._bytes + total > self._most):
            for item in items:
                self.writes.records[item.tp.topic, "unsent"] += 1
            why = "the gateway is closing" if self._closed else "too much waits to be written"
            raise BrokerUnavailable(f"{items[0].tp}: {why}; try again", retry_after=1.0)
        parcel = Parcel(len(items), time.time(), told)
        now = int(parcel.began * 1000)
        for place, (item, size) in enumerate(zip(items, sizes, strict=True)):
            tp, key, value, headers, at = item
            letter = Letter(key, value, headers, now if at is None else at, size, parcel, place)
            parcel.letters.setdefault(tp, []).append(letter)
            self._partition(tp).outbox.put(letter, size)
        parcel.timer = asyncio.get_running_loop().call_later(within, self._expire, parcel)
        self._bytes += total
        self._wake.set()
        if self._running is None:
            self._running = apart(self._run())

    @property
    def waiting(self) -> int:
        """Bytes that Kafka has yet to answer for."""
        return self._bytes

    async def close(self, within: float = GRACE) -> None:
        """Let what was taken on be written, for some seconds; the rest fails."""
        self._closed = True
        deadline = asyncio.get_running_loop().time() + within
        while self._letters() and asyncio.get_running_loop().time() < deadline:
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._settled.wait()
        tasks = [*self._tasks, *([self._running] if self._running else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for letter in self._letters():
            self._land(letter, BrokerUnavailable("the gateway closed before Kafka answered"))

    def _letters(self) -> list[Letter]:
        return [letter for each in self._partitions.values() for letter in each.outbox.items()]

    def _partition(self, tp: TopicPartition) -> _Partition:
        found = self._partitions.get(tp)
        if found is None:
            floor, ceiling = self._cluster.settings.reconnect
            backoff = Backoff(ceiling=ceiling, random=random.random, floor=floor)
            found = self._partitions[tp] = _Partition(tp, backoff)
        return found

    # who is asked when

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = asyncio.get_running_loop().time()
            for node, due in self._due(now).items():
                self._nodes.add(node)
                self._spawn(node, due)
            try:
                async with asyncio.timeout_at(self._next(now)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _due(self, now: float) -> dict[int, list[_Partition]]:
        """Partitions with something to send, by their leader; of those brokers that are free."""
        nodes: dict[int, list[_Partition]] = {}
        for each in self._partitions.values():
            if each.outbox and not each.busy and each.retry_at <= now:
                leader = self._cluster.leader(each.tp)
                if leader is None:
                    self._retry(each, Cause.NO_LEADER, "it has no leader", now)
                    self._tell(each, each.outbox.delayed(now), LEADER_NOT_AVAILABLE)
                elif leader[0] not in self._nodes:
                    nodes.setdefault(leader[0], []).append(each)
        return nodes

    def _next(self, now: float) -> float | None:
        """When a partition is to be tried again; those that wait for a broker are woken."""
        times = [
            each.retry_at
            for each in self._partitions.values()
            if each.outbox and not each.busy and each.retry_at > now
        ]
        return min(times, default=None)

    def _spawn(self, node: int, due: list[_Partition]) -> None:
        for each in due:
            each.busy = True
        self._task(self._round(node, due))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # one request

    async def _round(self, node: int, due: list[_Partition]) -> None:
        """A batch of each partition to their leader; what comes of it is told."""
        try:
            link = await self._cluster.connections.connect(node, Role.PRODUCE)
            for each in due:
                if each.outbox.producer is None:
                    await self._introduce(each, link)
            await self._send(link, [each for each in due if each.outbox.producer is not None])
        except KafkaError as exc:  # nothing was sent
            now = asyncio.get_running_loop().time()
            for each in due:
                self._retry(each, cause_of(code_of(exc)), str(exc), now)
                self._tell(each, each.outbox.delayed(now), code_of(exc))
        except Exception:
            log.exception("records cannot be written to broker %d; it is tried again", node)
            now = asyncio.get_running_loop().time()
            for each in due:
                self._retry(each, Cause.UNEXPECTED, "the gateway failed; its log says why", now)
                self._tell(each, each.outbox.unanswered(now), UNKNOWN)
        finally:
            self._nodes.discard(node)
            for each in due:
                each.busy = False
            self._wake.set()

    async def _introduce(self, each: _Partition, link: Link) -> None:
        answer = await self._cluster.connections.ask(link, InitProducerIdRequest())
        if answer.error in DENIED:
            self._tell(each, each.outbox.refused(), answer.error)
        elif answer.error:
            now = asyncio.get_running_loop().time()
            why = f"no producer id (code {answer.error})"
            self._retry(each, cause_of(answer.error), why, now)
        else:
            each.outbox.adopt(answer.producer)

    async def _send(self, link: Link, due: Sequence[_Partition]) -> None:
        cut = [(each, letters) for each in due if (letters := each.outbox.batch())]
        if not cut:
            return
        timeout = self._cluster.settings.request_timeout
        request = ProduceRequest(
            {each.tp: encoded(each.outbox, letters, self._codec) for each, letters in cut},
            timeout=int(timeout * REPLICAS * 1000),
        )
        try:
            answer = await self._cluster.connections.ask(link, request)
        except KafkaError as exc:
            now = asyncio.get_running_loop().time()
            for each, _ in cut:
                self._retry(each, cause_of(code_of(exc)), str(exc), now)
                self._tell(each, each.outbox.unanswered(now), code_of(exc))
            return
        for each, _ in cut:
            self._answered(each, answer.partitions.get(each.tp, Appended(UNKNOWN, -1)))

    def _answered(self, each: _Partition, appended: Appended) -> None:
        now = asyncio.get_running_loop().time()
        outcome = each.outbox.answered(appended.error, now)
        if outcome.fate is Fate.OPEN:
            why = f"Kafka answers code {appended.error}"
            self._retry(each, cause_of(appended.error), why, now)
        self._tell(each, outcome, appended.error, appended.offset)

    def _retry(self, each: _Partition, cause: Cause, why: str, now: float) -> None:
        each.failure = why
        each.retry_at = now + each.backoff.delay(cause)
        idle = self._refreshing is None or self._refreshing.done()
        if idle and RULES[cause].action in ELSEWHERE:
            reason = f"{each.tp} cannot be written to: {why}"
            self._refreshing = self._task(self._refresh(reason))

    async def _refresh(self, reason: str) -> None:
        try:
            await self._cluster.metadata.refresh(reason)
        except KafkaError:
            return  # the partition's own delay runs
        self._wake.set()

    # what has become of it

    def _tell(
        self, each: _Partition, outcome: Outcome[Letter], code: int, offset: int = -1
    ) -> None:
        self._settled.set()
        match outcome.fate:
            case Fate.WRITTEN:
                each.backoff.succeeded()
                self._count(each.tp.topic, outcome.items)
                for index, letter in enumerate(outcome.items):
                    self._land(letter, offset + index if offset >= 0 else -1)
            case Fate.REFUSED:
                self.writes.records[each.tp.topic, "refused"] += len(outcome.items)
                for letter in outcome.items:
                    self._land(letter, refusal(each.tp, code))
            case Fate.DOUBTFUL:
                self.writes.records[each.tp.topic, "doubtful"] += len(outcome.items)
                for letter in outcome.items:
                    self._land(letter, doubt(each.tp, each.failure))

    def _count(self, topic: str, letters: Sequence[Letter]) -> None:
        now, waited = time.time(), Counter([letter.parcel.began for letter in letters])
        for began, count in waited.items():
            self.writes.written(topic, 0, max(0.0, now - began), count)
        self.writes.bytes[topic] += sum([letter.size for letter in letters])

    def _expire(self, parcel: Parcel) -> None:
        for tp, letters in list(parcel.letters.items()):
            each = self._partitions[tp]
            for letter in each.outbox.withdraw(letters):
                self.writes.records[tp.topic, "unsent"] += 1
                why = f"{tp} was not written to: {each.failure}; try again"
                self._land(letter, BrokerUnavailable(why, retry_after=1.0))

    def _land(self, letter: Letter, result: int | KafkaError) -> None:
        self._bytes -= letter.size
        letter.parcel.land(letter.place, result)


def _sizes(items: Sequence[Item]) -> list[int]:
    """About, of each; records that share their headers have them measured once. Raises as
    `size_of`."""
    sizes: list[int] = []
    last: Headers | None = None
    beside = 0
    for _, key, value, headers, _ in items:
        if headers is not last:
            last, beside = headers, size_of(None, None, headers)
        if type(key) is bytes and type(value) is bytes:
            sizes.append(beside + len(key) + len(value))
        else:
            sizes.append(beside + size_of(key, value, ()) - OVERHEAD)
    return sizes


def _hand_on(told: Results, written: asyncio.Future[int]) -> None:
    """What became of the only one of a parcel, to who waits for it."""
    if written.done():
        return
    if isinstance(told[0], int):
        written.set_result(told[0])
    else:
        written.set_exception(told[0])
        written.exception()  # told to who waits; where nobody does, no warning either
