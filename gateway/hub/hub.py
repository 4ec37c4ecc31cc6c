"""Where clients and partitions meet: tails by topic set, channels by view."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..config import Settings, Topic
from ..core.channel import Channel
from ..core.log import Log
from ..core.position import NO_EPOCH, UNVERIFIED, Place, Position
from ..core.reading import LATEST, Since
from ..core.record import TopicPartition
from ..core.recovery import Cause
from ..core.subscription import SlowClient, Subscription
from ..core.tail import Tail
from ..core.token import Token
from ..errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic
from ..formats import format_for
from ..kafka import offsets
from ..kafka.cluster import Cluster
from ..kafka.connections import Role
from ..kafka.fetch_messages import Want
from . import resume
from .archive import Archive
from .client import Client
from .encoder import SseEncoder
from .feeds import Feeds, SharedTail
from .resume import Start
from .view import View

log = logging.getLogger(__name__)

LINGER = 60.0  # seconds that a topic is read after its last client left
SWEEP = 0.25
OTHERS = 0.25  # seconds for which a start by time waits for more partitions than the first
PROBE = 1.0  # seconds to wait for a broker's word on access
LONG_ID = 6 * 1024  # characters; the headers of a proxy end at 8 KB where nobody raised it
DENIED = 29
_NOWHERE = 1 << 62  # an offset no log has: the answer carries an error, never records


class Hub:
    """All streams of one cluster. `start` and `close` it in the loop."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.clients: set[Client] = set()
        self.draining = False
        self.tombstones: dict[str, float | None] = {}
        self._topics: dict[str, Topic] = {topic.name: topic for topic in settings.kafka.topics}
        self._tails: dict[tuple[str, ...], SharedTail] = {}
        self._long: set[tuple[str, ...]] = set()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._held: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self.feeds: Feeds
        self.archive: Archive

    async def start(self) -> None:
        self.feeds = Feeds(self.cluster, self.topic)
        self.archive = Archive(self.cluster, self.topic)
        self._tasks = [asyncio.create_task(self._sweep_forever())]
        for name in self.settings.kafka.bootstrap:
            self._tasks.append(asyncio.create_task(self._warm(name)))

    async def close(self) -> None:
        for client in list(self.clients):
            client.close()
        for task in [*self._tasks, *self._opening.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._opening.values(), return_exceptions=True)
        await self.archive.close()
        await self.feeds.close()

    def topic(self, name: str) -> Topic:
        return self._topics.get(name) or Topic(name=name)

    def drain(self, reason: str = "drain") -> None:
        """End all streams; their clients come back, spread over some seconds."""
        self.draining = True
        for client in list(self.clients):
            client.end(reason)

    def leave(self, client: Client) -> None:
        self.clients.discard(client)

    def cold(self) -> list[str]:
        """The bootstrap topics of which not every partition has been read yet."""
        return [name for name in self.settings.kafka.bootstrap if not self._is_warm(name)]

    async def subscribe(
        self,
        view: View,
        start: Start,
        *,
        heartbeat: float,
        slow: SlowClient,
        lifetime: float | None = None,
        refused: bool = False,
    ) -> Client:
        """A client of a view; await its `ready`, then iterate its `stream`.

        refused: it came with a token that could not be read.
        Raises UnknownTopic, AccessDenied, BrokerUnavailable, AuthenticationFailed, TokenForeign.
        """
        deadline = asyncio.get_running_loop().time() + self._patience(view)
        with self._holding(view.topics):
            await self._open_by(deadline, view.topics, known=start.token is not None)
            if start.token is not None:
                resume.check(start.token, self.cluster.id or "", view.topics)
            shared = self._tail(view.topics, start.token)
        channel = self._channel(shared, view)
        subscription = await self._subscribe(shared, channel, start, slow, deadline)
        client = Client(
            self,
            shared,
            subscription,
            heartbeat=heartbeat,
            deadline=deadline,
            lifetime=lifetime,
            refused=refused,
            token=start.token,
            since=start.since,
        )
        self.clients.add(client)
        return client

    # topics

    def _patience(self, view: View) -> float:
        return max(self.topic(name).partition_ready_timeout for name in view.topics)

    @contextlib.contextmanager
    def _holding(self, topics: Iterable[str]) -> Iterator[None]:
        """Nobody looks at a topic while another of the same view is being opened: the sweep
        must not take it for one that is left."""
        self._held.update(topics)
        try:
            yield
        finally:
            self._held.subtract(topics)

    async def _open_by(self, deadline: float, topics: Iterable[str], *, known: bool) -> None:
        """A client is not kept waiting for brokers that do not answer, only for partitions."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._open_all(topics, known=known)
        except TimeoutError:
            why = self.cluster.error or "no broker answered in time"
            raise BrokerUnavailable(f"{why}; try again", retry_after=1.0) from None

    async def _open_all(self, topics: Iterable[str], *, known: bool) -> None:
        for name in topics:
            try:
                await self._open(name)
            except UnknownTopic:
                if not known:
                    raise
                self.cluster.metadata.watch(name)

    async def _open(self, name: str) -> None:
        """Watch a topic and read all of its partitions; once for all who ask."""
        if self.cluster.topic(name) is not None and self._is_open(name):
            await self._check_known(name)
            return
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.create_task(self._open_topic(name))
            opening.add_done_callback(lambda done: self._opened(name, done))
        await asyncio.shield(opening)

    def _opened(self, name: str, done: asyncio.Task[None]) -> None:
        self._opening.pop(name, None)
        if not done.cancelled():
            done.exception()

    def _is_open(self, name: str) -> bool:
        return any(tp.topic == name for tp in self.feeds.by_partition)

    async def _check_known(self, name: str) -> None:
        """A topic that is being read may have been deleted or forbidden since."""
        known = self.cluster.topic(name)
        if known is not None and known.error not in (0, DENIED):
            await self.cluster.describe(name)
        feeds = [feed for tp, feed in self.feeds.by_partition.items() if tp.topic == name]
        denied = all(feed.reading.cause is Cause.DENIED for feed in feeds)
        if denied or (known is not None and known.error == DENIED):
            raise AccessDenied(
                f"the gateway may not read {name}; allow it DESCRIBE and READ", topic=name
            )

    async def _open_topic(self, name: str) -> None:
        self.cluster.metadata.watch(name, await self.cluster.describe(name))
        while self.cluster.topic(name) is None:
            await self.cluster.metadata.refresh(f"{name} is new here")
        await self._probe(name)
        self.tombstones[name] = await self._tombstones(name)
        self.feeds.open(name)

    async def _probe(self, name: str) -> None:
        """Raises AccessDenied if the brokers do not let us read. Asked before reading, or
        clients would be begun a stream that can never hold anything."""
        known = self.cluster.topic(name)
        nodes: dict[int, tuple[TopicPartition, Want]] = {}
        for p, partition in (known.partitions if known else {}).items():
            if partition.leader >= 0 and known is not None:
                want = Want(_NOWHERE, partition.leader_epoch, known.topic_id, max_bytes=1)
                nodes.setdefault(partition.leader, (TopicPartition(name, p), want))
        asking = [
            asyncio.create_task(self._may_read(node, *asked)) for node, asked in nodes.items()
        ]
        if not asking:
            return
        try:
            for answer in asyncio.as_completed(asking, timeout=PROBE):
                if await answer is not None:
                    return
        except TimeoutError:
            return
        finally:
            for task in asking:
                task.cancel()

    async def _tombstones(self, name: str) -> float | None:
        try:
            async with asyncio.timeout(PROBE):
                return await self.cluster.deletes_after(name)
        except (KafkaError, TimeoutError):
            return None

    async def _may_read(self, node: int, tp: TopicPartition, want: Want) -> bool | None:
        try:
            got = await self.cluster.fetch(node, Role.CATCHUP, {tp: want}, max_wait=0.0)
        except AccessDenied:
            raise
        except KafkaError:
            return None
        if got[tp].error_code == DENIED:
            raise AccessDenied(
                f"the gateway may not read {tp.topic}; allow it READ", topic=tp.topic
            )
        return True

    async def _warm(self, name: str) -> None:
        while not self._is_open(name):
            try:
                await self._open(name)
            except KafkaError as exc:
                log.warning("bootstrap of %s waits: %s", name, exc)
                await asyncio.sleep(exc.retry_after or 1.0)

    def _is_warm(self, name: str) -> bool:
        feeds = [f for tp, f in self.feeds.by_partition.items() if tp.topic == name]
        return bool(feeds) and all(feed.log.next is not None for feed in feeds)

    # tails and channels

    def _tail(self, topics: tuple[str, ...], token: Token | None) -> SharedTail:
        shared = self._tails.get(topics)
        if shared is None:
            told = token.among(topics) if token is not None else {}
            counts = {name: len(told[name].offsets) if name in told else 0 for name in topics}
            feeds = [feed for name in topics for feed in self.feeds.open(name, counts[name])]
            ids = {name: self._id(name) for name in topics}
            tail = Tail(self.cluster.id or "", [feed.log for feed in feeds], ids)
            shared = self._tails[topics] = SharedTail(tail)
            self.feeds.attach(shared)
            self.feeds.refresh_readiness(shared)
        shared.used = asyncio.get_running_loop().time()
        shared.tail.issue(int(time.time()))
        return shared

    def _id(self, name: str) -> str:
        known = self.cluster.topic(name)
        return str(known.topic_id or "") if known is not None else ""

    def _channel(self, shared: SharedTail, view: View) -> Channel:
        channel = shared.channels.get(view.digest)
        if channel is None:
            encoder = SseEncoder(format_for(view.format, binary=view.binary))
            accepts = view.filters.matches if view.filters.filters else None
            fails = [n for n in view.topics if self.topic(n).offset_out_of_range == "fail"]
            channel = Channel(shared.tail, view.digest, encoder, accepts, fails=fails)
            shared.channels[view.digest] = channel
        return channel

    # positions

    async def _subscribe(
        self,
        shared: SharedTail,
        channel: Channel,
        start: Start,
        slow: SlowClient,
        deadline: float,
    ) -> Subscription:
        tail, until = shared.tail, None
        if start.until is not None:
            until = await self._until(tail, start.until, deadline)
        own: Position = {}
        token = start.token
        if token is not None:  # places are of the topic ids that are known at this instant
            if resume.is_recreated(token, tail):  # or is it our metadata that is old?
                await self.cluster.metadata.refresh("a token has another topic id")
            own = resume.places(token, tail)
        elif start.since is not None:
            own = await self._found(tail, start.since, deadline)
        return Subscription(
            channel,
            own,
            slow=slow,
            until=until,
            count=start.count,
            since=token.issued if token else _seconds(start.since),
        )

    async def _found(self, tail: Tail, since: Since, deadline: float) -> Position:
        """Where a start by time is, for the partitions that answer soon after the first one.
        The others stay pending: the client looks for them when it has begun."""
        lineages = {tp: log.lineage for tp, log in tail.logs.items()}

        async def one(tp: TopicPartition) -> Place:
            return await self.archive.resolve(tp, since)

        found = await _soon(((tp, one(tp)) for tp in tail.logs), deadline)
        own: Position = dict.fromkeys(tail.logs, Place(None, NO_EPOCH, UNVERIFIED))
        return own | {tp: at._replace(lineage=lineages[tp]) for tp, at in found.items()}

    async def _until(self, tail: Tail, until: object, deadline: float) -> dict[TopicPartition, int]:
        """The offsets at which partitions end."""
        timestamp = until if isinstance(until, int) else LATEST
        specs = dict.fromkeys(tail.logs, timestamp)
        ends = await self.cluster.list_offsets(specs)
        late = {
            tp for tp, end in ends.items() if isinstance(end, offsets.Offset) and end.offset < 0
        }
        if late:
            ends.update(await self.cluster.list_offsets(dict.fromkeys(late, LATEST)))
        failed = [tp for tp, end in ends.items() if isinstance(end, int)]
        if failed:
            raise KafkaError(f"{failed[0]} does not say where it ends; try again", retry_after=1.0)
        return {tp: end.offset for tp, end in ends.items() if isinstance(end, offsets.Offset)}

    # upkeep

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self._sweep(asyncio.get_running_loop().time())

    def _sweep(self, now: float) -> None:
        for topics, shared in list(self._tails.items()):
            if not shared.idle:
                shared.used = now
                self._announce(shared, now)
                self._mind_length(topics, shared.tail)
            elif now - shared.used > LINGER:
                self.feeds.detach(shared)
                del self._tails[topics]
        used = {name for topics in self._tails for name in topics}
        used |= {*self.settings.kafka.bootstrap, *self._opening, *+self._held}
        for name in self.feeds.topics - used:
            self.feeds.close_topic(name)
        self._bound_memory(now)

    def _announce(self, shared: SharedTail, now: float) -> None:
        for digest, channel in list(shared.channels.items()):
            if not channel.followers:
                del shared.channels[digest]
            elif shared.is_due(digest, now) and channel.announce() is not None:
                for follower in channel.followers:
                    follower.wake()

    def _mind_length(self, topics: tuple[str, ...], tail: Tail) -> None:
        """Say once of a topic set that proxies may refuse what its clients come back with."""
        if topics not in self._long and len(tail.text) > LONG_ID:
            self._long.add(topics)
            log.warning(
                "ids of %s have %d characters; let proxies pass headers of 64 KB "
                "(nginx: large_client_header_buffers 4 64k), or give topics routes of their own",
                ", ".join(topics), len(tail.text),
            )  # fmt: skip

    def _bound_memory(self, now: float) -> None:
        """Old entries go; then those over their topic's `cache`, and over the process's `memory`:
        each partition gives up its share."""
        logs = [feed.log for feed in self.feeds.by_partition.values()]
        by_topic: dict[str, list[Log]] = {}
        for each in logs:
            each.expire(now)
            by_topic.setdefault(each.tp.topic, []).append(each)
        for name, some in by_topic.items():
            _shrink(some, self.topic(name).cache.bytes)
        backlog = sum(client.subscription.backlog for client in self.clients)
        self.archive.bound(backlog > self.settings.memory // 4)
        rings = sum(c.bytes for s in self._tails.values() for c in s.channels.values())
        _shrink(logs, max(0, self.settings.memory - rings - backlog))


def _shrink(logs: Sequence[Log], room: int) -> None:
    held = sum(each.bytes for each in logs)
    if held > room:
        for each in logs:
            each.shrink(int(each.bytes * room / held))


async def _soon(
    work: Iterable[tuple[TopicPartition, Coroutine[Any, Any, Place]]], deadline: float
) -> Mapping[TopicPartition, Place]:
    """Results of those that are done by the deadline, and a moment after the first one."""
    tasks = {asyncio.create_task(one): tp for tp, one in work}
    left = deadline - asyncio.get_running_loop().time()
    for how, wait in ((asyncio.FIRST_COMPLETED, left), (asyncio.ALL_COMPLETED, min(left, OTHERS))):
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, wait), return_when=how)
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    return {tp: task.result() for task, tp in tasks.items() if task.done()}


def _seconds(since: Since | None) -> int | None:
    """For the ids of a client of which a partition is pending: they hold no better start."""
    return None if since is None else max(0, since.timestamp) // 1000
