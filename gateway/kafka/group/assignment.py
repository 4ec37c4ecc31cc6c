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

from gateway.core.group.member import Assigned, Lost, Revoking, State
from gateway.core.group.partition_state import EARLIEST, LATEST, Held
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.metadata_changes import Change
from gateway.kafka.protocol.group_messages import Committed
from gateway.telemetry.about import apart

from .commits import Commits
from .group_member import Group, Ownership
from .prefetch import Intake
from .protocols import Protocols

log = logging.getLogger(__name__)

AGAIN = 0.5  # seconds until what could not be asked is asked again
PATTERN = 5.0  # seconds between looks for topics that a pattern matches


class Listener(Protocol):
    """Hears of what the member owns. Bounded by the rebalance timeout, each."""

    async def assigned(self, tps: frozenset[TopicPartition]) -> None:
        """They are read from now on; `seek` in here decides from where."""

    async def revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Still ours until this returns: the time to commit. `poll` returns no more of them."""

    async def lost(self, tps: frozenset[TopicPartition]) -> None:
        """Another's already, perhaps: nothing of them can be committed."""


class Tenure:
    """Of one consumer, until `close`. group may be empty: then nothing is committed."""

    def __init__(self, cluster: Cluster, group: str, protocols: Protocols, intake: Intake) -> None:
        self._refusal: KafkaError | None = None  # why its member is not let in
        self._lookup_failure: KafkaError | None = None  # why nothing is known of what is committed
        self._cluster = cluster
        self._name = group
        self._protocols = protocols
        self._intake = intake
        self._group: Group | None = None
        self._commits = Commits(cluster.coordinators, group)
        self._listener: Listener | None = None
        self._resolving: set[asyncio.Task[None]] = set()
        self._matching: asyncio.Task[None] | None = None
        self._topics: set[str] = set()  # of partitions assigned by hand
        self._topic_ids: dict[TopicPartition, UUID] = {}  # of what was held last
        self._unlisten = cluster.metadata.listen(self._changed)

    @property
    def state(self) -> State:
        return self._group.state if self._group is not None else State.RUNNING

    @property
    def failure(self) -> KafkaError | None:
        """Why the group cannot be used now, or ever."""
        return self._refusal or self._lookup_failure

    def join(self, topics: Collection[str] | re.Pattern[str], listener: Listener | None) -> None:
        if self._topics:
            raise ValueError("partitions are assigned by hand; take another consumer to subscribe")
        self._listener = listener
        group = self._group = self._group or self._membership()
        if self._matching is not None:
            self._matching.cancel()
            self._matching = None
        if isinstance(topics, re.Pattern):
            self._matching = apart(self._match(group, topics))
        else:
            group.subscribe(frozenset(topics))

    def assign(self, tps: Collection[TopicPartition]) -> None:
        if self._group is not None:
            raise ValueError("it is a group's member; take another consumer to assign by hand")
        for tp in self._intake.held.keys() - set(tps):
            self._intake.drop(tp)
        topics = {tp.topic for tp in tps}
        for topic in topics - self._topics:
            self._cluster.metadata.keep(topic)
        for topic in self._topics - topics:
            self._cluster.metadata.let_go(topic)
        self._topics = topics
        self._begin([self._intake.hold(tp) for tp in tps if tp not in self._intake.held])

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """See `Commits.commit`; `committed` of what is held is the new one then.

        What is lost while it is tried and held again is not committed: its topic may be another
        one of the same name by then.
        """
        held = {tp: one for tp in offsets if (one := self._intake.held.get(tp)) is not None}
        ids = {tp.topic: one.topic_id for tp, one in held.items()}
        commits = self._commits
        if (owned := commits.owned) is not None:
            commits = replace(
                commits,
                owned=lambda: {tp for tp in owned() if self._intake.held.get(tp) is held.get(tp)},
            )
        await commits.commit(offsets, ids.get)
        for tp, one in held.items():
            one.committed = offsets[tp].offset

    async def committed(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        return await self._commits.committed(tps)

    async def close(self, leave: bool) -> None:
        """The listener gives up all that is owned, then the group is left (or not)."""
        self._unlisten()
        tasks = [*self._resolving, *([self._matching] if self._matching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._intake.held.values():
            held.giving_up = True
        self._intake.wake()
        if self._group is not None:
            await self._farewell()
            await self._group.close(leave)
        for topic in self._topics:
            self._cluster.metadata.let_go(topic)
        # What points back here: a thousand that were closed would stay 20 MB of cycles, for as
        # long as nothing else calls for a full collection.
        self._group, self._listener = None, None
        self._commits = Commits(self._cluster.coordinators, self._name)

    def _membership(self) -> Group:
        group = Group(
            self._cluster,
            self._name,
            self,
            self._protocols,
            rebalance_timeout=self._protocols.rebalance_timeout,
        )
        self._intake.follows = False
        self._commits = Commits(
            self._cluster.coordinators,
            self._name,
            lambda: group.identity,
            lambda: self._intake.held.keys() & group.owned,
            group.hurry,
        )
        return group

    async def _farewell(self) -> None:
        if self._listener is None or not self._intake.held:
            return
        try:
            async with asyncio.timeout(self._protocols.rebalance_timeout):
                await self._listener.revoked(frozenset(self._intake.held))
        except Exception:  # whatever a listener raises: the group is left
            log.exception("group %s: a listener failed at the end", self._name)

    # as the owner of a group's partitions

    def owns(self, event: Ownership) -> None:
        """What goes is not read any more at once; what comes is held when its turn is followed."""
        for tp in event.tps:
            if isinstance(event, Lost):
                self._intake.drop(tp)
            elif isinstance(event, Revoking) and (held := self._intake.held.get(tp)) is not None:
                held.giving_up = True
        self._intake.wake()

    async def follow(self, event: Ownership) -> None:
        """What a listener raises is the group's to log; it changes nothing of what is owned."""
        if isinstance(event, Lost):
            if self._listener is not None:
                await self._listener.lost(event.tps)
        elif isinstance(event, Assigned):
            await self._take(
                event.tps & self._group.owned if self._group is not None else event.tps
            )
        else:
            await self._give_up(event.tps)

    async def _take(self, tps: frozenset[TopicPartition]) -> None:
        """Hold them, from now on: what the listener has to forget of an earlier time in which they
        were owned it has forgotten, and cannot commit."""
        taken = [self._intake.hold(tp) for tp in tps]
        try:
            if self._listener is not None and tps:
                await self._listener.assigned(tps)
        finally:
            for held in taken:
                before = self._topic_ids.get(held.tp)
                if held.topic_id is not None:
                    self._topic_ids[held.tp] = held.topic_id
                if held.topic_id is not None and before not in (None, held.topic_id):
                    what = "group %s: %s was made anew; it is read from its start"
                    log.warning(what, self._name, held.tp)
                    held.reset(EARLIEST)
            self._begin(taken)

    async def _give_up(self, tps: frozenset[TopicPartition]) -> None:
        some = [one for tp in tps if (one := self._intake.held.get(tp)) is not None]
        for one in some:
            one.giving_up = True
        try:
            if self._listener is not None:
                await self._listener.revoked(tps)
        finally:
            for one in some:
                if one.giving_up and self._intake.held.get(one.tp) is one:
                    self._intake.drop(one.tp)

    def failed(self, failure: KafkaError | None) -> None:
        self._refusal = failure
        if failure is not None:
            self._intake.wake()

    # where to begin

    def _begin(self, some: Collection[Held]) -> None:
        if some:
            task = apart(self._resolve(list(some)))
            self._resolving.add(task)
            task.add_done_callback(self._resolving.discard)

    async def _resolve(self, some: list[Held]) -> None:
        """From what is committed; until that is known, nothing is read."""
        told: KafkaError | None = None
        try:
            while some := [held for held in some if self._is_held(held) and _unplaced(held)]:
                start = self._intake.reset
                try:
                    found = await self._found([held.tp for held in some])
                    if start == LATEST and len(found) < len(some) and await self._has_committed():
                        start = EARLIEST  # what the group has not read yet is new to it
                except KafkaError as exc:
                    if not isinstance(exc, BrokerUnavailable):
                        self._fail_lookup(told := exc)
                    await asyncio.sleep(exc.retry_after or AGAIN)
                    continue
                self._recover_lookup(told)
                for held in filter(_unplaced, some):
                    committed = found.get(held.tp)
                    if committed is None:
                        self._intake.nowhere(held, start)
                    else:
                        held.seek(committed.offset, committed.epoch)
                        held.committed = committed.offset
                self._intake.wake()
                # `latest` is the end as of now, not of the first poll.
                await self._intake.located(some)
        finally:
            self._recover_lookup(told)  # also where they were lost: nobody asks any more

    def _fail_lookup(self, failure: KafkaError) -> None:
        self._lookup_failure = failure
        self._intake.wake()
        self._cluster.outages.fail_with(self._lookup_label, failure, group=self._name)

    def _recover_lookup(self, told: KafkaError | None) -> None:
        """Take back what one lookup told, unless another one failed since."""
        if told is not None and self._lookup_failure is told:
            self._lookup_failure = None
            self._cluster.outages.recover(self._lookup_label, "are known, or not needed")

    @property
    def _lookup_label(self) -> str:
        return f"committed offsets of group={self._name}"

    async def _found(self, tps: list[TopicPartition]) -> dict[TopicPartition, Committed]:
        return await self._commits.committed(tps) if self._name else {}

    async def _has_committed(self) -> bool:
        return bool(self._name and await self._commits.committed(None))

    def _is_held(self, held: Held) -> bool:
        return self._intake.held.get(held.tp) is held

    # metadata

    async def _match(self, group: Group, pattern: re.Pattern[str]) -> None:
        """Kafka's own topics (`__...`) are matched by nothing."""
        while True:
            try:
                names = await self._cluster.topics()
            except KafkaError as exc:
                await asyncio.sleep(exc.retry_after or AGAIN)
                continue
            found = (name for name in names if pattern.fullmatch(name))
            group.subscribe(frozenset(name for name in found if not name.startswith("__")))
            await asyncio.sleep(PATTERN)

    def _changed(self, change: Change) -> None:
        if any(tp.topic == change.topic.name for tp in self._intake.held):
            self._intake.wake()


def _unplaced(held: Held) -> bool:
    return held.position is None and held.spec is None and not held.stopped
