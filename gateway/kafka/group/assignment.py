"""What a consumer owns, by its group's word or by hand, and from where it is read.

What goes acts on the intake at once: what is being revoked gives nothing more, what is lost is
dropped. The listener hears of it after that, one event after the other. What comes is held only
when its turn has come: a topic that was made anew has partitions of the same names, and an offset
of the former one must not be committed for the new one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from gateway.core.group.member import (
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
)
from gateway.core.group.partition_state import EARLIEST, LATEST, PartitionState
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.telemetry.log_context import create_detached_task

from .group_member import GroupMember, OwnershipChange
from .group_offsets import GroupOffsets
from .member_options import MemberOptions
from .prefetch_fetcher import PrefetchFetcher

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5  # seconds until what could not be asked is asked again
PATTERN_INTERVAL_S = 5.0  # seconds between looks for topics that a pattern matches


class RebalanceListener(Protocol):
    """Hears of what the member owns. Bounded by the rebalance timeout, each."""

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """They are read from now on; `seek` in here decides from where."""

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Still ours until this returns: the time to commit. `poll` returns no more of them."""

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        """Another's already, perhaps: nothing of them can be committed."""


class Assignment:
    """Of one consumer, until `close`. group may be empty: then nothing is committed."""

    def __init__(
        self, cluster: Cluster, group: str, options: MemberOptions, prefetcher: PrefetchFetcher
    ) -> None:
        self._refusal: KafkaError | None = None  # why its member is not let in
        self._lookup_failure: KafkaError | None = None  # why nothing is known of what is committed
        self._cluster = cluster
        self._group_name = group
        self._options = options
        self._prefetcher = prefetcher
        self._member: GroupMember | None = None
        self._offsets = GroupOffsets(cluster.coordinators, group)
        self._listener: RebalanceListener | None = None
        self._resolve_tasks: set[asyncio.Task[None]] = set()
        self._pattern_task: asyncio.Task[None] | None = None
        self._topics: set[str] = set()  # of partitions assigned by hand
        self._topic_ids: dict[TopicPartition, UUID] = {}  # of what was held last
        self._unlisten = cluster.metadata.add_listener(self._on_metadata_change)

    @property
    def state(self) -> MemberState:
        return self._member.state if self._member is not None else MemberState.RUNNING

    @property
    def failure(self) -> KafkaError | None:
        """Why the group cannot be used now, or ever."""
        return self._refusal or self._lookup_failure

    def subscribe(
        self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener | None
    ) -> None:
        if self._topics:
            raise ValueError("partitions are assigned by hand; take another consumer to subscribe")
        self._listener = listener
        group = self._member = self._member or self._create_member()
        if self._pattern_task is not None:
            self._pattern_task.cancel()
            self._pattern_task = None
        if isinstance(topics, re.Pattern):
            self._pattern_task = create_detached_task(self._watch_pattern(group, topics))
        else:
            group.subscribe(frozenset(topics))

    def assign(self, tps: Collection[TopicPartition]) -> None:
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
            [self._prefetcher.add_partition(tp) for tp in tps if tp not in self._prefetcher.states]
        )

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """See `Commits.commit`; `committed` of what is held is the new one then.

        What is lost while it is tried and held again is not committed: its topic may be another
        one of the same name by then.
        """
        held = {tp: one for tp in offsets if (one := self._prefetcher.states.get(tp)) is not None}
        ids = {tp.topic: one.topic_id for tp, one in held.items()}
        commits = self._offsets
        if (owned := commits.get_owned) is not None:
            commits = replace(
                commits,
                get_owned=lambda: {
                    tp for tp in owned() if self._prefetcher.states.get(tp) is held.get(tp)
                },
            )
        await commits.commit(offsets, ids.get)
        for tp, one in held.items():
            one.committed = offsets[tp].offset

    async def committed(
        self, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return await self._offsets.committed(tps)

    async def close(self, leave: bool) -> None:
        """The listener gives up all that is owned, then the group is left (or not)."""
        self._unlisten()
        tasks = [*self._resolve_tasks, *([self._pattern_task] if self._pattern_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._prefetcher.states.values():
            held.is_revoking = True
        self._prefetcher.wake()
        if self._member is not None:
            await self._revoke_all()
            await self._member.close(leave)
        for topic in self._topics:
            self._cluster.metadata.release_watch(topic)
        # What points back here: a thousand that were closed would stay 20 MB of cycles, for as
        # long as nothing else calls for a full collection.
        self._member, self._listener = None, None
        self._offsets = GroupOffsets(self._cluster.coordinators, self._group_name)

    def _create_member(self) -> GroupMember:
        group = GroupMember(
            self._cluster,
            self._group_name,
            self,
            self._options,
            rebalance_timeout=self._options.rebalance_timeout,
        )
        self._prefetcher.follows_recreated = False
        self._offsets = GroupOffsets(
            self._cluster.coordinators,
            self._group_name,
            lambda: group.identity,
            lambda: self._prefetcher.states.keys() & group.owned,
            group.heartbeat_soon,
        )
        return group

    async def _revoke_all(self) -> None:
        if self._listener is None or not self._prefetcher.states:
            return
        try:
            async with asyncio.timeout(self._options.rebalance_timeout):
                await self._listener.on_partitions_revoked(frozenset(self._prefetcher.states))
        except Exception:  # whatever a listener raises: the group is left
            log.exception("group %s: a listener failed at the end", self._group_name)

    # as the owner of a group's partitions

    def on_ownership_changed(self, event: OwnershipChange) -> None:
        """What goes is not read any more at once; what comes is held when its turn is followed."""
        for tp in event.tps:
            if isinstance(event, PartitionsLost):
                self._prefetcher.remove_partition(tp)
            elif (
                isinstance(event, PartitionsRevoked)
                and (held := self._prefetcher.states.get(tp)) is not None
            ):
                held.is_revoking = True
        self._prefetcher.wake()

    async def apply_ownership_change(self, event: OwnershipChange) -> None:
        """What a listener raises is the group's to log; it changes nothing of what is owned."""
        if isinstance(event, PartitionsLost):
            if self._listener is not None:
                await self._listener.on_partitions_lost(event.tps)
        elif isinstance(event, PartitionsAssigned):
            await self._accept_partitions(
                event.tps & self._member.owned if self._member is not None else event.tps
            )
        else:
            await self._revoke_partitions(event.tps)

    async def _accept_partitions(self, tps: frozenset[TopicPartition]) -> None:
        """Hold them, from now on: what the listener has to forget of an earlier time in which they
        were owned it has forgotten, and cannot commit."""
        taken = [self._prefetcher.add_partition(tp) for tp in tps]
        try:
            if self._listener is not None and tps:
                await self._listener.on_partitions_assigned(tps)
        finally:
            for held in taken:
                before = self._topic_ids.get(held.tp)
                if held.topic_id is not None:
                    self._topic_ids[held.tp] = held.topic_id
                if held.topic_id is not None and before not in (None, held.topic_id):
                    what = "group %s: %s was made anew; it is read from its start"
                    log.warning(what, self._group_name, held.tp)
                    held.reset(EARLIEST)
            self._start_resolving(taken)

    async def _revoke_partitions(self, tps: frozenset[TopicPartition]) -> None:
        some = [one for tp in tps if (one := self._prefetcher.states.get(tp)) is not None]
        for one in some:
            one.is_revoking = True
        try:
            if self._listener is not None:
                await self._listener.on_partitions_revoked(tps)
        finally:
            for one in some:
                if one.is_revoking and self._prefetcher.states.get(one.tp) is one:
                    self._prefetcher.remove_partition(one.tp)

    def on_group_failure(self, failure: KafkaError | None) -> None:
        self._refusal = failure
        if failure is not None:
            self._prefetcher.wake()

    # where to begin

    def _start_resolving(self, states: Collection[PartitionState]) -> None:
        if states:
            task = create_detached_task(self._resolve_positions(list(states)))
            self._resolve_tasks.add(task)
            task.add_done_callback(self._resolve_tasks.discard)

    async def _resolve_positions(self, states: list[PartitionState]) -> None:
        """From what is committed; until that is known, nothing is read."""
        told: KafkaError | None = None
        try:
            while states := [
                held for held in states if self._is_assigned(held) and _needs_position(held)
            ]:
                start = self._prefetcher.offset_reset
                try:
                    found = await self._fetch_committed([held.tp for held in states])
                    if start == LATEST and len(found) < len(states) and await self._has_committed():
                        start = EARLIEST  # what the group has not read yet is new to it
                except KafkaError as exc:
                    if not isinstance(exc, BrokerUnavailable):
                        self._report_lookup_failure(told := exc)
                    await asyncio.sleep(exc.retry_after or RETRY_DELAY_S)
                    continue
                self._clear_lookup_failure(told)
                for held in filter(_needs_position, states):
                    committed = found.get(held.tp)
                    if committed is None:
                        self._prefetcher.reset_position(held, start)
                    else:
                        held.seek(committed.offset, committed.epoch)
                        held.committed = committed.offset
                self._prefetcher.wake()
                # `latest` is the end as of now, not of the first poll.
                await self._prefetcher.wait_for_positions(states)
        finally:
            self._clear_lookup_failure(told)  # also where they were lost: nobody asks any more

    def _report_lookup_failure(self, failure: KafkaError) -> None:
        self._lookup_failure = failure
        self._prefetcher.wake()
        self._cluster.outages.report_error(self._lookup_label, failure, group=self._group_name)

    def _clear_lookup_failure(self, failure: KafkaError | None) -> None:
        """Take back what one lookup told, unless another one failed since."""
        if failure is not None and self._lookup_failure is failure:
            self._lookup_failure = None
            self._cluster.outages.report_recovery(self._lookup_label, "are known, or not needed")

    @property
    def _lookup_label(self) -> str:
        return f"committed offsets of group={self._group_name}"

    async def _fetch_committed(
        self, tps: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return await self._offsets.committed(tps) if self._group_name else {}

    async def _has_committed(self) -> bool:
        return bool(self._group_name and await self._offsets.committed(None))

    def _is_assigned(self, state: PartitionState) -> bool:
        return self._prefetcher.states.get(state.tp) is state

    # metadata

    async def _watch_pattern(self, member: GroupMember, pattern: re.Pattern[str]) -> None:
        """Kafka's own topics (`__...`) are matched by nothing."""
        while True:
            try:
                names = await self._cluster.list_topics()
            except KafkaError as exc:
                await asyncio.sleep(exc.retry_after or RETRY_DELAY_S)
                continue
            found = (name for name in names if pattern.fullmatch(name))
            member.subscribe(frozenset(name for name in found if not name.startswith("__")))
            await asyncio.sleep(PATTERN_INTERVAL_S)

    def _on_metadata_change(self, change: TopicChange) -> None:
        if any(tp.topic == change.topic.name for tp in self._prefetcher.states):
            self._prefetcher.wake()


def _needs_position(state: PartitionState) -> bool:
    return state.position is None and state.offset_spec is None and not state.is_stopped
