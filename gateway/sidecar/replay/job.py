"""One replay at work, by its owner, until it is over or another's.

To a topic, the copies and how far they have come are one transaction: each record is there once,
whoever goes on after whatever crash. To a back end, what it was sent and has not been noted yet is
sent again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from gateway.core.delivery.replay import Replay, Span, State
from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import BrokerUnavailable, Fenced, GatewayError, KafkaError
from gateway.kafka.fetch.piece import Piece, piece
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.produce.transactions import Transactions, Write
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.context import Context

from .state import States

log = logging.getLogger(__name__)

ID = "X-Replay-Id"
TOPIC = "X-Replay-Topic"
PARTITION = "X-Replay-Partition"
OFFSET = "X-Replay-Offset"

BEAT = 1.0  # seconds in which an owner says that it is there

Headers = tuple[tuple[str, bytes | None], ...]


class Settled(NamedTuple):
    """The first so many records are done with; so many of them failed. why: what holds it up."""

    records: int
    dead: int = 0
    why: str = ""


class Deliver(Protocol):
    """Records to the back end."""

    def begin(self) -> None:
        """Nothing is under way any more."""

    async def __call__(self, records: Sequence[Record], within: float) -> Settled:
        """What is done with after at most so many seconds; the rest is given again then."""


class Job:
    """deliver: to the back end; None: to a topic. owner: this process.

    transactions: started, where the owner is it already.
    """

    def __init__(
        self,
        context: Context,
        states: States,
        id: str,
        owner: str,
        deliver: Deliver | None = None,
        *,
        transactions: Transactions | None = None,
    ) -> None:
        self.id = id
        self._context = context
        self._states = states
        self._owner = owner
        self._deliver = deliver
        self._transactions = transactions or states.transactions(id)
        self._replay: Replay | None = None
        self._beaten = 0.0
        self._turn = 0
        self._stopping = False

    async def run(self) -> None:
        """Until it is over, or somebody else's."""
        backoff, outages = Backoff(5.0, random.random, 0.1), self._context.cluster.outages
        try:
            while True:
                try:
                    return await self._work()
                except BrokerUnavailable as error:
                    outages.fail_with(self._label, error)
                    await asyncio.sleep(max(error.retry_after or 0, backoff.delay(Cause.TIMEOUT)))
        except Fenced:
            log.info("replay %s is another's by now", self.id)
        except GatewayError as error:
            await self._fail(str(error))
        finally:
            outages.recover(self._label, "waits no more")

    @property
    def _label(self) -> str:
        return f"replay={self.id}"

    def stop(self) -> None:
        """`run` ends after the step that is under way, and gives it free."""
        self._stopping = True

    async def _work(self) -> None:
        if not await self._take():
            return
        while (replay := self._replay) is not None and not replay.over:
            if self._stopping:
                return await self._save(replay.owned("", _now()))
            await self._step(replay)
        if replay is not None:
            log.info("replay %s is done: %d records", self.id, replay.records)
            await self._save(replay.ended(State.DONE, _now()))

    async def _take(self) -> bool:
        """Be its owner; False where there is nothing to own."""
        if not self._transactions.started:
            known = self._states.replays.get(self.id)
            if known is None or not known.runs or self._is_anothers(known):
                return False
            await self._transactions.start()
        await self._states.caught_up()
        known = self._states.replays.get(self.id)
        if known is None or not known.runs:
            return False
        await self._context.topic(known.topic)
        if known.target:
            await self._context.topic(known.target)
        if self._deliver is not None:
            self._deliver.begin()
        await self._save(known.owned(self._owner, _now()))
        return True

    def _is_anothers(self, known: Replay) -> bool:
        """Taken over while this one had trouble."""
        return self._replay is not None and known.owner not in ("", self._owner)

    async def _step(self, replay: Replay) -> None:
        """A piece of one partition, in turns."""
        left = replay.left()
        self._turn += 1
        tp, span = left[self._turn % len(left)]
        got = await piece(self._context.cluster, tp, span.next)
        if got.lost is not None:
            log.warning("replay %s: %s has nothing before %d any more", self.id, tp, got.lost)
            await self._save(replay.lacking(tp.partition, got.lost, _now()))
        elif got.next == span.next:
            await self._beat(replay)  # an open transaction stands before it
        elif self._deliver is None:
            await self._copy(replay, tp, span, got)
        else:
            await self._hand(replay, tp, span, got, self._deliver)

    async def _copy(self, replay: Replay, tp: TopicPartition, span: Span, got: Piece) -> None:
        records = [each for each in got.records if each.offset < span.end]
        known = await self._context.topic(replay.target)
        writes = [copied(self.id, each, known) for each in records]
        next, size = min(got.next, span.end), sum(map(_size, records))
        await self._save(replay.moved(tp.partition, next, len(records), size, _now()), writes)

    async def _hand(
        self, replay: Replay, tp: TopicPartition, span: Span, got: Piece, deliver: Deliver
    ) -> None:
        records = [marked(self.id, each) for each in got.records if each.offset < span.end]
        while records:
            done = await deliver(records, BEAT)
            if self._stopping and not done.records:
                return
            some, records = records[: done.records], records[done.records :]
            if not some:
                replay = replace(replay, error=done.why)
                await self._beat(replay)
                continue
            next, size = some[-1].next, sum(map(_size, some))
            replay = replay.moved(tp.partition, next, len(some), size, _now(), done.dead)
            await self._save(replay)
        if replay.spans[tp.partition].next < min(got.next, span.end):
            next = min(got.next, span.end)
            await self._save(replay.moved(tp.partition, next, 0, 0, _now()))

    async def _beat(self, replay: Replay) -> None:
        if time.monotonic() - self._beaten >= BEAT:
            await self._save(replay.owned(self._owner, _now()))

    async def _save(self, replay: Replay, writes: Sequence[Write] = ()) -> None:
        await self._transactions.commit([*writes, self._states.write(replay)])
        self._replay, self._beaten = replay, time.monotonic()
        self._context.cluster.outages.recover(self._label, "goes on")

    async def _fail(self, why: str) -> None:
        log.error("replay %s failed: %s", self.id, why)
        await self._end(State.FAILED, why)

    async def _end(self, state: State, why: str = "") -> None:
        try:
            await end(self._states, self._transactions, self.id, state, why)
        except KafkaError as error:  # whoever takes it over meets the same
            log.warning("replay %s cannot be ended: %s", self.id, error)


async def end(
    states: States, transactions: Transactions, id: str, state: State, why: str = ""
) -> Replay | None:
    """Whoever works on it writes nothing more from here on. None: there is none that runs.

    Raises KafkaError.
    """
    if not transactions.started:
        await transactions.start()
    await states.caught_up()
    known = states.replays.get(id)
    if known is None or not known.runs:
        return None
    ended = known.ended(state, _now(), why)
    await transactions.commit([states.write(ended)])
    return ended


def marked(id: str, record: Record) -> Record:
    """With the headers that say where it is from."""
    return record._replace(headers=(*record.headers, *origin(id, record)))


def origin(id: str, record: Record) -> Headers:
    return (
        (ID, id.encode()),
        (TOPIC, record.tp.topic.encode()),
        (PARTITION, str(record.tp.partition).encode()),
        (OFFSET, str(record.offset).encode()),
    )


def copied(id: str, record: Record, target: TopicAnswer) -> Write:
    """In the partition of the same number where there is one, else as its key says."""
    count, number = len(target.partitions), record.tp.partition
    if number not in target.partitions:
        number = number % count if record.key is None else partition_of(record.key, count)
    headers = (*record.headers, *origin(id, record))
    tp = TopicPartition(target.name, number)
    return Write(tp, record.key, record.value, headers, record.timestamp)


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _now() -> int:
    return time.time_ns() // 1_000_000
