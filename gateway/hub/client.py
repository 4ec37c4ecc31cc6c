"""One client: the asyncio side of a subscription.

An async iterator of bytes. It sends what there is to take, and sees to what the
subscription lacks, in the background, partition by partition: a frozen one delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.position import NO_EPOCH, RETIRED, UNVERIFIED, Place
from ..core.reading import LATEST, Live, Since
from ..core.record import Gap, Reason, TopicPartition
from ..core.subscription import Subscription
from ..core.token import Token
from ..errors import KafkaError
from ..kafka import offsets
from . import resume
from .shared import SharedTail
from .wire import Wire

if TYPE_CHECKING:
    from .hub import Hub

log = logging.getLogger(__name__)

BUDGET = 64 * 1024  # bytes taken at once
SOON = 0.1  # seconds for which BEGIN waits for partitions that answer with the first one
VERIFY_AGAIN = 0.05  # seconds


class Client:
    """See the module.

    token:    what it resumes from.
    since:    where it begins in the partitions that are pending in no token.
    refused:  it came with a token that could not be used; told as a gap.
    """

    def __init__(
        self,
        hub: Hub,
        shared: SharedTail,
        subscription: Subscription,
        wire: Wire,
        *,
        heartbeat: float,
        deadline: float,
        lifetime: float | None = None,
        token: Token | None = None,
        since: Since | None = None,
        refused: bool = False,
    ) -> None:
        self.subscription = subscription
        self._wire = wire
        self._hub = hub
        self._shared = shared
        self._heartbeat = heartbeat
        self._deadline = deadline
        self._lifetime = lifetime
        self._token = token
        self._since = since
        self._refused = refused
        self._ids = dict(shared.tail.ids)
        self._woken = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None  # what `ready` waits for
        self._rang = False
        self._ends = 0.0
        self._ended = False
        self._work: dict[TopicPartition, asyncio.Task[None]] = {}
        self._reads: set[TopicPartition] = set()
        subscription.wake = self._woken.set

    async def ready(self) -> None:
        """Return when BEGIN is due: with the first ready partition, when time is up, or when the
        stream was told to end."""
        loop = asyncio.get_running_loop()
        tail = self._shared.tail
        self._hub.feeds.refresh_readiness(self._shared)
        while not (self.subscription.ended or self._begins(loop.time())):
            changed = self._changed = loop.create_future()
            self._shared.changed.add(changed)
            try:
                begun = tail.readiness.begins(self._deadline, loop.time())
                async with asyncio.timeout(SOON) if begun else asyncio.timeout_at(self._deadline):
                    await changed
            except TimeoutError:
                pass
            finally:
                self._shared.changed.discard(changed)

    def _begins(self, now: float) -> bool:
        """Those that were asked for their end just now are waited for a moment: found after
        BEGIN, they would have to start by time, with older records."""
        due = self._shared.tail.readiness.begins(self._deadline, now)
        return due and not self._hub.feeds.resolving(self._shared, now - SOON)

    async def stream(self) -> AsyncIterator[bytes]:
        """Everything the client is sent, from the first block to `end`."""
        try:
            yield self.begin()
            while (data := await self.next()) is not None:
                yield data
        finally:
            self.close()

    def begin(self) -> bytes:
        """The first block; to be taken once, before anything that follows."""
        self._ends = asyncio.get_running_loop().time() + (self._lifetime or 1e9)
        self._see_to_lacks()
        self._hub.feeds.refresh_readiness(self._shared)
        pending, token = self.subscription.begin()
        self._hub.feeds.promise(pending)
        return self._wire.begin(self._told(pending), token, refused=self._refused)

    async def next(self) -> bytes | None:
        """What comes next: data, a heartbeat, at last `end`; then None. It may be cancelled and
        called again: nothing is taken before there is something."""
        subscription = self.subscription
        while not self._ended:
            self._woken.clear()
            self._retire()
            data = subscription.take(BUDGET)
            self._see_to_lacks()
            if data:
                return data
            elif subscription.ended:
                self._ended = True
                return self._wire.end(subscription.ended, subscription.position)
            elif subscription.more:
                await asyncio.sleep(0)
            elif asyncio.get_running_loop().time() >= self._ends:
                subscription.ended = "lifetime"
            elif not await self._wait(self._ends):
                return self._wire.heartbeat()
        return None

    def grant(self, records: int) -> None:
        """Let so many more be sent, to a client that asked for a limit."""
        if self.subscription.credit is not None:
            self.subscription.credit += records
            self._woken.set()

    def end(self, reason: str) -> None:
        """End the stream with an `end` event."""
        self.subscription.ended = self.subscription.ended or reason
        self._woken.set()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def close(self) -> None:
        self._hub.leave(self)
        self.subscription.close()
        for task in self._work.values():
            task.cancel()

    async def _wait(self, ends: float) -> bool:
        """Until there is something to send; False if it is time for a heartbeat."""
        loop = asyncio.get_running_loop()
        # A timer of the loop: 3.7 us a wait, 6.5 us with asyncio.timeout; each delivery waits once.
        alarm = loop.call_at(min(loop.time() + self._heartbeat, ends), self._ring)
        self._rang = False
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()
        return not self._rang or loop.time() >= ends

    def _ring(self) -> None:
        self._rang = True
        self._woken.set()

    def _told(self, pending: Sequence[TopicPartition]) -> dict[str, Any]:
        """What BEGIN says."""
        tail = self._shared.tail
        data: dict[str, Any] = {
            "topics": list(tail.ids),
            "partitions": resume.named(tail.logs),
            "pending": [{"topic": tp.topic, "partition": tp.partition} for tp in pending],
            "resume": "exact" if tail.exact else "batch",
        }
        if self._token is not None and self._token.view != self.subscription.channel.view:
            data["view"] = "changed"
        return data

    # what the subscription lacks

    def _see_to_lacks(self) -> None:
        subscription = self.subscription
        if not subscription.own or subscription.ended:
            return
        self._retire()
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

    def _retire(self) -> None:
        """A topic was created anew while places of it had not been held against the log yet."""
        ids = self._shared.tail.ids
        if self._ids == ids:
            return
        for tp, place in list(self.subscription.own.items()):
            known = self._ids[tp.topic]
            if place.lineage == UNVERIFIED and known not in ("", ids[tp.topic]):
                self.subscription.retire(tp)
        self._ids = dict(ids)

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
            self.subscription.ended = "error"
        self._woken.set()

    async def _fetch(self, tp: TopicPartition, place: Place) -> None:
        self.subscription.feed(tp, place, await self._hub.archive.read(tp, place))

    async def _verify(self, tp: TopicPartition, place: Place) -> None:
        """Hold a token's place against the log: resolve it, or see whether it was cut off.

        Not before the shared read stands on the log of the present leader: metadata here may
        be of a log that is no more, and epochs are asked for by the topic's name.
        """
        reading, ids = self._hub.feeds.by_partition[tp].reading, self._ids
        if place.offset is None and place.epoch != RETIRED:
            await self._resolve(tp, place, reading.lineage)
            return
        while not reading.stands_on(NO_EPOCH if place.epoch == RETIRED else place.epoch):
            await asyncio.sleep(VERIFY_AGAIN)
            if self._shared.tail.ids != ids:
                return
        lineage, epoch, offset = reading.lineage, reading.leader_epoch, place.offset or 0
        if place.epoch == RETIRED:
            pending = place.offset is None
            gap = None if pending else Gap(tp, offset, 0, NO_EPOCH, Reason.RECREATED)
            self.subscription.verified(tp, Place(0, NO_EPOCH, lineage), gap)
            return
        end = await self._end_of(tp, place, offset)
        if self._shared.tail.ids != ids:
            return  # of which topic was that the end?
        if end >= offset:
            # of the present epoch from now on: what was held against it need not be again
            present = Place(offset, epoch, lineage)
            self.subscription.verified(tp, present, self._compacted(tp, place))
        else:
            gap = Gap(tp, offset, end, NO_EPOCH, Reason.TRUNCATED)
            self.subscription.verified(tp, Place(end, NO_EPOCH, lineage), gap)

    async def _resolve(self, tp: TopicPartition, place: Place, lineage: int) -> None:
        found = await self._hub.archive.resolve(tp, self._since or self._live(tp, place.epoch))
        self.subscription.verified(tp, found._replace(lineage=lineage))

    def _live(self, tp: TopicPartition, epoch: int) -> Live:
        """The connect that a token of old tells of."""
        since = self.subscription.since
        return Live(
            since=(int(time.time()) if since is None else since) * 1000,
            born=0.0,  # long ago: an end asked for now is not the end then
            epoch=epoch,
            leaderless=epoch != NO_EPOCH,
            skew=int(self._hub.topics.settings(tp.topic).clock_skew * 1000),
        )

    def _compacted(self, tp: TopicPartition, place: Place) -> Gap | None:
        """Away for longer than tombstones are kept: what was deleted meanwhile is not told."""
        kept, token = self._hub.topics.tombstones.get(tp.topic), self._token
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
