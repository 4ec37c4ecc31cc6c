"""Where clients and partitions meet: tails by topic set, channels by view."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from gateway.config import Kafka, Rate, Settings
from gateway.core.channel.channel import Channel, Encoder
from gateway.core.channel.rings import Rings
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.snapshot import Snapshot
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import Log
from gateway.core.log.partition_reader import EARLIEST, Since
from gateway.core.log.position import Position
from gateway.core.log.tail import Tail
from gateway.errors import MemoryFull
from gateway.formats import format_for
from gateway.formats.invalid import checked
from gateway.hub.reads import resume
from gateway.hub.reads.archive import Archive
from gateway.hub.reads.documents import Documents
from gateway.hub.reads.epochs import Epochs
from gateway.hub.reads.feeds import Feeds
from gateway.hub.reads.key_partitions import Placing
from gateway.hub.reads.resume import Start
from gateway.hub.reads.resumption import Resumption
from gateway.hub.reads.snapshots import Snapshots
from gateway.hub.reads.starts import ends, found
from gateway.hub.reads.topics import Topics
from gateway.hub.wires.models import Models
from gateway.hub.wires.wire import Wire
from gateway.hub.writes.publisher import Publisher
from gateway.kafka.client.cluster import Cluster
from gateway.telemetry.traffic import Behind, Traffic, Traffics

from .allowance import Allowance
from .broadcaster import Pace, Pump
from .client import Client, Handover
from .distances import Distances
from .received_bytes import received_bytes
from .shared_catch_up import Herds
from .shared_tail import SharedTail
from .stepped import Stepped
from .view import View

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

log = logging.getLogger(__name__)

LINGER = 60.0  # seconds that a topic is read after its last client left
SWEEP = 0.25
LEAST_BEAT, MOST_BEAT = 0.02, 1.0  # seconds from one look at all clients to the next
BEATS = 500  # clients looked at without a turn for others
LONG_ID = 6 * 1024  # characters; the headers of a proxy end at 8 KB where nobody raised it
BACKLOG_SHARE = 4  # the part of `memory` that records may take which clients have yet to take
RINGS_SHARE = 4  # the part of `memory` that rings may take: one in so many
PINNED_SHARE = 2  # likewise of what cannot give way; nobody new is let in beyond
GROWTH_SHARE = 16  # logs may grow by this part of `memory` before it is bounded anew
VIEW_COPIES = 3  # of what a client's view says: in its request, in its parameters, in its filter
PINNED = ("tables", "views", "unsent", "received")  # parts of the memory that cannot give way


TailKey: TypeAlias = tuple[tuple[str, ...], float | None]  # topics, interval


class Hub:
    """All streams of one cluster. `start` and `close` it in the loop, as often as needed.

    name:    of the cluster, where there are several.
    numbers: of its clients.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        name: str = "",
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.name = name
        self.beside: Sequence[Hub] = (self,)  # all of this process: `memory` is of all of them
        self.topics = Topics(cluster, self.kafka)
        self.clients: set[Client] = set()
        self.started = False
        self.draining = False
        self.tracing: Tracing | None = None  # from the next start on
        self.traffics = Traffics()
        self.replies: Counter[tuple[str, str]] = Counter()  # to requests, by topic and outcome
        self.behind = Behind()  # as of a moment ago
        self.memory: dict[str, int] = {}  # bytes in use, by part, as of a moment ago
        self.rings = Rings(find=self._channels)
        self._unsent = 0  # bytes that slow clients have yet to take, as of a moment ago
        self._grown = 0  # bytes by which logs grew since memory was bounded
        self._is_full = False  # so much cannot give way that nobody new is let in
        self._numbers = numbers or itertools.count(1)
        self._after: dict[Client, Callable[[], None]] = {}
        self._tails: dict[TailKey, SharedTail] = {}
        self._encoders: WeakValueDictionary[Hashable, Encoder] = WeakValueDictionary()
        self._long: set[tuple[str, ...]] = set()
        self._upkeep: list[asyncio.Task[None]] = []
        self.models: Models
        self.feeds: Feeds
        self.archive: Archive
        self.pump: Pump
        self.herds: Herds
        self.epochs: Epochs
        self.placing: Placing
        self.resumption: Resumption
        self.publisher: Publisher
        self.snapshots: Snapshots
        self.documents: Documents

    @property
    def kafka(self) -> Kafka:
        """The options of its cluster."""
        return self.settings.clusters[self.name]

    async def start(self) -> None:
        self.started, self.draining = True, False
        self.topics = Topics(self.cluster, self.kafka)
        self._tails.clear()
        self._share_memory()
        pace = Pace()
        self.pump = Pump(pace, self.tracing)
        self.herds = Herds(self.settings.memory // 8 // len(self.beside))
        self.models = Models(self.settings, self.topics.settings)
        self.feeds = Feeds(
            self.cluster, self.topics.settings, pace, self.models.of, self._count_growth
        )
        self.archive = Archive(self.cluster, self.topics.settings, self.models.of)
        self.epochs = Epochs(self.cluster)
        self.placing = Placing(self.cluster, self.topics.settings)
        self.resumption = Resumption(self.cluster, self.topics, self.settings.tokens)
        self.publisher = Publisher(self.cluster, models=self.models)
        self.publisher.tracing = self.tracing
        self.snapshots = Snapshots(self)
        self.documents = self.publisher.documents = Documents(self)
        self.topics.start(self.feeds)
        self._upkeep = [
            asyncio.create_task(self._sweep_forever()), asyncio.create_task(self._beat_forever())
        ]  # fmt: skip

    async def close(self) -> None:
        for client in list(self.clients):
            client.close()
        self.herds.close()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        self.placing.close()
        await self.resumption.close()
        await self.snapshots.close()
        await self.publisher.close()
        await self.topics.close()
        await self.epochs.close()
        await self.archive.close()
        await self.feeds.close()
        await self.models.close()
        self.started = False

    def adopt(self, settings: Settings) -> frozenset[str]:
        """Go by these settings from now on. The topics whose options are others: they are read
        anew, and who looks at them hears nothing more until it is `CHANGED`."""
        self.settings = settings
        self._share_memory()
        changed = self.topics.adopt(self.kafka)
        self.models.adopt(settings)
        for key, shared in list(self._tails.items()):
            if not changed.isdisjoint(key[0]):
                self.feeds.detach(shared)
                del self._tails[key]
        read = changed & self.feeds.topics
        for name in read:
            known = self.cluster.topic(name)
            self.feeds.close_topic(name)
            self.snapshots.tables.drop(name)
            if known is not None:
                self.cluster.metadata.watch(name, known)
                self.feeds.open(name)
        if read:  # who is being moved may look at it once more before it is
            holding = self.topics.holding(tuple(read))
            holding.__enter__()
            asyncio.get_running_loop().call_later(LINGER, holding.__exit__)
        return changed

    def drain(self, reason: str = "drain") -> None:
        """End all streams; their clients come back, spread over some seconds."""
        self.draining = True
        for client in list(self.clients):
            client.end(reason)

    def leave(self, client: Client) -> None:
        self.clients.discard(client)
        left = self._after.pop(client, None)
        if left is not None:
            left()

    def after(self, client: Client, left: Callable[[], None]) -> None:
        """Call it once the client is gone."""
        if client in self.clients:
            self._after[client] = left
        else:
            left()

    async def subscribe(
        self,
        view: View,
        start: Start,
        wire: Wire,
        *,
        heartbeat: float,
        slow: SlowClient,
        lifetime: float | None = None,
        expires: float | None = None,
        refused: bool = False,
        after: Handover | None = None,
        route: str = "",
        rate: Rate | None = None,
    ) -> Client:
        """A client of a view; await its `ready`, then iterate its `stream`.

        expires: when what lets it in is over, in seconds since 1970.
        refused: it came with a token that could not be read.
        after:   what another left, in whose place it comes: it ends where that one would have.
        route:   as metrics call it.
        rate:    of the records that it is sent at most.
        Raises UnknownTopic, AccessDenied, BrokerUnavailable, AuthenticationFailed, TokenCorrupt,
        TokenForeign, TokenTooOld, and MemoryFull for a new client.
        """
        if after is None and self._is_full:
            raise MemoryFull
        deadline = asyncio.get_running_loop().time() + self._patience(view)
        with self.topics.holding(view.topics):
            may_be_gone = start.token is not None or view.is_pattern
            await self.topics.open_by(deadline, view.topics, known=may_be_gone)
            if start.token is not None:
                token = await self.resumption.admit(
                    start.token,
                    view,
                    route,
                    start.reach,
                    handed_by=None if after is None else after.route,
                )
                start = replace(start, token=token)
            shared = self._tail(view)
            traffic = self.traffics.of(route, wire.name)
            subscription = await self._subscribe(
                shared, view, start, wire, slow, deadline, traffic, after
            )
        before = None if after is None else after.throttle
        allowance = None if rate is None else Allowance.of(rate, subscription, before)
        client = Client(
            self,
            shared,
            subscription,
            wire,
            heartbeat=heartbeat,
            deadline=deadline,
            lifetime=lifetime,
            expires=expires,
            refused=refused,
            after=after,
            view=view,
            token=start.token,
            since=start.since,
            number=next(self._numbers) if after is None else after.number,
            allowance=allowance,
        )
        self.clients.add(client)
        traffic.opened += 1
        if self.draining:
            client.end("drain")
        return client

    def keep(self, view: View) -> SharedTail:
        """Let topics that are open be read for a while from now on, also without a client."""
        return self._tail(view)

    def _patience(self, view: View) -> float:
        return max(self.topics.settings(name).partition_ready_timeout for name in view.topics)

    async def _subscribe(
        self,
        shared: SharedTail,
        view: View,
        start: Start,
        wire: Wire,
        slow: SlowClient,
        deadline: float,
        traffic: Traffic,
        after: Handover | None,
    ) -> Subscription:
        tail, token = shared.tail, start.token
        until = after.until if after is not None else None
        if until is None and start.until is not None:
            until = await ends(self.cluster, tail, start.until)
        own: Position = {}
        behind = token is not None or start.since is not None
        reads = await self.placing.reads(view, token) if behind else None
        if token is not None:  # places are of the topic ids that are known at this instant
            if resume.is_recreated(token, tail):  # or is it our metadata that is old?
                await self.cluster.metadata.refresh("a token has another topic id")
            own = resume.places(token, tail)
            if token.reach is not None:
                await self.resumption.mind_history(token, own, tail)
                own = resume.places(token, tail)  # or a topic was created anew meanwhile
        elif start.since is not None:
            own = await found(self.archive, tail, start.since, deadline, reads)
        snapshot = await self._snapshot(tail, view, start, own, deadline)
        return Subscription(
            # not before the last await: a channel that nobody follows yet is swept away
            self._channel(shared, self.resumption.issued_by(view, traffic.route), wire),
            own,
            slow=slow,
            until=until,
            count=start.count,
            credit=start.credit,
            since=token.issued if token else _seconds(start.since),
            snapshot=snapshot,
            reads=reads,
            got=None if after is None else after.got,
            traffic=traffic,
        )

    async def _snapshot(
        self, tail: Tail, view: View, start: Start, own: Position, deadline: float
    ) -> Snapshot | None:
        """Of all partitions that it has places of; those of topics that its token does not speak
        of begin with their tables, too."""
        if not start.snapshot:
            return None
        self.snapshots.mind_policies(view.topics)
        if start.token is None:
            return Snapshot(view.topics, own, own, view.filters)
        told = start.token.among(tail.ids)
        fresh = await found(
            self.archive, tail, Since(EARLIEST), deadline, lambda tp: tp.topic not in told
        )
        own.update(fresh)
        return Snapshot(view.topics, own, fresh, view.filters)

    # tails and channels

    def _tail(self, view: View) -> SharedTail:
        topics, interval = key = view.topics, view.interval
        shared = self._tails.get(key)
        if shared is None:
            feeds = [feed for name in topics for feed in self.feeds.open(name)]
            ids = {name: self.topics.id(name) for name in topics}
            logs = [feed.log for feed in feeds]
            tail = Tail(self.cluster.id or "", logs, ids, conflates=interval is not None)
            shared = SharedTail(tail) if interval is None else Stepped(tail, interval)
            shared.tracing = self.tracing
            self._tails[key] = shared
            self.feeds.attach(shared)
            self.feeds.refresh_readiness(shared)
        shared.used = asyncio.get_running_loop().time()
        shared.tail.issue(int(time.time()))
        return shared

    def _channel(self, shared: SharedTail, view: View, wire: Wire) -> Channel:
        key = view, wire
        channel = shared.channels.get(key)
        if channel is None:
            encoder = self._encoder(view, wire)
            accepts = view.filters.matches if view.filters.filters else None
            fails = [
                n for n in view.topics if self.topics.settings(n).offset_out_of_range == "fail"
            ]
            channel = Channel(
                shared.tail,
                self.resumption.seal(view),
                encoder,
                accepts,
                fails=fails,
                rings=self.rings,
            )
            shared.add(key, channel, view.filters)
        return channel

    def _encoder(self, view: View, wire: Wire) -> Encoder:
        """One for all views that look alike: what it makes of a record is made once for them."""
        decodes = any(map(self.models.decodes, view.topics))
        alike = wire, view.format, view.binary, view.fields, decodes
        encoder = self._encoders.get(alike)
        if encoder is None:
            format = format_for(view.format, binary=view.binary, fields=view.fields)
            if decodes:
                format = checked(format, view.format)
            encoder = self._encoders[alike] = wire.encoder(format)
        return encoder

    # upkeep

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self._sweep(asyncio.get_running_loop().time())

    async def _beat_forever(self) -> None:
        """Heartbeats and lifetimes of those that have no task to see to them."""
        while True:
            shortest = min((route.with_.heartbeat for route in self.settings.routes), default=1.0)
            await asyncio.sleep(min(MOST_BEAT, max(LEAST_BEAT, shortest / 4)))
            now = asyncio.get_running_loop().time()
            distances = Distances()
            for n, client in enumerate(list(self.clients)):
                try:
                    client.beat(now)
                    if client.state is not None and client in self.clients:
                        distances.look(client)
                except Exception:  # the heartbeats of all others depend on this task
                    log.exception("the heartbeat of a stream failed")
                if n % BEATS == BEATS - 1 or distances.costly:
                    await asyncio.sleep(0)
            self.behind, self._unsent = distances.behind, distances.unsent

    def _sweep(self, now: float) -> None:
        for key, shared in list(self._tails.items()):
            topics = key[0]
            for channel in shared.drop_left():
                self.pump.forget(channel)
            if not shared.idle:
                shared.used = now
                shared.announce(now)
                self._mind_length(topics, shared.tail)
            elif now - shared.used > LINGER and not self.topics.held & set(topics):
                self.feeds.detach(shared)
                del self._tails[key]
        used = {name for topics, _ in self._tails for name in topics} | self.topics.wanted
        for name in self.feeds.topics - used:
            self.feeds.close_topic(name)
            self.snapshots.tables.drop(name)
        self.herds.mind(now)
        self._bound_memory(now)

    def _mind_length(self, topics: tuple[str, ...], tail: Tail) -> None:
        """Say once of a topic set that proxies may refuse what its clients come back with."""
        if topics not in self._long and len(tail.text) > LONG_ID:
            self._long.add(topics)
            log.warning(
                "ids of %s have %d characters; let proxies pass headers of 64 KB "
                "(nginx: large_client_header_buffers 4 64k), or give topics routes of their own",
                ", ".join(topics), len(tail.text),
            )  # fmt: skip

    def _count_growth(self, size: int) -> None:
        """Bound memory before the next sweep if the logs grew a lot since the last one.

        At 300 MB/s, 75 MB arrive between two sweeps, which are 0.25 s apart.
        """
        self._grown += size
        if self._grown > self.settings.memory // GROWTH_SHARE:
            self._bound_memory(asyncio.get_running_loop().time())

    def _bound_memory(self, now: float) -> None:
        """Old entries go; then those over their topic's `cache`, and over the process's `memory`:
        each partition gives up its share, whichever cluster it is of. Rings see to their own."""
        self._grown = 0
        by_topic: dict[str, list[Log]] = {}
        for each in self.logs:
            each.expire(now)
            by_topic.setdefault(each.tp.topic, []).append(each)
        for name, some in by_topic.items():
            _shrink(some, self.topics.settings(name).cache.bytes)
        tails = self._tails.values()
        backlog = self._measure_backlog()
        if backlog > self._backlog_share:
            # What those have read who take nothing would keep all others from reading.
            self.herds.shed()
            for client in self.clients:
                if client.outlet is not None and client.outlet.full:
                    client.subscription.shed()
            backlog = self._measure_backlog()
        self.rings.bytes = sum(each.bytes + each.latest_bytes for each in self._channels())
        views = sum(view.size for shared in tails for view, _ in shared.channels)
        self.memory = {
            "rings": self.rings.bytes,
            "tables": self.snapshots.tables.bytes,
            "backlog": backlog,
            "views": VIEW_COPIES * views,
            "unsent": self._unsent,
            "inflated": self.cluster.inflation.held,
            # of the process, which may have several hubs
            "received": received_bytes.total if self.beside[0] is self else 0,
        }
        every = [hub for hub in self.beside if hub.started]
        behind = sum(hub.memory.get("backlog", 0) for hub in every)
        self.archive.bound(behind > self._backlog_share)
        used = sum(sum(hub.memory.values()) for hub in every)
        pinned = sum(hub.memory.get(part, 0) for hub in every for part in PINNED)
        self._is_full = pinned > self.settings.memory // PINNED_SHARE
        logs = [each for hub in every for each in hub.logs]
        _shrink(logs, max(0, self.settings.memory - used))

    @property
    def _backlog_share(self) -> int:
        """The bytes of records that clients may have read and not taken yet."""
        return self.settings.memory // BACKLOG_SHARE

    def _measure_backlog(self) -> int:
        readers = (each for shared in self._tails.values() for each in shared.tail.readers)
        return self.herds.size + sum(each.backlog for each in readers)

    def _share_memory(self) -> None:
        self.rings.limit = self.settings.memory // RINGS_SHARE // len(self.beside)

    def _channels(self) -> Iterator[Channel]:
        return (each for shared in self._tails.values() for each in shared.channels.values())

    @property
    def logs(self) -> list[Log]:
        return [feed.log for feed in self.feeds.by_partition.values()]


def _shrink(logs: Sequence[Log], room: int) -> None:
    held = sum(each.bytes for each in logs)
    if held > room:
        for each in logs:
            each.shrink(int(each.bytes * room / held))


def _seconds(since: Since | None) -> int | None:
    """For the ids of a client of which a partition is pending: they hold no better start."""
    return None if since is None else max(0, since.timestamp) // 1000
