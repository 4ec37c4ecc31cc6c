"""Snapshots as clients are brought them: partition by partition, each as fast as it can be read.

What they are made of is shared: tables, and the question where partitions end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gateway.core.client.snapshot_blocks import Block, Blocks
from gateway.core.client.subscription import Subscription
from gateway.core.client.table_snapshot import Edition
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, TopicPartition
from gateway.errors import KafkaError
from gateway.telemetry.about import apart

from .stable_ends import StableEnds
from .tables import Tables

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub
    from gateway.hub.fanout.shared_tail import SharedTail

log = logging.getLogger(__name__)

BATCH = 128 * 1024  # bytes of records brought at once
LOOK_AGAIN = 1.0  # seconds
TABLES_SHARE = 4  # the part of `memory` that tables may take: one in so many


class Snapshots:
    """What the snapshots of one hub have in common."""

    def __init__(self, hub: Hub) -> None:
        self.tables = Tables(hub.feeds, hub.archive, hub.topics.settings, self._limit)
        self.ends = StableEnds(hub.cluster)
        self._hub = hub
        self._told: set[str] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def _limit(self) -> int:
        return self._hub.settings.memory // TABLES_SHARE // len(self._hub.beside)

    async def close(self) -> None:
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        await self.ends.close()

    def mind_policies(self, topics: Iterable[str]) -> None:
        """Say once of a topic that it is not compacted: what its retention takes is in no
        snapshot, and all of it is read for the first one."""
        for name in set(topics) - self._told:
            self._told.add(name)
            task = apart(self._mind_policy(name))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _mind_policy(self, topic: str) -> None:
        try:
            policy = await self._hub.cluster.cleanup_policy(topic)
        except KafkaError:
            return
        if policy is not None and "compact" not in policy:
            log.warning(
                "mode: snapshot is for compacted topics, and %s has cleanup.policy=%s: keys whose "
                "last record its retention has taken are in no snapshot; set it to compact, or "
                "use mode: live", topic, policy,
            )  # fmt: skip


class Brought:
    """What one client is brought. found: called when there may be something to take.

    patience: seconds after which partitions that cannot be read are not waited for.
    """

    __slots__ = ("_editions", "_found", "_hub", "_look", "_shared", "_subscription")

    def __init__(
        self,
        hub: Hub,
        shared: SharedTail,
        subscription: Subscription,
        found: Callable[[], None],
        patience: float,
    ) -> None:
        self._hub = hub
        self._shared = shared
        self._subscription = subscription
        self._found = found
        self._editions: dict[TopicPartition, Edition] = {}
        self._look = asyncio.get_running_loop().call_later(patience, self._mind_left)

    def close(self) -> None:
        self._look.cancel()

    async def bring(self, tp: TopicPartition, place: Place) -> None:
        """Find out where a partition ends, or what comes next of its table."""
        subscription, snapshots = self._subscription, self._hub.snapshots
        snapshot = subscription.snapshot
        assert snapshot is not None and place.offset is not None
        edition = self._editions.get(tp)
        if edition is None or edition.end.lineage != place.lineage:
            end = await snapshots.ends.of(tp)
            tables, filters = snapshots.tables, snapshot.filters
            edition = await tables.edition(tp, end, filters) if snapshot.is_fresh(tp) else None
            if edition is None:
                subscription.ends(tp, snapshot.ends.get(tp, end))
            else:
                self._editions[tp] = edition
                assert edition.end.offset is not None
                subscription.ends(tp, edition.end.offset)
        if edition is not None:
            subscription.bring(tp, place, self._pieces(edition, place.offset))
        elif snapshot.is_fresh(tp):
            end = snapshot.ends[tp]
            window = await snapshots.tables.window(tp, place, end, snapshot.filters)
            subscription.bring(tp, place, window)

    def _pieces(self, edition: Edition, offset: int) -> Iterable[Entry | Block]:
        """What all clients of its view are brought alike, unless this one wants a part only."""
        subscription = self._subscription
        snapshot = subscription.snapshot
        keyed = snapshot is not None and snapshot.filters.keys is not None
        if keyed or subscription.credit is not None or subscription.count is not None:
            return edition.read(offset, BATCH)
        block = Blocks.of(edition, subscription.channel).at(edition, offset)
        return () if block is None else (block,)

    def _mind_left(self) -> None:
        """Not to be waited for: partitions that have no leader, or one that does not answer."""
        snapshot, tail = self._subscription.snapshot, self._shared.tail
        if snapshot is None or snapshot.told:
            return
        self._hub.feeds.refresh_readiness(self._shared)
        unread = {*tail.readiness.pending(), *(snapshot.left - tail.logs.keys())}
        if snapshot.left <= unread:
            snapshot.overdue = True
            self._found()
        else:
            self._look = asyncio.get_running_loop().call_later(LOOK_AGAIN, self._mind_left)
