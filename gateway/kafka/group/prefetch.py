"""Fetches for one consumer: what it holds, from whoever leads it, ahead of what it takes.

A fetch goes over a spare connection, because the broker holds it back while it has nothing. What
is under way goes on when nobody waits for it any more (the caller went away), and what it brings is
kept for the next poll: nothing is dropped. A partition that comes while a fetch of its broker is
held back does not wait for that: it gets one of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gateway.core.group.partition_state import EARLIEST, Held
from gateway.core.log.record import Gap, TopicPartition
from gateway.core.log.recovery import RULES, Action, Backoff, Cause, cause_of
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import Offset, code_of
from gateway.kafka.fetch.batches import BULK_RECORDS, slices
from gateway.kafka.fetch.decoding import Decoded, Decoding
from gateway.kafka.fetch.fetch import fetch_on
from gateway.kafka.protocol.fetch_messages import Fetched, Want
from gateway.telemetry.about import apart

log = logging.getLogger(__name__)

OUT_OF_RANGE = 1
REPLICA_FOR = 300.0  # seconds that a nearer replica is read from until the leader is asked again
TRIES = 3  # of a batch that makes no sense
EXPANSION = 16  # times what one fetch may bring: kept of it, once decompressed
AWAY = 0.25  # seconds until metadata is looked at again for a partition without a leader


@dataclass(frozen=True, slots=True)
class Appetite:
    """What the next fetches may bring and take. max_wait in seconds."""

    max_wait: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 16 << 20


@dataclass(slots=True, eq=False)
class Intake:
    """`held` is what there is to fetch: change it, and `wake`.

    reset:    LATEST or EARLIEST, where a partition without a position begins; None: nowhere.
    gone:     the same where Kafka does not have the offset to go on from.
    on_gap:   called with a partition, the offset that Kafka does not have, and where it goes on.
    follows:  a topic that was made anew is read from its start; otherwise whoever assigns says.
    failures: what the caller must hear of, by partition; forgotten with a seek.
    """

    cluster: Cluster
    isolation: int
    partition_bytes: int
    reset: int | None
    gone: int | None
    on_gap: Callable[[TopicPartition, int, int], None]
    follows: bool = True
    held: dict[TopicPartition, Held] = field(default_factory=dict)
    failures: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _refreshing: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Something is under way."""
        return bool(self._tasks)

    def hold(self, tp: TopicPartition) -> Held:
        """Anew, with no position yet."""
        topic = self.cluster.topic(tp.topic)
        backoff = Backoff(ceiling=1.0, random=random.random)
        held = self.held[tp] = Held(tp, backoff, topic.topic_id if topic else None)
        self.failures.pop(tp, None)
        self.news.set()
        return held

    def drop(self, tp: TopicPartition) -> None:
        self.held.pop(tp, None)
        self.failures.pop(tp, None)

    def wake(self) -> None:
        self.news.set()

    def nowhere(self, held: Held, spec: int | None) -> None:
        """It has no position: find the one that the spec means, or with None say that there is
        none."""
        if spec is not None:
            held.reset(spec)
        else:
            self._tell(held, "has no offset to go on from; seek to one, or set an offset reset")
        self.news.set()

    def begin(self, appetite: Appetite | None) -> float:
        """Ask for all that is due, and for nothing twice; None: for positions alone.

        Loop time of the next that will be due.
        """
        now, again = asyncio.get_running_loop().time(), float("inf")
        fetches: dict[int, list[Held]] = {}
        lists: list[Held] = []
        for held in self.held.values():
            if not held.readable:
                continue
            if held.flight is not None:
                if appetite is None or held.min_bytes <= appetite.min_bytes:
                    continue
                held.supersede()  # who asked for so much has gone
            if held.retry_at > now:
                again = min(again, held.retry_at)
            elif (node := self._node(held, now)) is None:
                again = min(again, now + AWAY)
            elif held.spec is not None:
                lists.append(held)
            elif appetite is not None and held.position is not None and self._hungry(held):
                fetches.setdefault(node, []).append(held)
        if lists:
            self._spawn(self._list(lists), lists)
        for node, some in fetches.items():
            assert appetite is not None
            # as of now: until the task begins one of them may be sought, and fetched by another
            wants = {held: (self._want(held), held.lineage) for held in some}
            self._spawn(self._fetch(node, wants, appetite), some, appetite.min_bytes)
        return again

    async def located(self, some: Collection[Held]) -> None:
        """Return when each of them has a position, was told of, or is held no more."""
        while any(h.spec is not None and self.held.get(h.tp) is h for h in some):
            self.begin(None)
            if self._tasks:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait(self._tasks, timeout=AWAY, return_when=first)
            else:
                await asyncio.sleep(AWAY)

    async def close(self) -> None:
        self.held.clear()
        tasks = [*self._tasks, *([self._refreshing] if self._refreshing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hungry(self, held: Held) -> bool:
        return held.size < self.partition_bytes // 2 and not (held.drained and held.kept)

    def _node(self, held: Held, now: float) -> int | None:
        """Whom to ask for it now."""
        topic = self.cluster.topic(held.tp.topic)
        if topic is None or topic.error:
            return None
        if held.topic_id != topic.topic_id:
            if held.topic_id is not None and not self.follows:
                return None
            if held.topic_id is not None:
                log.warning("%s was made anew; it is read from its start", held.tp)
                held.reset(EARLIEST)
            held.topic_id = topic.topic_id
        if held.replica is not None and now < held.replica_until and held.spec is None:
            return held.replica
        leader = self.cluster.leader(held.tp)
        return leader[0] if leader is not None else None

    def _spawn(self, work: Coroutine[Any, Any, None], some: list[Held], min_bytes: int = 0) -> None:
        task = apart(work)
        for held in some:
            held.flight, held.min_bytes = task, min_bytes
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, some))

    def _ended(self, task: asyncio.Task[None], some: list[Held]) -> None:
        self._tasks.discard(task)
        for held in some:
            if held.flight is task:
                held.flight = None
        self.news.set()
        if not task.cancelled() and task.exception() is not None:
            now = asyncio.get_running_loop().time()
            for held in some:
                held.hinder(Cause.UNEXPECTED, now)
            log.error("fetching failed unexpectedly", exc_info=task.exception())

    # where to start

    async def _list(self, some: list[Held]) -> None:
        asked = {held.tp: (held, held.spec, held.lineage) for held in some}
        specs = {tp: spec for tp, (_, spec, _) in asked.items() if spec is not None}
        answers = await self.cluster.list_offsets(specs, self.isolation)
        ends = [
            tp for tp, found in answers.items() if isinstance(found, Offset) and found.offset < 0
        ]
        if ends:  # no record is that late: the end
            answers |= await self.cluster.list_offsets(dict.fromkeys(ends, -1), self.isolation)
        for tp, found in answers.items():
            held, _, lineage = asked[tp]
            if held.lineage != lineage:
                continue
            if isinstance(found, Offset):
                missing = held.missing
                held.seek(found.offset, found.epoch if specs[tp] == -1 else -1)
                if missing is not None:
                    self.on_gap(tp, missing, found.offset)
            else:
                self._hindered(held, cause_of(found))

    # fetches

    async def _fetch(
        self, node: int, wants: Mapping[Held, tuple[Want, int]], appetite: Appetite
    ) -> None:
        """wants: with the lineage of each."""
        connections = self.cluster.connections
        try:
            async with connections.spare(node) as link:
                answers = await fetch_on(
                    connections,
                    link,
                    {held.tp: want for held, (want, _) in wants.items()},
                    max_wait=appetite.max_wait,
                    min_bytes=appetite.min_bytes,
                    max_bytes=appetite.max_bytes,
                    isolation=self.isolation,
                    rack=self.cluster.settings.rack,
                )
        except KafkaError as exc:
            self._failed([held for held, (_, asked) in wants.items() if held.lineage == asked], exc)
            return
        for held, (_, lineage) in wants.items():
            fetched = answers.get(held.tp)
            if fetched is None or held.lineage != lineage:
                continue
            if self.held.get(held.tp) is held:
                self._landed(held, fetched, node)

    def _want(self, held: Held) -> Want:
        leader = self.cluster.leader(held.tp)
        epoch = leader[1] if leader is not None else -1
        return Want(held.fetched, epoch, held.topic_id, self.partition_bytes, held.fetched_epoch)

    def _failed(self, some: list[Held], exc: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        least = exc.retry_after or 0.0 if isinstance(exc, BrokerUnavailable) else 0.0
        for held in some:
            held.hinder(cause_of(code_of(exc)), now, least)
        self._refresh(str(exc))

    def _landed(self, held: Held, fetched: Fetched, node: int) -> None:
        if fetched.leader is not None:
            self.cluster.metadata.hint(held.tp, *fetched.leader)
        if fetched.error_code:
            self._refused(held, fetched.error_code)
        elif fetched.diverging is not None:
            epoch, end = fetched.diverging
            log.warning("%s was truncated to %s by an unclean election", held.tp, end)
            held.seek(min(end, held.fetched), epoch)
        elif fetched.preferred_replica not in (-1, node):
            now = asyncio.get_running_loop().time()
            held.replica, held.replica_until = fetched.preferred_replica, now + REPLICA_FOR
        else:
            self._decoded(held, fetched)

    def _decoded(self, held: Held, fetched: Fetched) -> None:
        decoding = Decoding(
            held.tp,
            fetched.records,
            held.fetched,
            aborted=fetched.aborted,
            read_committed=self.isolation == 1,
            end=fetched.high_watermark,
        )
        if not decoding.is_large:
            self._took(held, decoding.read(BULK_RECORDS))
        if not decoding.done:
            self._spawn(self._rest(held, decoding, held.lineage), [held])

    async def _rest(self, held: Held, decoding: Decoding, lineage: int) -> None:
        """What is too much to be kept is fetched again, once there is room."""
        async with aclosing(slices(decoding, self.cluster.inflation, BULK_RECORDS)) as some:
            async for got in some:
                if self.held.get(held.tp) is not held or held.lineage != lineage:
                    return
                self._took(held, got)
                self.news.set()
                if held.size >= EXPANSION * self.partition_bytes:
                    return
                await asyncio.sleep(0)

    def _took(self, held: Held, got: Decoded) -> None:
        tp, offset = held.tp, held.fetched
        for entry in got.entries:
            if isinstance(entry, Gap):
                log.error("%s is damaged from %s to %s; passed over", tp, entry.offset, entry.next)
        if got.error is not None and got.next_offset == offset:
            held.failures += 1
            held.hinder(Cause.CORRUPT, asyncio.get_running_loop().time())
            if held.failures >= TRIES:
                self._tell(held, f"is damaged: {got.error}; seek past it", code=2)
            return
        held.took(got.entries, got.next_offset, got.last_epoch)
        self.failures.pop(tp, None)

    def _refused(self, held: Held, code: int) -> None:
        if held.replica is not None:  # a replica's word counts for nothing: ask the leader
            held.replica = None
        elif code == OUT_OF_RANGE and held.kept:
            held.drained = True
        elif code == OUT_OF_RANGE:
            missing = held.fetched
            self.nowhere(held, self.gone)
            held.missing = missing
        else:
            self._hindered(held, cause_of(code))

    def _hindered(self, held: Held, cause: Cause) -> None:
        held.hinder(cause, asyncio.get_running_loop().time())
        if RULES[cause].action is Action.TELL:
            self.failures[held.tp] = AccessDenied(
                f"the gateway may not read {held.tp.topic}; allow it READ", topic=held.tp.topic
            )
        elif RULES[cause].action in (Action.REFRESH, Action.WATCH, Action.RECONNECT):
            self._refresh(f"{held.tp}: {cause}")

    def _tell(self, held: Held, what: str, code: int = OUT_OF_RANGE) -> None:
        held.stopped = True
        topic, partition = held.tp
        self.failures[held.tp] = PartitionFailed(
            f"{held.tp} {what}", topic=topic, partition=partition, code=code
        )

    def _refresh(self, reason: str) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = apart(self._refreshed(reason))

    async def _refreshed(self, reason: str) -> None:
        try:
            await self.cluster.metadata.refresh(reason)
        except KafkaError as exc:
            log.debug("metadata refresh failed: %s", exc)
        self.news.set()
