"""Represent one consumer instance: a member of a group that is used over HTTP.

Requests that poll or change the subscription take turns (`_lock`). A second long poll waits for the
first one for at most as long as it may wait for records, then it is refused (409). A request that
changes the subscription (subscribe, assign, seek, delete) ends a long poll that is under way, which
is then answered without records. Commits and queries do not wait.

A record counts as returned when it was written to the client's connection, and only then may it be
committed: by the client, or with `autoCommitEnable` by its next poll, which means that the client
has processed the records of the last one. If a partition goes to another member between the two,
that member reads the records again. An instance without a subscription has no group membership, no
task and no connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from gateway.client_memory import ClientMemory, HeldPart
from gateway.config.sections.sidecar import Consumer
from gateway.core.group.member import MemberState
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import (
    GroupFailed,
    KafkaError,
    MemoryFull,
    NotOwned,
    PartitionFailed,
    PartitionUnreadable,
)
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.context import Auditor, audit_gap, build_consumer_options
from gateway.sidecar.http.status import StatusError
from gateway.telemetry.logs import create_detached_task

from .instance_options import InstanceOptions

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 10.0  # for a seek to wait until a member that joins has its partitions
COMMIT_INTERVAL_S = 1.0  # between two automatic commits of one instance
CONSUMER_BYTES = 20_000  # of an instance with a subscription, without partitions
PARTITION_BYTES = 1000  # of one that is assigned, without records

MIXED_SUBSCRIPTION_MESSAGE = (
    "one instance reads topics by name, topics by pattern, or partitions; delete its subscription "
    "first"
)


class ConsumerInstance:
    """Read from a group, or from partitions, on behalf of one client (`identity`).

    `ConsumerInstances` creates it and owns it. At most one of `topics`, `pattern` and a manual
    assignment is set, and a consumer exists exactly while one of them is. An instance with
    `active_requests` does not expire.
    """

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
        hidden_topics: frozenset[str] = frozenset(),
        client_memory: ClientMemory | None = None,
    ) -> None:
        self.group, self.name, self.options = group, name, options
        self.dialect, self.identity = dialect, identity
        self.topics: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.active_requests = 0
        self.is_polling = False
        self.is_ended = False
        self._cluster = cluster
        self._auditor = auditor
        self._settings = settings
        self._client_memory = client_memory or ClientMemory()
        self._consumer_options = build_consumer_options(
            settings,
            auto_offset_reset=options.auto_offset_reset,
            isolation=options.isolation,
            hidden_topics=hidden_topics,
        )
        self._consumer: GroupConsumer | None = None
        self._is_assigned_manually = False
        self._lock = asyncio.Lock()
        self._waiting_changes = 0  # requests that wait for the lock, and end a long poll
        self._interrupt_poll = asyncio.Event()  # set while there are any
        self._assignment_changed = asyncio.Event()
        # Each is the offset after the last record of a partition, only of assigned partitions:
        self._returned_offsets: dict[TopicPartition, int] = {}  # that was written to the client
        self._processed_offsets: dict[TopicPartition, int] = {}  # that the client has processed
        self._committed_offsets: dict[TopicPartition, int] = {}  # that Kafka has acknowledged
        # That the client has committed itself since it was last set to another offset.
        self._client_offsets: dict[TopicPartition, int] = {}
        # Partitions that were taken away since the last poll returned, until that is answered.
        self._removed_since_poll: set[TopicPartition] = set()
        self._commit_task: asyncio.Task[None] | None = None
        self._held_memory = ExitStack()
        self._counted_bytes = 0  # with the most partitions since it was subscribed
        self._has_left = False  # as there was no memory, and was not subscribed since then
        self._leave_task: asyncio.Task[None] | None = None

    # Turns

    @asynccontextmanager
    async def lock_for_change(self) -> AsyncIterator[None]:
        """Hold the lock to change the subscription; a long poll that holds it ends at once.

        StatusError 404 is raised if the instance has ended meanwhile.
        """
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
        """Hold the lock to poll, and yield the seconds left of `timeout_s` after waiting for it.

        StatusError 409 is raised if another request holds it so long, 404 if the instance ended.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            # A free lock is acquired without a suspension, so a timeout of 0 works, too.
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError:
            problem = (
                f"another request reads with {self.name}; wait for it, or use another instance"
            )
            raise StatusError(409, problem, code="INSTANCE_BUSY", retry_after=1.0) from None
        self.is_polling = True
        try:
            self._check_not_ended()
            yield max(0.0, deadline - loop.time())
        finally:
            self.is_polling = False
            self._lock.release()

    def _check_not_ended(self) -> None:
        if self.is_ended:
            raise StatusError(404, f"{self.name} was deleted; create it", code="INSTANCE_NOT_FOUND")

    # Subscriptions

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None = None) -> None:
        """Read topics as a member of the group; raises StatusError 409 if it reads otherwise."""
        is_other_kind = bool(self.topics) if pattern is not None else self.pattern is not None
        if self._is_assigned_manually or is_other_kind:
            raise StatusError(409, MIXED_SUBSCRIPTION_MESSAGE, code="OTHER_SUBSCRIPTION")
        topics = tuple(dict.fromkeys(topics))
        if self._consumer is None or (topics, pattern) != (self.topics, self.pattern):
            # More partitions of a topic count when the group assigns them.
            self._count_partitions(len(topics) or 1)
        if self._consumer is None:
            self._consumer = self._create_consumer()
        self.topics, self.pattern = topics, pattern
        self._consumer.subscribe(pattern or self.topics, self)

    async def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions without being a member; raises StatusError 409 if it is one.

        With automatic commits, returned records of the other partitions count as processed, as in
        Java's consumer.
        """
        if self.topics or self.pattern is not None:
            raise StatusError(409, MIXED_SUBSCRIPTION_MESSAGE, code="OTHER_SUBSCRIPTION")
        new_assignment = frozenset(tps)
        self._count_partitions(len(new_assignment))
        if self._consumer is None:
            self._consumer = self._create_consumer()
        self._note_processed()
        await self._commit_processed(self._consumer)
        self._forget(self._consumer.assignment - new_assignment)
        self._is_assigned_manually = True
        self._consumer.assign(new_assignment)

    async def unsubscribe(self, *, commit: bool = True) -> None:
        """Stop reading and leave the group.

        Args:
            commit: Whether returned records count as processed, where commits are automatic.
        """
        # From here on `on_partitions_revoked` commits nothing, which `close` calls below.
        consumer, self._consumer = self._consumer, None
        if self._commit_task is not None:
            self._commit_task.cancel()
            self._commit_task = None
        if consumer is not None:
            if commit:
                self._note_processed()
            try:
                await self._commit_processed(consumer)
            finally:
                self._forget(consumer.assignment)
                self._recover_commits("are not needed any more")
                await consumer.close(leave=self._settings.leave_group_on_close)
        self.topics, self.pattern, self._is_assigned_manually = (), None, False
        self._held_memory.close()
        self._counted_bytes, self._has_left = 0, False
        for offsets in self._all_offsets:
            offsets.clear()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset() if self._consumer is None else self._consumer.assignment

    def is_visible(self, topic: str) -> bool:
        """Return whether the instance's pattern may match a topic."""
        return self._consumer_options.is_visible(topic)

    @property
    def is_subscribed(self) -> bool:
        return self._consumer is not None

    def _create_consumer(self) -> GroupConsumer:
        return GroupConsumer(
            self._cluster,
            self.group,
            self._consumer_options,
            on_gap=partial(audit_gap, self._auditor, "ACTIVE_CONSUMER"),
            on_buffered=self._count_buffered,
        )

    def _count_partitions(self, count: int, *, is_growth: bool = False) -> None:
        """Count partitions until the subscription ends; raises StatusError 503."""
        size = CONSUMER_BYTES + count * PARTITION_BYTES
        if (more := size - self._counted_bytes) > 0:
            reserved = self._client_memory.reserve(
                HeldPart.FETCHED, more, self.identity, is_growth=is_growth
            )
            try:
                self._held_memory.enter_context(reserved)
            except MemoryFull:
                raise self._create_memory_full() from None
            self._counted_bytes = size
        self._has_left = False

    def _create_memory_full(self) -> StatusError:
        problem = "memory has no space for its partitions, or too much is for other ones of yours"
        advice = "subscribe it later, or to fewer, or delete other instances"
        detail = f"{self.name}: {problem}; {advice}"
        return StatusError(503, detail, code="MEMORY_FULL", retry_after=5.0)

    def _count_buffered(self, size: int) -> None:
        self._client_memory.hold_if_large(HeldPart.FETCHED, self, size)

    def release_memory(self) -> None:
        """Drop the records that were fetched ahead. See `Holder`."""
        if self._consumer is not None:
            self._consumer.prefetcher.drop_buffered()

    def _require_consumer(self) -> GroupConsumer:
        if self._has_left:
            raise self._create_memory_full()
        if self._consumer is None:
            problem = "it is subscribed to nothing; subscribe to topics, or assign partitions"
            raise StatusError(409, f"{self.name}: {problem}", code="NOT_SUBSCRIBED")
        return self._consumer

    # Records

    async def poll(
        self,
        timeout_s: float,
        max_bytes: int,
        min_bytes: int,
        draining: asyncio.Event,
        disconnected: asyncio.Future[Any],
    ) -> list[Record]:
        """Return the next records, or none when the time is up; the caller has `lock_for_poll`.

        No record is lost if it is cancelled. `draining` and `disconnected` end the wait. A record
        larger than `max_bytes` is returned alone.
        """
        consumer, settings = self._require_consumer(), self._settings
        # A client that polls again has processed what it got, as in Java's consumer.
        self._note_processed()
        if self._list_uncommitted(consumer) and self._commit_task is None:
            self._commit_task = create_detached_task(self._commit_periodically(consumer))
        # The consumer fetches only so much of a partition ahead; more would never be there.
        limits = {
            "min_bytes": max(1, min(min_bytes, max_bytes, settings.max_partition_fetch_bytes // 2)),
            "max_bytes": min(max_bytes, settings.request_max_bytes),
            "max_records": settings.max_poll_records,
        }
        # It saves a tenth of a poll's CPU where records were fetched ahead.
        records = None if self._interrupt_poll.is_set() else consumer.poll_nowait(**limits)
        if records is None:
            polling = asyncio.ensure_future(consumer.poll(timeout_s, **limits))
            records = await self._wait_for_records(polling, draining, disconnected)
        # From here on, a partition that goes away takes some of these records with it.
        self._removed_since_poll.clear()
        return records

    async def _wait_for_records(
        self,
        polling: asyncio.Future[list[Record]],
        draining: asyncio.Event,
        disconnected: asyncio.Future[Any],
    ) -> list[Record]:
        ends: list[asyncio.Future[Any]] = [disconnected]
        try:
            # Let the poll run once: if it is done then, the tasks below are not needed.
            await asyncio.sleep(0)
            if not polling.done():
                ends += [
                    asyncio.ensure_future(event.wait())
                    for event in (self._interrupt_poll, draining)
                ]
                await asyncio.wait([polling, *ends], return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else []
        except asyncio.CancelledError:
            # The consumer's position is already past these records, which nobody gets.
            if polling.done() and not polling.cancelled() and polling.exception() is None:
                self.restore_records(polling.result())
            raise
        finally:
            for future in (polling, *ends[1:]):  # `disconnected` is the caller's
                future.cancel()
            if not polling.done():
                await asyncio.wait([polling])

    def mark_returned(self, records: Sequence[Record]) -> None:
        """Note that records were written to the client, which may commit them from now on.

        Records of a partition that was taken away meanwhile are left out, even if the partition has
        come back: another member may be further, and a commit would set the group back.
        """
        assigned = self.assignment - self._removed_since_poll
        first = {record.tp: record.offset for record in reversed(records)}
        for tp in first.keys() & assigned:
            if first[tp] < self._returned_offsets.get(tp, 0):
                # Not by a seek, which is noted: the topic was recreated, or its log was cut. What
                # was committed before is of other records.
                for offsets in self._all_offsets:
                    offsets.pop(tp, None)
        last = {record.tp: record.next_offset for record in records}
        self._returned_offsets.update((tp, offset) for tp, offset in last.items() if tp in assigned)

    def restore_records(self, records: Sequence[Record]) -> None:
        """Let the next poll return records that were not written to the client."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(record.tp, record.offset)
        for tp, offset in first.items():
            if self._consumer is not None and tp in self._consumer.assignment:
                position = self._consumer.position(tp)
                # It is not past them if the partition went away and came back meanwhile.
                if position is not None and position > offset:
                    self._consumer.seek(tp, offset)

    # Positions

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set positions; raises StatusError 409 if a partition is not assigned."""
        consumer = await self.wait_for_assignment(offsets)
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)
            self._note_seek(tp, offset)

    async def seek_to_specs(self, specs: Mapping[TopicPartition, int]) -> None:
        """Set positions to EARLIEST, LATEST, or a timestamp in milliseconds; raises as `seek`."""
        consumer = await self.wait_for_assignment(specs)
        await consumer.seek_to_specs(specs)
        for tp in specs:
            self._note_seek(tp, consumer.position(tp))

    def _note_seek(self, tp: TopicPartition, offset: int | None) -> None:
        """Let a commit of everything commit the new position, as in Java's consumer."""
        if offset is not None:
            self._returned_offsets[tp] = offset
            self._client_offsets.pop(tp, None)

    async def wait_for_assignment(self, tps: Collection[TopicPartition]) -> GroupConsumer:
        """Wait until partitions are assigned, so that a seek may follow a subscription at once.

        Raises StatusError 409 if the instance has no subscription, or other partitions.
        """
        consumer = self._require_consumer()
        deadline = asyncio.get_running_loop().time() + JOIN_TIMEOUT_S
        while missing := set(tps) - consumer.assignment:
            is_settled = consumer.state is MemberState.RUNNING and bool(consumer.assignment)
            if (
                self._is_assigned_manually
                or is_settled
                or asyncio.get_running_loop().time() >= deadline
            ):
                raise create_not_assigned(missing)
            self._assignment_changed.clear()
            try:
                async with asyncio.timeout(0.1):  # changes of the member's state have no event
                    await self._assignment_changed.wait()
            except TimeoutError:
                continue
        return consumer

    # Committed offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit offsets of next records (None: after all returned records), and return them."""
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
        else:  # as Kafka allows it to a client that is no member
            await GroupOffsets(self._cluster.coordinators, self.group).commit(
                offsets, lambda _: None
            )
        # Nothing is remembered of others: an instance may commit offsets of any partition.
        committed = {tp: offsets[tp].offset for tp in self.assignment if tp in offsets}
        self._committed_offsets.update(committed)
        # Otherwise the next automatic commits would take this one back.
        self._processed_offsets.update(committed)
        self._client_offsets.update(committed)
        return dict(offsets)

    def select_unreturned(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, int]:
        return {
            tp: position.offset
            for tp, position in offsets.items()
            if position.offset > self._returned_offsets.get(tp, 0)
        }

    async def committed(
        self, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return await GroupOffsets(self._cluster.coordinators, self.group).committed(tps)

    def _note_processed(self) -> None:
        """Let returned records count as processed, at least as far as the client has committed."""
        for tp, offset in self._returned_offsets.items():
            self._processed_offsets[tp] = max(offset, self._client_offsets.get(tp, 0))

    @property
    def _all_offsets(self) -> tuple[dict[TopicPartition, int], ...]:
        return (
            self._returned_offsets,
            self._processed_offsets,
            self._committed_offsets,
            self._client_offsets,
        )

    def _list_uncommitted(self, consumer: GroupConsumer) -> dict[TopicPartition, OffsetAndMetadata]:
        if not self.options.auto_commit:
            return {}
        committed = self._committed_offsets
        owned = self._processed_offsets.keys() & consumer.assignment
        return {
            tp: OffsetAndMetadata(self._processed_offsets[tp])
            for tp in owned
            if committed.get(tp) != self._processed_offsets[tp]
        }

    async def _commit_periodically(self, consumer: GroupConsumer) -> None:
        """Commit until there is nothing to commit; a poll starts it again."""
        try:
            while True:
                if not await self._commit_processed(consumer):
                    return
                await asyncio.sleep(COMMIT_INTERVAL_S)
        finally:
            self._commit_task = None

    async def _commit_processed(self, consumer: GroupConsumer) -> bool:
        """Commit processed offsets, and return False if there are none or it fails now."""
        offsets = self._list_uncommitted(consumer)
        if not offsets:
            return False
        try:
            await consumer.commit(offsets)
        except KafkaError as exc:
            self._cluster.outages.report_error(self._commit_label, exc, group=self.group)
            return False
        self._recover_commits("work again")
        self._committed_offsets.update((tp, position.offset) for tp, position in offsets.items())
        return True

    @property
    def _commit_label(self) -> str:
        return f"commits of group={self.group} instance={self.name}"

    def _recover_commits(self, how: str) -> None:
        self._cluster.outages.report_recovery(self._commit_label, how)

    # Callbacks of its consumer

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        self._assignment_changed.set()
        try:
            self._count_partitions(len(self.assignment), is_growth=True)
        except StatusError:
            count = len(self.assignment)
            log.info(
                "group %s: instance %s leaves, as memory has no space for its %d partitions",
                self.group, self.name, count,
            )  # fmt: skip
            self._leave_task = create_detached_task(self._leave_group(self._consumer))

    async def _leave_group(self, consumer: GroupConsumer | None) -> None:
        with suppress(StatusError):  # the instance has ended
            async with self.lock_for_change():
                if self._consumer is consumer:
                    await self.unsubscribe(commit=False)
                    self._has_left = True

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Commit processed offsets, while the partitions are still this member's; forget them."""
        if self._consumer is not None:
            await self._commit_processed(self._consumer)
        self._forget(tps)

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        """Forget partitions that are another member's already, where a commit would fail."""
        self._forget(tps)

    def _forget(self, tps: Collection[TopicPartition]) -> None:
        if self.is_polling:
            self._removed_since_poll.update(tps)
        for tp in tps:
            for offsets in self._all_offsets:
                offsets.pop(tp, None)
        if not self._processed_offsets:
            self._recover_commits("are not needed any more")


def create_not_assigned(tps: Iterable[TopicPartition]) -> StatusError:
    names = ", ".join(str(tp) for tp in sorted(tps)[:10])
    problem = f"{names}: not assigned to this instance (any more)"
    return StatusError(409, f"{problem}; GET its assignments", code="NOT_ASSIGNED")


def translate_group_error(exc: Exception) -> Exception:
    """Turn Kafka's error about a group into one on which a client can act."""
    match exc:
        case NotOwned():
            return StatusError(409, f"{exc}; GET its assignments", code="NOT_ASSIGNED")
        case PartitionUnreadable():
            return exc
        case PartitionFailed():
            return StatusError(409, str(exc), code="NO_OFFSET")
        case GroupFailed():
            return StatusError(409, f"{exc}; use another group, or correct it", code="GROUP_FAILED")
    return exc
