"""One consumer instance: a member of a group, asked over HTTP.

Its requests take turns. A second long poll waits for the first as long as it may wait itself, then
it is refused (409); what changes what is read (subscribe, assign, seek, delete) ends a long poll
that is under way, which is then answered with no records. Commits, and what only asks, wait for
nobody.

A record counts as returned when it was written to the client's connection, and only then may it be
committed: by the client, or (`autoCommitEnable`) by its next poll, which says that it is through
with the last. Where a partition goes to another member between the two, that one gets it again. An
instance without a subscription has no member, no task and no connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gateway.config.sections.sidecar import Consumer
from gateway.core.group.member import State
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GroupFailed, KafkaError, NotOwned, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group.commits import Commits
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.protocol.group_messages import Committed
from gateway.sidecar.context import Audit, Unaudited, audit_gap
from gateway.sidecar.http.status import Refusal
from gateway.telemetry.about import apart

from .instance_options import Wishes

JOINING = 10.0  # seconds that a seek waits for the partitions of a member that joins
COMMIT_EVERY = 1.0  # seconds between two commits on behalf of one client

EITHER = (
    "one instance reads topics by name, topics by pattern, or partitions; delete its subscription "
    "first"
)


class Instance:
    """identity: of whom it was made for. polling: a long poll is under way."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Consumer,
        group: str,
        name: str,
        wishes: Wishes,
        *,
        dialect: str,
        identity: str = "",
        audit: Audit | None = None,
    ) -> None:
        self.group, self.name, self.wishes = group, name, wishes
        self.dialect, self.identity = dialect, identity
        self.topics: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.busy = 0
        self.polling = False
        self.ended = False
        self._cluster = cluster
        self._audit = audit or Unaudited()
        self._settings = settings
        self._consumer: GroupConsumer | None = None
        self._by_hand = False
        self._lock = asyncio.Lock()
        self._waiting = 0  # who ends a long poll
        self._hurry = asyncio.Event()
        self._news = asyncio.Event()
        self._returned: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}  # of them, what the client is through with
        self._committed: dict[TopicPartition, int] = {}
        self._left: set[TopicPartition] = set()  # went away since the last poll gave records
        self._committing: asyncio.Task[None] | None = None

    # turns

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """For what changes what is read: it ends a long poll."""
        self._waiting += 1
        self._hurry.set()
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._hurry.clear()
        try:
            self._living()
            yield
        finally:
            self._lock.release()

    @asynccontextmanager
    async def long(self, wait: float) -> AsyncIterator[float]:
        """For a poll; gives the seconds that are left of its own. Raises Refusal 409."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        try:
            async with asyncio.timeout_at(until):  # one that is free is had at once, also then
                await self._lock.acquire()
        except TimeoutError:
            what = f"another request reads with {self.name}; wait for it, or use another instance"
            raise Refusal(409, what, code="INSTANCE_BUSY", retry_after=1.0) from None
        self.polling = True
        try:
            self._living()
            yield max(0.0, until - loop.time())
        finally:
            self.polling = False
            self._lock.release()

    def _living(self) -> None:
        if self.ended:
            raise Refusal(404, f"{self.name} was deleted; create it", code="INSTANCE_NOT_FOUND")

    # what it reads

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None = None) -> None:
        """Raises Refusal 409."""
        other_way = bool(self.topics) if pattern is not None else self.pattern is not None
        if self._by_hand or other_way:
            raise Refusal(409, EITHER, code="OTHER_SUBSCRIPTION")
        if self._consumer is None:
            self._consumer = self._made()
        self.topics, self.pattern = tuple(dict.fromkeys(topics)), pattern
        self._consumer.subscribe(pattern or self.topics, self)

    async def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these and no others. What was returned of the others counts as done, as in Java's
        consumer, where commits are automatic. Raises Refusal 409."""
        if self.topics or self.pattern is not None:
            raise Refusal(409, EITHER, code="OTHER_SUBSCRIPTION")
        if self._consumer is None:
            self._consumer = self._made()
        wanted = frozenset(tps)
        self._done.update(self._returned)
        await self._commit_done(self._consumer)
        self._forget(self._consumer.assignment - wanted)
        self._by_hand = True
        self._consumer.assign(wanted)

    async def unsubscribe(self, *, commit: bool = True) -> None:
        """Leave the group. commit: what was returned counts as done, where that is automatic."""
        consumer, self._consumer = self._consumer, None
        if self._committing is not None:
            self._committing.cancel()
            self._committing = None
        if consumer is not None:
            if commit:
                self._done.update(self._returned)
            try:
                await self._commit_done(consumer)
            finally:
                self._forget(consumer.assignment)
                self._recover_commits("are not needed any more")
                await consumer.close(leave=self._settings.leave_group_on_close)
        self.topics, self.pattern, self._by_hand = (), None, False
        for each in (self._returned, self._done, self._committed):
            each.clear()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset() if self._consumer is None else self._consumer.assignment

    @property
    def subscribed(self) -> bool:
        return self._consumer is not None

    def _made(self) -> GroupConsumer:
        settings = self._settings
        return GroupConsumer(
            self._cluster,
            self.group,
            protocol=settings.group_protocol,
            session_timeout=settings.session_timeout,
            heartbeat_interval=settings.heartbeat_interval,
            auto_offset_reset=self.wishes.reset,
            isolation=self.wishes.isolation,
            max_partition_bytes=settings.max_partition_fetch_bytes,
            max_fetch_bytes=settings.fetch_max_bytes,
            on_gap=partial(audit_gap, self._audit),
        )

    def _reading(self) -> GroupConsumer:
        if self._consumer is None:
            what = "it is subscribed to nothing; subscribe to topics, or assign partitions"
            raise Refusal(409, f"{self.name}: {what}", code="NOT_SUBSCRIBED")
        return self._consumer

    # records

    async def poll(
        self, wait: float, most: int, least: int, end: asyncio.Event, gone: asyncio.Future[Any]
    ) -> list[Record]:
        """In a `long` turn. wait in seconds; most, least: bytes of keys and values.

        end, gone: each of them ends it, without records. Nothing is lost if it is cancelled.
        """
        records = await self._poll(wait, most, least, end, gone)
        self._left.clear()
        return records

    async def _poll(
        self, wait: float, most: int, least: int, end: asyncio.Event, gone: asyncio.Future[Any]
    ) -> list[Record]:
        consumer, settings = self._reading(), self._settings
        self._done.update(self._returned)
        if self._uncommitted(consumer) and self._committing is None:
            self._committing = apart(self._commit_soon(consumer))
        # What is kept of a partition is bounded, and more than that would never be there.
        least = max(1, min(least, most, settings.max_partition_fetch_bytes // 2))
        records, size = settings.max_poll_records, min(most, settings.request_max_bytes)
        if not self._hurry.is_set():  # a tenth of a poll's CPU is saved where records are kept
            found = consumer.at_once(min_bytes=least, max_bytes=size, max_records=records)
            if found is not None:
                return found
        polling = asyncio.ensure_future(
            consumer.poll(wait, min_bytes=least, max_bytes=size, max_records=records)
        )
        ends: list[asyncio.Future[Any]] = [gone]
        try:
            await asyncio.sleep(0)  # what is there already needs nobody to wait for
            if not polling.done():
                ends += [asyncio.ensure_future(each.wait()) for each in (self._hurry, end)]
                await asyncio.wait([polling, *ends], return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else []
        except asyncio.CancelledError:
            if polling.done() and not polling.cancelled() and polling.exception() is None:
                self.give_back(polling.result())
            raise
        finally:
            for each in (polling, *ends[1:]):
                each.cancel()
            if not polling.done():
                await asyncio.wait([polling])

    def returned(self, records: Sequence[Record]) -> None:
        """They were written to the client. Those of a partition that went away meanwhile are not
        its to commit, also if it has come back: another member may have got further."""
        assigned = self.assignment - self._left
        last = {record.tp: record.next for record in records}
        self._returned.update((tp, offset) for tp, offset in last.items() if tp in assigned)

    def give_back(self, records: Sequence[Record]) -> None:
        """They were not: the next poll returns them."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(record.tp, record.offset)
        for tp, offset in first.items():
            if self._consumer is not None and tp in self._consumer.assignment:
                position = self._consumer.position(tp)
                if position is not None and position > offset:
                    self._consumer.seek(tp, offset)

    # positions

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        consumer = await self._with(offsets)
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)
            self._sought(tp, offset)

    async def seek_to(self, specs: Mapping[TopicPartition, int | str]) -> None:
        """`first`, `last`, or a time in milliseconds."""
        consumer = await self._with(specs)
        first = [tp for tp, spec in specs.items() if spec == "first"]
        last = [tp for tp, spec in specs.items() if spec == "last"]
        times = {tp: spec for tp, spec in specs.items() if isinstance(spec, int)}
        await consumer.seek_to_beginning(first)
        await consumer.seek_to_end(last)
        await consumer.seek_to_timestamp(times)
        for tp in specs:
            self._sought(tp, consumer.position(tp))

    def _sought(self, tp: TopicPartition, offset: int | None) -> None:
        """A commit of all means the position, as in Java's consumer."""
        if offset is not None:
            self._returned[tp] = offset

    async def _with(self, tps: Collection[TopicPartition]) -> GroupConsumer:
        """Once they are there: a seek behind a subscription need not wait for a poll. Raises
        Refusal 409 for what is not this member's."""
        consumer = self._reading()
        until = asyncio.get_running_loop().time() + JOINING
        while missing := set(tps) - consumer.assignment:
            settled = consumer.state is State.RUNNING and bool(consumer.assignment)
            if self._by_hand or settled or asyncio.get_running_loop().time() >= until:
                raise not_assigned(missing)
            self._news.clear()
            try:
                async with asyncio.timeout(0.1):  # the state has no event
                    await self._news.wait()
            except TimeoutError:
                continue
        return consumer

    # offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed] | None
    ) -> dict[TopicPartition, Committed]:
        """None: all that was returned. What is committed then: offsets to go on from."""
        consumer = self._consumer
        if offsets is None:
            returned = {tp: self._returned[tp] for tp in self._returned.keys() & self.assignment}
            offsets = {tp: Committed(offset) for tp, offset in returned.items()}
        if not offsets:
            return {}
        if consumer is not None:
            await consumer.commit(offsets)
        else:
            await Commits(self._cluster.coordinators, self.group).commit(offsets, lambda _: None)
        places = {tp: one.offset for tp, one in offsets.items()}
        self._committed.update(places)
        self._done.update(places)  # else a commit on its behalf would take this one back
        return dict(offsets)

    async def committed(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        return await Commits(self._cluster.coordinators, self.group).committed(tps)

    def _uncommitted(self, consumer: GroupConsumer) -> dict[TopicPartition, Committed]:
        if not self.wishes.auto_commit:
            return {}
        known, owned = self._committed, self._done.keys() & consumer.assignment
        return {tp: Committed(self._done[tp]) for tp in owned if known.get(tp) != self._done[tp]}

    async def _commit_soon(self, consumer: GroupConsumer) -> None:
        try:
            while True:
                if not await self._commit_done(consumer):
                    return
                await asyncio.sleep(COMMIT_EVERY)
        finally:
            self._committing = None

    async def _commit_done(self, consumer: GroupConsumer) -> bool:
        """What the client is through with. False: nothing, or it cannot be committed now."""
        done = self._uncommitted(consumer)
        if not done:
            return False
        try:
            await consumer.commit(done)
        except KafkaError as exc:
            self._cluster.outages.fail_with(self._commit_label, exc, group=self.group)
            return False
        self._recover_commits("are made again")
        self._committed.update((tp, one.offset) for tp, one in done.items())
        return True

    @property
    def _commit_label(self) -> str:
        return f"commits of group={self.group} instance={self.name}"

    def _recover_commits(self, how: str) -> None:
        self._cluster.outages.recover(self._commit_label, how)

    # the listener of its consumer

    async def assigned(self, tps: frozenset[TopicPartition]) -> None:
        self._news.set()

    async def revoked(self, tps: frozenset[TopicPartition]) -> None:
        if self._consumer is not None:
            await self._commit_done(self._consumer)
        self._forget(tps)

    async def lost(self, tps: frozenset[TopicPartition]) -> None:
        self._forget(tps)

    def _forget(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._left.add(tp)
            for each in (self._returned, self._done, self._committed):
                each.pop(tp, None)
        if not self._done:
            self._recover_commits("are not needed any more")


def not_assigned(tps: Iterable[TopicPartition]) -> Refusal:
    names = ", ".join(str(tp) for tp in sorted(tps)[:10])
    what = f"{names}: not assigned to this instance (any more)"
    return Refusal(409, f"{what}; GET its assignments", code="NOT_ASSIGNED")


def meant(exc: Exception) -> Exception:
    """What Kafka says of a group, as a client can act on it."""
    match exc:
        case NotOwned():
            return Refusal(409, f"{exc}; GET its assignments", code="NOT_ASSIGNED")
        case PartitionFailed():
            return Refusal(409, str(exc), code="NO_OFFSET")
        case GroupFailed():
            return Refusal(409, f"{exc}; use another group, or correct it", code="GROUP_FAILED")
    return exc
