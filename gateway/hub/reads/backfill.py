"""What one client's own partitions lack, sought in the background: partition by partition, so
that a frozen one delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_reader import EARLIEST, LATEST, Live, Since, Start
from gateway.core.log.position import NO_EPOCH, RETIRED, UNVERIFIED, Place
from gateway.core.log.record import Gap, Reason, TopicPartition
from gateway.core.token.resume_token import Token
from gateway.errors import KafkaError
from gateway.kafka.client import offsets

from .snapshots import Brought

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub
    from gateway.hub.fanout.shared_tail import SharedTail

log = logging.getLogger(__name__)

VERIFY_AGAIN = 0.05  # seconds


class Lacks:
    """See the module.

    token: what the client resumes from.
    since: where it begins in the partitions that are pending in no token.
    found: called when there may be something to take.
    """

    __slots__ = (
        "_brought", "_found", "_hub", "_known", "_reads", "_shared", "_subscription", "_unknown",
        "_work", "ids", "since", "token",
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        shared: SharedTail,
        subscription: Subscription,
        found: Callable[[], None],
        *,
        token: Token | None = None,
        since: Since | None = None,
    ) -> None:
        self._hub = hub
        self._shared = shared
        self._subscription = subscription
        self._found = found
        self.token = token
        self.since = since
        self.ids: Mapping[str, str] = dict(shared.tail.ids)
        self._brought: Brought | None = None
        self._known = len(shared.tail.logs)
        told = {} if token is None else token.among(shared.tail.ids)
        self._unknown = told.keys() - {tp.topic for tp in shared.tail.logs}
        self._work: dict[TopicPartition, asyncio.Task[None]] = {}
        self._reads: set[TopicPartition] = set()

    def close(self) -> None:
        if self._brought is not None:
            self._brought.close()
        for task in self._work.values():
            task.cancel()

    def seek(self) -> None:
        """See to what is lacking now."""
        subscription = self._subscription
        if not subscription.own or subscription.ended:
            return
        self.retire()
        for tp, place in subscription.unverified():
            self._do(tp, self._verify(tp, place))
        lacks = dict(subscription.lacks())
        for tp, place in lacks.items():
            self._do(tp, self._fetch(tp, place))
            self._reads.add(tp)
        if not subscription.backlog:
            self._let_go(self._reads - lacks.keys())

    def _let_go(self, tps: Iterable[TopicPartition]) -> None:
        """Reads whose place is in a log by now, or of one that is no more: what they wait for
        may never come."""
        for tp in tps:
            self._work[tp].cancel()

    def retire(self) -> None:
        """A topic was created anew while places of it had not been held against the log yet; or it
        is known only now."""
        if self._unknown and len(self._shared.tail.logs) != self._known:
            self._learn()
        ids = self._shared.tail.ids
        if self.ids == ids:
            return
        for tp, place in list(self._subscription.own.items()):
            known = self.ids[tp.topic]
            if place.lineage == UNVERIFIED and known not in ("", ids[tp.topic]):
                self._subscription.retire(tp)
        self.ids = dict(ids)

    def _learn(self) -> None:
        """Partitions that the token does not speak of came into being after it. Where all of the
        topic was unknown the shared read begins at their ends, and the client before that."""
        tail, subscription = self._shared.tail, self._subscription
        self._known = len(tail.logs)
        told = {} if self.token is None else self.token.among(tail.ids)
        for tp in [tp for tp in tail.logs if tp.topic in self._unknown]:
            if tp not in subscription.own:
                subscription.part({tp: Place(0, NO_EPOCH, UNVERIFIED)})
            if not told[tp.topic].is_topic(tail.ids[tp.topic]):
                subscription.retire(tp)
        self._unknown = self._unknown - {tp.topic for tp in tail.logs}

    def _do(self, tp: TopicPartition, work: Coroutine[Any, Any, None]) -> None:
        if tp in self._work:
            work.close()
            return
        task = self._work[tp] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._did(tp, done))

    def _did(self, tp: TopicPartition, done: asyncio.Task[None]) -> None:
        self._work.pop(tp, None)
        self._reads.discard(tp)
        if not done.cancelled() and done.exception() is not None:
            log.error("catching up on %s failed", tp, exc_info=done.exception())
            self._subscription.ended = "error"
        self._found()

    async def _fetch(self, tp: TopicPartition, place: Place) -> None:
        snapshot = self._subscription.snapshot
        if snapshot is not None and snapshot.seeks(tp):
            await self._bring(tp, place)
            return
        self._subscription.feed(tp, place, await self._hub.archive.read(tp, place))

    async def _bring(self, tp: TopicPartition, place: Place) -> None:
        """What it lacks for its snapshot."""
        if self._brought is None:
            topics = (self._hub.topics.settings(name) for name in self._shared.tail.ids)
            self._brought = Brought(
                self._hub,
                self._shared,
                self._subscription,
                self._found,
                max(topic.partition_ready_timeout for topic in topics),
            )
        await self._brought.bring(tp, place)

    async def _verify(self, tp: TopicPartition, place: Place) -> None:
        """Hold a token's place against the log: resolve it, or see whether it was cut off.

        Not before the shared read stands on the log of the present leader: metadata here may
        be of a log that is no more, and epochs are asked for by the topic's name.
        """
        reading, ids = self._hub.feeds.by_partition[tp].reading, self.ids
        if place.offset is None and place.epoch != RETIRED:
            await self._resolve(tp, place, reading.lineage)
            return
        while not reading.stands_on(NO_EPOCH if place.epoch == RETIRED else place.epoch):
            await asyncio.sleep(VERIFY_AGAIN)
            if self._shared.tail.ids != ids:
                return
        lineage, epoch, offset = reading.lineage, reading.leader_epoch, place.offset or 0
        if place.epoch == RETIRED:
            first = await self._oldest(tp, 0)
            pending = place.offset is None
            gap = None if pending else Gap(tp, offset, first, NO_EPOCH, Reason.RECREATED)
            self._subscription.verified(tp, Place(first, NO_EPOCH, lineage), gap)
            return
        end = await self._end_of(tp, place, offset)
        shown = await self._oldest(tp, min(end, offset))
        if self._shared.tail.ids != ids:
            return  # of which topic was that the end?
        if shown == offset:
            # of the present epoch from now on: what was held against it need not be again
            present = Place(offset, epoch, lineage)
            self._subscription.verified(tp, present, self._compacted(tp, place))
        else:
            reason = Reason.TRUNCATED if end < offset else Reason.POSITION_REFUSED
            gap = Gap(tp, offset, shown, NO_EPOCH, reason)
            self._subscription.verified(tp, Place(shown, NO_EPOCH, lineage), gap)

    async def _oldest(self, tp: TopicPartition, start: int) -> int:
        """A place that goes back, or could not be looked at before, goes back no further than the
        client's route."""
        return await self._hub.resumption.oldest(self.token, self._shared.tail, tp, start)

    async def _resolve(self, tp: TopicPartition, place: Place, lineage: int) -> None:
        snapshot = self._subscription.snapshot
        start: Start = self.since or self._live(tp, place.epoch)
        if snapshot is not None and tp in snapshot.fresh:
            start = Since(EARLIEST)
        found = await self._hub.archive.resolve(tp, start)
        first = await self._oldest(tp, found.offset or 0)
        if first != found.offset:
            found = Place(first)
        self._subscription.verified(tp, found._replace(lineage=lineage))

    def _live(self, tp: TopicPartition, epoch: int) -> Live:
        """The connect that a token of old tells of."""
        since = self._subscription.since
        return Live(
            since=(int(time.time()) if since is None else since) * 1000,
            born=0.0,  # long ago: an end asked for now is not the end then
            epoch=epoch,
            leaderless=epoch != NO_EPOCH,
            skew=int(self._hub.topics.settings(tp.topic).clock_skew * 1000),
        )

    def _compacted(self, tp: TopicPartition, place: Place) -> Gap | None:
        """Away for longer than tombstones are kept: what was deleted meanwhile is not told."""
        kept, token = self._hub.topics.tombstones.get(tp.topic), self.token
        end = self._shared.tail.logs[tp].next
        if kept is None or token is None or place.offset is None or end is None:
            return None
        if not token.issued or time.time() - token.issued <= kept or place.offset >= end:
            return None
        return Gap(tp, place.offset, end, place.epoch, Reason.COMPACTED)

    async def _end_of(self, tp: TopicPartition, place: Place, offset: int) -> int:
        """Where the log ends, or ended at the place's epoch; no less than `offset` if known so."""
        held, cluster = self._shared.tail.logs[tp], self._hub.cluster
        while True:
            leader = cluster.leader(tp)
            current = leader is not None and place.epoch in (NO_EPOCH, leader[1])
            if current and held.next is not None and offset <= held.next:
                return offset
            answer = await self._ask_end(tp, place)
            if answer is not None:
                return answer
            await asyncio.sleep(VERIFY_AGAIN)

    async def _ask_end(self, tp: TopicPartition, place: Place) -> int | None:
        cluster = self._hub.cluster
        try:
            if place.epoch != NO_EPOCH:
                ended = await self._hub.epochs.end(tp, place.epoch)
                if isinstance(ended, offsets.EpochEnd) and ended.end_offset >= 0:
                    return ended.end_offset
                if isinstance(ended, int):
                    return None
            listed = (await cluster.list_offsets({tp: LATEST}, offsets.READ_UNCOMMITTED))[tp]
        except KafkaError:
            return None
        return listed.offset if isinstance(listed, offsets.Offset) else None
