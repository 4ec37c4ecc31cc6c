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
from gateway.core.group.member import MemberState
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GroupFailed, KafkaError, NotOwned, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.context import Auditor, NullAuditor, audit_gap
from gateway.sidecar.http.status import StatusError
from gateway.telemetry.log_context import create_detached_task

from .instance_options import InstanceOptions

JOIN_TIMEOUT_S = 10.0  # seconds that a seek waits for the partitions of a member that joins
COMMIT_INTERVAL_S = 1.0  # seconds between two commits on behalf of one client

MIXED_SUBSCRIPTION_MESSAGE = (
    "one instance reads topics by name, topics by pattern, or partitions; delete its subscription "
    "first"
)


class ConsumerInstance:
    """identity: of whom it was made for. polling: a long poll is under way."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Consumer,
        group: str,
        name: str,
        options: InstanceOptions,
        *,
        dialect: str,
        identity: str = "",
        auditor: Auditor | None = None,
    ) -> None:
        self.group, self.name, self.options = group, name, options
        self.dialect, self.identity = dialect, identity
        self.topics: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.active_requests = 0
        self.is_polling = False
        self.is_ended = False
        self._cluster = cluster
        self._auditor = auditor or NullAuditor()
        self._settings = settings
        self._consumer: GroupConsumer | None = None
        self._is_assigned_manually = False
        self._lock = asyncio.Lock()
        self._waiting_changes = 0  # who ends a long poll
        self._interrupt_poll = asyncio.Event()
        self._assignment_changed = asyncio.Event()
        self._returned_offsets: dict[TopicPartition, int] = {}
        self._processed_offsets: dict[
            TopicPartition, int
        ] = {}  # of them, what the client is through with
        self._committed_offsets: dict[TopicPartition, int] = {}
        self._removed_since_poll: set[TopicPartition] = (
            set()
        )  # went away since the last poll gave records
        self._commit_task: asyncio.Task[None] | None = None

    # turns

    @asynccontextmanager
    async def lock_for_change(self) -> AsyncIterator[None]:
        """For what changes what is read: it ends a long poll."""
        self._waiting_changes += 1
        self._interrupt_poll.set()
        try:
            await self._lock.acquire()
        finally:
            self._waiting_changes -= 1
            if not self._waiting_changes:
                self._interrupt_poll.clear()
        try:
            self._check_not_ended()
            yield
        finally:
            self._lock.release()

    @asynccontextmanager
    async def lock_for_poll(self, timeout_s: float) -> AsyncIterator[float]:
        """For a poll; gives the seconds that are left of its own. Raises Refusal 409."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(until):  # one that is free is had at once, also then
                await self._lock.acquire()
        except TimeoutError:
            what = f"another request reads with {self.name}; wait for it, or use another instance"
            raise StatusError(409, what, code="INSTANCE_BUSY", retry_after=1.0) from None
        self.is_polling = True
        try:
            self._check_not_ended()
            yield max(0.0, until - loop.time())
        finally:
            self.is_polling = False
            self._lock.release()

    def _check_not_ended(self) -> None:
        if self.is_ended:
            raise StatusError(404, f"{self.name} was deleted; create it", code="INSTANCE_NOT_FOUND")

    # what it reads

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None = None) -> None:
        """Raises Refusal 409."""
        other_way = bool(self.topics) if pattern is not None else self.pattern is not None
        if self._is_assigned_manually or other_way:
            raise StatusError(409, MIXED_SUBSCRIPTION_MESSAGE, code="OTHER_SUBSCRIPTION")
        if self._consumer is None:
            self._consumer = self._create_consumer()
        self.topics, self.pattern = tuple(dict.fromkeys(topics)), pattern
        self._consumer.subscribe(pattern or self.topics, self)

    async def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these and no others. What was returned of the others counts as done, as in Java's
        consumer, where commits are automatic. Raises Refusal 409."""
        if self.topics or self.pattern is not None:
            raise StatusError(409, MIXED_SUBSCRIPTION_MESSAGE, code="OTHER_SUBSCRIPTION")
        if self._consumer is None:
            self._consumer = self._create_consumer()
        wanted = frozenset(tps)
        self._processed_offsets.update(self._returned_offsets)
        await self._commit_processed(self._consumer)
        self._forget(self._consumer.assignment - wanted)
        self._is_assigned_manually = True
        self._consumer.assign(wanted)

    async def unsubscribe(self, *, commit: bool = True) -> None:
        """Leave the group. commit: what was returned counts as done, where that is automatic."""
        consumer, self._consumer = self._consumer, None
        if self._commit_task is not None:
            self._commit_task.cancel()
            self._commit_task = None
        if consumer is not None:
            if commit:
                self._processed_offsets.update(self._returned_offsets)
            try:
                await self._commit_processed(consumer)
            finally:
                self._forget(consumer.assignment)
                self._recover_commits("are not needed any more")
                await consumer.close(leave=self._settings.leave_group_on_close)
        self.topics, self.pattern, self._is_assigned_manually = (), None, False
        for each in (self._returned_offsets, self._processed_offsets, self._committed_offsets):
            each.clear()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset() if self._consumer is None else self._consumer.assignment

    @property
    def is_subscribed(self) -> bool:
        return self._consumer is not None

    def _create_consumer(self) -> GroupConsumer:
        settings = self._settings
        return GroupConsumer(
            self._cluster,
            self.group,
            protocol=settings.group_protocol,
            session_timeout=settings.session_timeout,
            heartbeat_interval=settings.heartbeat_interval,
            auto_offset_reset=self.options.auto_offset_reset,
            isolation=self.options.isolation,
            max_partition_bytes=settings.max_partition_fetch_bytes,
            max_fetch_bytes=settings.fetch_max_bytes,
            on_gap=partial(audit_gap, self._auditor),
        )

    def _require_consumer(self) -> GroupConsumer:
        if self._consumer is None:
            what = "it is subscribed to nothing; subscribe to topics, or assign partitions"
            raise StatusError(409, f"{self.name}: {what}", code="NOT_SUBSCRIBED")
        return self._consumer

    # records

    async def poll(
        self,
        timeout_s: float,
        max_bytes: int,
        min_bytes: int,
        draining: asyncio.Event,
        disconnected: asyncio.Future[Any],
    ) -> list[Record]:
        """In a `long` turn. wait in seconds; most, least: bytes of keys and values.

        end, gone: each of them ends it, without records. Nothing is lost if it is cancelled.
        """
        records = await self._poll(timeout_s, max_bytes, min_bytes, draining, disconnected)
        self._removed_since_poll.clear()
        return records

    async def _poll(
        self,
        timeout_s: float,
        max_bytes: int,
        min_bytes: int,
        draining: asyncio.Event,
        disconnected: asyncio.Future[Any],
    ) -> list[Record]:
        consumer, settings = self._require_consumer(), self._settings
        self._processed_offsets.update(self._returned_offsets)
        if self._list_uncommitted(consumer) and self._commit_task is None:
            self._commit_task = create_detached_task(self._commit_periodically(consumer))
        # What is kept of a partition is bounded, and more than that would never be there.
        min_bytes = max(1, min(min_bytes, max_bytes, settings.max_partition_fetch_bytes // 2))
        records, size = settings.max_poll_records, min(max_bytes, settings.request_max_bytes)
        if (
            not self._interrupt_poll.is_set()
        ):  # a tenth of a poll's CPU is saved where records are kept
            found = consumer.poll_nowait(min_bytes=min_bytes, max_bytes=size, max_records=records)
            if found is not None:
                return found
        polling = asyncio.ensure_future(
            consumer.poll(timeout_s, min_bytes=min_bytes, max_bytes=size, max_records=records)
        )
        ends: list[asyncio.Future[Any]] = [disconnected]
        try:
            await asyncio.sleep(0)  # what is there already needs nobody to wait for
            if not polling.done():
                ends += [
                    asyncio.ensure_future(each.wait()) for each in (self._interrupt_poll, draining)
                ]
                await asyncio.wait([polling, *ends], return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else []
        except asyncio.CancelledError:
            if polling.done() and not polling.cancelled() and polling.exception() is None:
                self.restore_records(polling.result())
            raise
        finally:
            for each in (polling, *ends[1:]):
                each.cancel()
            if not polling.done():
                await asyncio.wait([polling])

    def mark_returned(self, records: Sequence[Record]) -> None:
        """They were written to the client. Those of a partition that went away meanwhile are not
        its to commit, also if it has come back: another member may have got further."""
        assigned = self.assignment - self._removed_since_poll
        last = {record.tp: record.next_offset for record in records}
        self._returned_offsets.update((tp, offset) for tp, offset in last.items() if tp in assigned)

    def restore_records(self, records: Sequence[Record]) -> None:
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
        consumer = await self._wait_for_assignment(offsets)
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)
            self._note_seek(tp, offset)

    async def seek_to_specs(self, specs: Mapping[TopicPartition, int | str]) -> None:
        """`first`, `last`, or a time in milliseconds."""
        consumer = await self._wait_for_assignment(specs)
        first = [tp for tp, spec in specs.items() if spec == "first"]
        last = [tp for tp, spec in specs.items() if spec == "last"]
        times = {tp: spec for tp, spec in specs.items() if isinstance(spec, int)}
        await consumer.seek_to_beginning(first)
        await consumer.seek_to_end(last)
        await consumer.seek_to_timestamp(times)
        for tp in specs:
            self._note_seek(tp, consumer.position(tp))

    def _note_seek(self, tp: TopicPartition, offset: int | None) -> None:
        """A commit of all means the position, as in Java's consumer."""
        if offset is not None:
            self._returned_offsets[tp] = offset

    async def _wait_for_assignment(self, tps: Collection[TopicPartition]) -> GroupConsumer:
        """Once they are there: a seek behind a subscription need not wait for a poll. Raises
        Refusal 409 for what is not this member's."""
        consumer = self._require_consumer()
        until = asyncio.get_running_loop().time() + JOIN_TIMEOUT_S
        while missing := set(tps) - consumer.assignment:
            settled = consumer.state is MemberState.RUNNING and bool(consumer.assignment)
            if self._is_assigned_manually or settled or asyncio.get_running_loop().time() >= until:
                raise create_not_assigned(missing)
            self._assignment_changed.clear()
            try:
                async with asyncio.timeout(0.1):  # the state has no event
                    await self._assignment_changed.wait()
            except TimeoutError:
                continue
        return consumer

    # offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """None: all that was returned. What is committed then: offsets to go on from."""
        consumer = self._consumer
        if offsets is None:
            returned = {
                tp: self._returned_offsets[tp]
                for tp in self._returned_offsets.keys() & self.assignment
            }
            offsets = {tp: OffsetAndMetadata(offset) for tp, offset in returned.items()}
        if not offsets:
            return {}
        if consumer is not None:
            await consumer.commit(offsets)
        else:
            await GroupOffsets(self._cluster.coordinators, self.group).commit(
                offsets, lambda _: None
            )
        places = {tp: one.offset for tp, one in offsets.items()}
        self._committed_offsets.update(places)
        self._processed_offsets.update(
            places
        )  # else a commit on its behalf would take this one back
        return dict(offsets)

    async def committed(
        self, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return await GroupOffsets(self._cluster.coordinators, self.group).committed(tps)

    def _list_uncommitted(self, consumer: GroupConsumer) -> dict[TopicPartition, OffsetAndMetadata]:
        if not self.options.auto_commit:
            return {}
        known, owned = self._committed_offsets, self._processed_offsets.keys() & consumer.assignment
        return {
            tp: OffsetAndMetadata(self._processed_offsets[tp])
            for tp in owned
            if known.get(tp) != self._processed_offsets[tp]
        }

    async def _commit_periodically(self, consumer: GroupConsumer) -> None:
        try:
            while True:
                if not await self._commit_processed(consumer):
                    return
                await asyncio.sleep(COMMIT_INTERVAL_S)
        finally:
            self._commit_task = None

    async def _commit_processed(self, consumer: GroupConsumer) -> bool:
        """What the client is through with. False: nothing, or it cannot be committed now."""
        done = self._list_uncommitted(consumer)
        if not done:
            return False
        try:
            await consumer.commit(done)
        except KafkaError as exc:
            self._cluster.outages.report_error(self._commit_label, exc, group=self.group)
            return False
        self._recover_commits("are made again")
        self._committed_offsets.update((tp, one.offset) for tp, one in done.items())
        return True

    @property
    def _commit_label(self) -> str:
        return f"commits of group={self.group} instance={self.name}"

    def _recover_commits(self, how: str) -> None:
        self._cluster.outages.report_recovery(self._commit_label, how)

    # the listener of its consumer

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        self._assignment_changed.set()

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        if self._consumer is not None:
            await self._commit_processed(self._consumer)
        self._forget(tps)

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        self._forget(tps)

    def _forget(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._removed_since_poll.add(tp)
            for each in (self._returned_offsets, self._processed_offsets, self._committed_offsets):
                each.pop(tp, None)
        if not self._processed_offsets:
            self._recover_commits("are not needed any more")


def create_not_assigned(tps: Iterable[TopicPartition]) -> StatusError:
    names = ", ".join(str(tp) for tp in sorted(tps)[:10])
    what = f"{names}: not assigned to this instance (any more)"
    return StatusError(409, f"{what}; GET its assignments", code="NOT_ASSIGNED")


def translate_group_error(exc: Exception) -> Exception:
    """What Kafka says of a group, as a client can act on it."""
    match exc:
        case NotOwned():
            return StatusError(409, f"{exc}; GET its assignments", code="NOT_ASSIGNED")
        case PartitionFailed():
            return StatusError(409, str(exc), code="NO_OFFSET")
        case GroupFailed():
            return StatusError(409, f"{exc}; use another group, or correct it", code="GROUP_FAILED")
    return exc
