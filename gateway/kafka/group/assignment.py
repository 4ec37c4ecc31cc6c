"""Keep track of the partitions of one consumer, and find the offsets from which they are read.

The consumer group assigns partitions, or the caller does. When the group takes partitions away,
that acts on the prefetched records at once: no more records of a revoked partition are returned,
and a lost one is dropped. The listener is called after that, one change after the other. New
partitions are added only when their change is applied in that order: a topic that was deleted and
created again has partitions of the same names, and while an earlier change is being applied, an
offset of the former topic must not be committed for the new one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextvars import Context
from dataclasses import replace
from functools import partial
from math import inf
from typing import Protocol, assert_never
from uuid import UUID

from gateway.background_tasks import BackgroundTasks, run_supervised
from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.group.member import (
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
)
from gateway.core.group.partition_state import EARLIEST, LATEST, PartitionState, TopicMark
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import cause_from_code
from gateway.errors import AccessDenied, BrokerUnavailable, GroupFailed, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.protocol.group_messages import OffsetAndMetadata

from .consumer_options import ConsumerOptions
from .group_member import GroupMember, OwnershipChange
from .group_offsets import GroupOffsets
from .prefetch_fetcher import PrefetchFetcher

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5  # seconds before a retry, where no failure says how long to wait
PATTERN_INTERVAL_S = 5.0  # seconds between listings of topics, for subscriptions by pattern


class RebalanceListener(Protocol):
    """An application's reaction when its member gets or gives up partitions.

    Each call is cancelled after the rebalance timeout. An exception is logged and changes nothing.
    """

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """Take over partitions, which are read from now on; `seek` here decides from where."""

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Finish with partitions, which may be committed until this returns."""

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        """Drop partitions, of which nothing can be committed: another member may own them."""


class Assignment:
    """The partitions of one consumer, which creates and owns it, until `close`.

    Either `subscribe` is used or `assign`, never both. Between calls the states of the prefetcher
    are the partitions that may be read; those of a group that are being given up are marked as
    `is_revoking`.
    """

    def __init__(
        self, cluster: Cluster, group: str, options: ConsumerOptions, prefetcher: PrefetchFetcher
    ) -> None:
        self._refusal: KafkaError | None = None  # why the group does not admit the member
        self._lookup_failure: KafkaError | None = None  # why committed offsets are not known
        self._cluster = cluster
        self._group_name = group
        self._options = options
        self._prefetcher = prefetcher
        self._member: GroupMember | None = None
        self._offsets = GroupOffsets(cluster.coordinators, group)
        self._listener: RebalanceListener | None = None
        self._tasks = BackgroundTasks(log)
        self._pattern_task: asyncio.Task[None] | None = None
        self._topics: set[str] = set()  # the topics of partitions that are assigned by hand
        # The topic id of each partition when it was last assigned, to detect recreated topics.
        self._topic_ids: dict[TopicPartition, UUID] = {}
        # Those that were recreated since, until their committed offset is known, which may be of
        # either topic.
        self._recreated: set[TopicPartition] = set()
        # Topics that were created (again) since this consumer began, and of each topic how many
        # partitions it had when the group began, as in its marks.
        self._later_topics: set[str] = set()
        self._initial_partitions: dict[tuple[str, UUID | None], int] = {}
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    @property
    def state(self) -> MemberState:
        """Return the state of the member; RUNNING for partitions that are assigned by hand."""
        return self._member.state if self._member is not None else MemberState.RUNNING

    @property
    def failure(self) -> KafkaError | None:
        return self._refusal or self._lookup_failure

    def subscribe(
        self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener | None
    ) -> None:
        """Read partitions as the group assigns them. A pattern never matches Kafka's own topics."""
        if self._topics:
            raise ValueError("partitions are assigned by hand; take another consumer to subscribe")
        self._listener = listener
        member = self._member = self._member or self._create_member()
        if self._pattern_task is not None:
            self._pattern_task.cancel()
            self._pattern_task = None
        if isinstance(topics, re.Pattern):
            name = "a subscription by pattern"
            watch = run_supervised(partial(self._watch_pattern, member, topics), name)
            self._pattern_task = self._tasks.start(watch, name, context=Context())
        else:
            self._later_topics |= {topic for topic in topics if self._is_missing(topic)}
            member.subscribe(frozenset(topics))

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Read exactly these partitions. Those that are read already go on where they are."""
        if self._member is not None:
            raise ValueError("it is a group's member; take another consumer to assign by hand")
        for tp in self._prefetcher.states.keys() - set(tps):
            self._prefetcher.remove_partition(tp)
        topics = {tp.topic for tp in tps}
        for topic in topics - self._topics:
            self._cluster.metadata.acquire_watch(topic)
        for topic in self._topics - topics:
            self._cluster.metadata.release_watch(topic)
        self._topics = topics
        self._start_resolving(
            [self._add_partition(tp) for tp in tps if tp not in self._prefetcher.states]
        )

    def note_seek(self, state: PartitionState) -> None:
        """Let a partition that was assigned by hand be read without committing its start."""
        if self._member is None:
            state.is_starting = False

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit the next offsets, and note them in the states of their partitions.

        An offset without a leader epoch gets that of the record before it, if that was read here:
        the next owner notices by it that the log was cut off meanwhile (KIP-320). A partition that
        is lost meanwhile and assigned again is not committed, as its topic may be another one of
        the same name by then. Raises what `GroupOffsets.commit` raises.
        """
        states = {
            tp: state for tp in offsets if (state := self._prefetcher.states.get(tp)) is not None
        }
        offsets = {
            tp: offset._replace(epoch=states[tp].epoch_before(offset.offset))
            if offset.epoch < 0 and tp in states
            else offset
            for tp, offset in offsets.items()
        }
        marks = {tp.topic: self._build_mark(state) for tp, state in states.items()}
        group_offsets = self._offsets
        if (get_owned := group_offsets.get_owned) is not None:
            # A partition that was assigned again has another state object.
            group_offsets = replace(
                group_offsets,
                get_owned=lambda: {
                    tp for tp in get_owned() if self._prefetcher.states.get(tp) is states.get(tp)
                },
            )
        await group_offsets.commit(offsets, marks.get)
        for tp, state in states.items():
            state.committed = offsets[tp].offset

    async def close(self, leave: bool) -> None:
        self._unlisten()
        await self._tasks.close()
        for state in self._prefetcher.states.values():
            state.is_revoking = True
        self._prefetcher.wake()
        if self._member is not None:
            # While it is still a member, because the listener may commit.
            await self._revoke_all()
            await self._member.close(leave)
        for topic in self._topics:
            self._cluster.metadata.release_watch(topic)
        # Drop what refers back to this object: a thousand closed ones would otherwise remain as
        # 20 MB of reference cycles until the next full garbage collection.
        self._member, self._listener = None, None
        self._offsets = GroupOffsets(self._cluster.coordinators, self._group_name)

    def _create_member(self) -> GroupMember:
        member = GroupMember(self._cluster, self._group_name, self, self._options)
        # With a group, `_accept_partitions` handles recreated topics.
        self._prefetcher.follows_recreated = False
        self._offsets = GroupOffsets(
            self._cluster.coordinators,
            self._group_name,
            lambda: member.identity,
            # A new partition is in `owned` before its change was applied: not to be committed yet.
            lambda: self._prefetcher.states.keys() & member.owned,
            member.heartbeat_soon,
        )
        return member

    async def _revoke_all(self) -> None:
        if self._listener is None or not self._prefetcher.states:
            return
        try:
            async with asyncio.timeout(self._options.rebalance_timeout):
                await self._listener.on_partitions_revoked(frozenset(self._prefetcher.states))
        except Exception:  # whatever a listener raises, the group is left
            log.exception("group %s: a listener failed at the end", self._group_name)

    # Called by the member.

    def on_ownership_changed(self, event: OwnershipChange) -> None:
        """Stop reading partitions that are taken away. New ones are added when applied."""
        for tp in event.tps:
            if isinstance(event, PartitionsLost):
                self._prefetcher.remove_partition(tp)
            elif isinstance(event, PartitionsRevoked) and tp in self._prefetcher.states:
                self._prefetcher.states[tp].is_revoking = True
        self._prefetcher.wake()

    async def apply_ownership_change(self, event: OwnershipChange) -> None:
        """Call the listener for a change, and take its partitions over or drop them."""
        match event:
            case PartitionsLost(tps):
                if self._listener is not None:
                    await self._listener.on_partitions_lost(tps)
            case PartitionsAssigned(tps):
                # Partitions that were lost again before this change was applied are left out.
                owned = self._member.owned if self._member is not None else tps
                await self._accept_partitions(tps & owned)
            case PartitionsRevoked(tps):
                await self._revoke_partitions(tps)
            case _:
                assert_never(event)

    async def _accept_partitions(self, tps: frozenset[TopicPartition]) -> None:
        """Start to read partitions. By now the listener has nothing to commit of earlier ones."""
        states = [self._add_partition(tp) for tp in tps]
        try:
            if self._listener is not None and tps:
                await self._listener.on_partitions_assigned(tps)
        finally:  # whatever the listener raised, the partitions are owned and have to be read
            for state in states:
                previous_id = self._topic_ids.get(state.tp)
                if state.topic_id is not None:
                    self._topic_ids[state.tp] = state.topic_id
                if state.topic_id is not None and previous_id not in (None, state.topic_id):
                    # A seek of the listener was to an offset of the former topic.
                    state.forget_position()
                    self._recreated.add(state.tp)
            self._start_resolving(states)

    async def _revoke_partitions(self, tps: frozenset[TopicPartition]) -> None:
        states = [state for tp in tps if (state := self._prefetcher.states.get(tp)) is not None]
        for state in states:
            state.is_revoking = True
        try:
            if self._listener is not None:
                await self._listener.on_partitions_revoked(tps)
        finally:
            for state in states:
                # Unless it was lost meanwhile: then this is not its state any more.
                if state.is_revoking and self._prefetcher.states.get(state.tp) is state:
                    self._prefetcher.remove_partition(state.tp)

    def on_group_failure(self, failure: KafkaError | None) -> None:
        self._refusal = failure
        if failure is not None:
            self._prefetcher.wake()

    # Where to start.

    def _start_resolving(self, states: Collection[PartitionState]) -> None:
        if states:
            self._tasks.start(
                self._resolve_positions(list(states)), "a lookup of positions", context=Context()
            )

    def _add_partition(self, tp: TopicPartition) -> PartitionState:
        state = self._prefetcher.add_partition(tp)
        state.is_starting = bool(self._group_name)
        return state

    async def _resolve_positions(self, states: list[PartitionState]) -> None:
        """Find the positions of partitions: the committed offset, or else the offset reset.

        No records are read before that. A failed lookup is repeated for as long as the partitions
        are assigned and not sought.
        """
        reported: KafkaError | None = None
        try:
            while states := [state for state in states if self._needs_start(state)]:
                try:
                    offsets = {}
                    if self._group_name:
                        tps = [state.tp for state in states]
                        offsets = await self._offsets.committed_with_topics(tps)
                    missing = [state for state in states if state.tp not in offsets]
                    resets = await self._choose_resets(missing)
                except KafkaError as exc:
                    if not isinstance(exc, BrokerUnavailable):
                        self._report_lookup_failure(reported := exc)
                    await asyncio.sleep(exc.retry_after or RETRY_DELAY_S)
                    continue
                self._clear_lookup_failure(reported)
                # Filtered once more: some may have been revoked during the lookup.
                for state in filter(self._needs_start, states):
                    self._set_start(state, offsets.get(state.tp), resets.get(state.tp))
                self._prefetcher.wake()
                await self._commit_starts(states)
                break
        finally:
            self._clear_lookup_failure(reported)  # also if they were lost, as nobody asks then

    async def _commit_starts(self, states: list[PartitionState]) -> None:
        """Look up positions at once, as `latest` means now, and commit those that are missing."""
        now = asyncio.get_running_loop().time
        while states := [
            state
            for state in states
            if self._is_assigned(state) and (state.is_starting or state.offset_spec is not None)
        ]:
            for state in states:  # the application may have committed another offset
                state.is_starting = state.is_starting and state.committed is None
            offsets = {
                state.tp: OffsetAndMetadata(state.position, state.epoch)
                for state in states
                if state.is_starting and state.position is not None and state.retry_at <= now()
            }
            if not offsets:
                await self._prefetcher.look_up_positions()
                continue
            started = [state for state in states if state.tp in offsets]
            failure: KafkaError | None = None
            failed: Collection[tuple[str, int]] = ()
            try:
                await self.commit(offsets)
            except KafkaError as exc:
                failure, failed = exc, offsets if exc.partitions is None else exc.partitions
            for state in started:
                if state.tp in failed:
                    assert failure is not None
                    self._on_start_refused(state, failure)
                elif self._is_assigned(state):
                    self._prefetcher.failures.pop(state.tp, None)
                    if state.position != offsets[state.tp].offset:  # it was sought meanwhile
                        state.committed = None
            self._prefetcher.wake()

    def _on_start_refused(self, state: PartitionState, failure: KafkaError) -> None:
        """Try the commit of a start again later; without a member there may be none ever."""
        if self._member is None and not isinstance(failure, BrokerUnavailable):
            state.is_starting = False
        elif self._is_assigned(state):
            if isinstance(failure, AccessDenied | GroupFailed):
                # Not the same error: it may also be why the whole group is refused.
                denied = AccessDenied(str(failure), topic=state.tp.topic)
                self._prefetcher.failures[state.tp] = denied
            cause, now = cause_from_code(code_from_error(failure)), asyncio.get_running_loop().time
            state.back_off(cause, now(), failure.retry_after or 0.0)

    async def _choose_resets(
        self, states: Collection[PartitionState]
    ) -> dict[TopicPartition, int | None]:
        """Return where partitions begin of which the group has committed no offset.

        `latest` leaves out the records from before the group began. A partition that was added
        since is read from its start, because all of its records came after that.
        """
        if not states or self._options.offset_spec != LATEST or not self._group_name:
            return {state.tp: self._options.offset_spec for state in states}
        topic_ids: dict[str, set[UUID]] = {}
        for tp, (_, mark) in (await self._offsets.committed_with_topics(None)).items():
            if mark is not None:
                topic_ids.setdefault(tp.topic, set()).add(mark.topic_id)
                self._note_initial_partitions(tp.topic, mark)
        resets: dict[TopicPartition, int | None] = {}
        for tp, topic_id in ((state.tp, state.topic_id) for state in states):
            key = tp.topic, topic_id
            if tp.topic in self._later_topics:
                self._initial_partitions[key] = 0
            was_recreated = topic_id is not None and topic_ids.get(tp.topic, set()) - {topic_id}
            is_later = was_recreated or tp.partition >= self._initial_partitions.get(key, inf)
            resets[tp] = EARLIEST if is_later else LATEST
        return resets

    def _note_initial_partitions(self, topic: str, mark: TopicMark) -> None:
        if mark.initial_partitions is not None:
            key = topic, mark.topic_id
            known = self._initial_partitions.get(key, mark.initial_partitions)
            self._initial_partitions[key] = min(known, mark.initial_partitions)

    def _build_mark(self, state: PartitionState) -> TopicMark | None:
        key = state.tp.topic, state.topic_id
        topic = self._cluster.get_topic(state.tp.topic)
        if topic is not None and topic.topic_id == state.topic_id:
            self._initial_partitions.setdefault(key, len(topic.partitions))
        if state.topic_id is None:
            return None
        return TopicMark(state.topic_id, initial_partitions=self._initial_partitions.get(key))

    def _set_start(
        self,
        state: PartitionState,
        found: tuple[OffsetAndMetadata, TopicMark | None] | None,
        start: int | None,
    ) -> None:
        """Let a partition begin at its committed offset, if that is of the topic as it is now.

        While metadata does not know the topic, that is left to the fetcher, which reads nothing
        before: a partition of a topic that is unknown for good must not hold up the others here.
        `start` is for a partition without a committed offset.
        """
        was_recreated = state.tp in self._recreated
        self._recreated.discard(state.tp)
        committed, mark = found or (None, None)
        topic_id = mark and mark.topic_id
        if mark is not None:
            self._note_initial_partitions(state.tp.topic, mark)
        if topic_id is not None:
            was_recreated = state.topic_id not in (None, topic_id)
        if was_recreated:
            message = "group %s: %s was created again; it is read from its start"
            log.warning(message, self._group_name, state.tp)
            start = EARLIEST
        elif committed is not None:
            state.committed, state.is_starting = committed.offset, False
        if not _needs_position(state):
            return  # it was sought during the lookup
        if committed is not None and not was_recreated:
            state.seek(committed.offset, committed.epoch)
        else:
            self._prefetcher.reset_position(state, start)
            state.is_starting = state.is_starting and start is not None
        if state.topic_id is None:
            state.expected_topic_id = topic_id

    def _report_lookup_failure(self, failure: KafkaError) -> None:
        self._lookup_failure = failure
        self._prefetcher.wake()
        self._cluster.outages.report_error(self._lookup_label, failure, group=self._group_name)

    def _clear_lookup_failure(self, failure: KafkaError | None) -> None:
        if failure is not None and self._lookup_failure is failure:
            self._lookup_failure = None
            self._cluster.outages.report_recovery(self._lookup_label, "are known, or not needed")

    @property
    def _lookup_label(self) -> str:
        return f"committed offsets of group={self._group_name}"

    def _is_assigned(self, state: PartitionState) -> bool:
        return self._prefetcher.states.get(state.tp) is state

    def _needs_start(self, state: PartitionState) -> bool:
        return self._is_assigned(state) and (state.is_starting or _needs_position(state))

    def _is_missing(self, topic: str) -> bool:
        known = self._cluster.get_topic(topic)
        return known is not None and known.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # Metadata.

    async def _watch_pattern(self, member: GroupMember, pattern: re.Pattern[str]) -> None:
        former: frozenset[str] | None = None
        while True:
            try:
                matches = await self._cluster.match_topics(pattern)
            except KafkaError as exc:
                await asyncio.sleep(exc.retry_after or RETRY_DELAY_S)
                continue
            if matches is not former:
                topics = frozenset(filter(self._options.is_visible, matches))
                self._later_topics |= topics - (topics if former is None else former)
                former = matches
                member.subscribe(topics)
            await asyncio.sleep(PATTERN_INTERVAL_S)

    def _on_metadata_change(self, change: TopicChange) -> None:
        if change.is_deleted or change.is_recreated:
            self._later_topics.add(change.topic.name)
        if change.topic.name in self._prefetcher.topics:
            self._prefetcher.wake()


def _needs_position(state: PartitionState) -> bool:
    return state.position is None and state.offset_spec is None and not state.is_stopped
