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
from gateway.core.channel.ring_budget import RingBudget
from gateway.core.client.slow_client import SlowClientPolicy
from gateway.core.client.snapshot import Snapshot
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.position import Position
from gateway.core.log.tail import Tail
from gateway.errors import MemoryFull
from gateway.formats import create_format
from gateway.formats.invalid_values import wrap_format
from gateway.hub.reads import stream_start
from gateway.hub.reads.backfill_reader import BackfillReader
from gateway.hub.reads.documents import DocumentReader
from gateway.hub.reads.epoch_ends import EpochEnds
from gateway.hub.reads.key_partitions import KeyPartitions
from gateway.hub.reads.shared_reads import SharedReads
from gateway.hub.reads.snapshots import Snapshots
from gateway.hub.reads.starts import fetch_ends, resolve_starts
from gateway.hub.reads.stream_start import StreamStart
from gateway.hub.reads.token_verifier import TokenVerifier
from gateway.hub.reads.topic_opener import TopicOpener
from gateway.hub.wires.models import Models
from gateway.hub.wires.wire import Wire
from gateway.hub.writes.publisher import Publisher
from gateway.kafka.client.cluster import Cluster
from gateway.telemetry.traffic import ClientsBehind, StreamCounts, StreamCountsByRoute

from .broadcaster import BatchPacing, Broadcaster
from .client import Client, Handover
from .lag_scan import LagScan
from .rate_limiter import RateLimiter
from .received_bytes import received_bytes
from .shared_catch_up import SharedCatchUps
from .shared_tail import SharedTail
from .stepped_tail import SteppedTail
from .view import View

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

log = logging.getLogger(__name__)

LINGER_S = 60.0  # seconds that a topic is read after its last client left
SWEEP_INTERVAL_S = 0.25
MIN_BEAT_INTERVAL_S, MAX_BEAT_INTERVAL_S = (
    0.02,
    1.0,
)  # seconds from one look at all clients to the next
BEATS_PER_SLICE = 500  # clients looked at without a turn for others
LONG_ID_CHARS = 6 * 1024  # characters; the headers of a proxy end at 8 KB where nobody raised it
BACKLOG_MEMORY_DIVISOR = (
    4  # the part of `memory` that records may take which clients have yet to take
)
RINGS_MEMORY_DIVISOR = 4  # the part of `memory` that rings may take: one in so many
PINNED_MEMORY_DIVISOR = 2  # likewise of what cannot give way; nobody new is let in beyond
GROWTH_MEMORY_DIVISOR = 16  # logs may grow by this part of `memory` before it is bounded anew
VIEW_COPIES = 3  # of what a client's view says: in its request, in its parameters, in its filter
PINNED_PARTS = ("tables", "views", "unsent", "received")  # parts of the memory that cannot give way


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
        self.process_hubs: Sequence[Hub] = (
            self,
        )  # all of this process: `memory` is of all of them
        self.topics = TopicOpener(cluster, self.kafka)
        self.clients: set[Client] = set()
        self.started = False
        self.draining = False
        self.tracing: Tracing | None = None  # from the next start on
        self.traffics = StreamCountsByRoute()
        self.replies: Counter[tuple[str, str]] = Counter()  # to requests, by topic and outcome
        self.behind = ClientsBehind()  # as of a moment ago
        self.memory: dict[str, int] = {}  # bytes in use, by part, as of a moment ago
        self.rings = RingBudget(list_rings=self._iter_channels)
        self._unsent_bytes = 0  # bytes that slow clients have yet to take, as of a moment ago
        self._grown_bytes = 0  # bytes by which logs grew since memory was bounded
        self._is_full = False  # so much cannot give way that nobody new is let in
        self._numbers = numbers or itertools.count(1)
        self._on_closed: dict[Client, Callable[[], None]] = {}
        self._tails: dict[TailKey, SharedTail] = {}
        self._encoders: WeakValueDictionary[Hashable, Encoder] = WeakValueDictionary()
        self._long_id_topics: set[tuple[str, ...]] = set()
        self._maintenance_tasks: list[asyncio.Task[None]] = []
        self.models: Models
        self.shared_reads: SharedReads
        self.backfill_reader: BackfillReader
        self.broadcaster: Broadcaster
        self.shared_catch_ups: SharedCatchUps
        self.epoch_ends: EpochEnds
        self.key_partitions: KeyPartitions
        self.token_verifier: TokenVerifier
        self.publisher: Publisher
        self.snapshots: Snapshots
        self.documents: DocumentReader

    @property
    def kafka(self) -> Kafka:
        """The options of its cluster."""
        return self.settings.clusters[self.name]

    async def start(self) -> None:
        self.started, self.draining = True, False
        self.topics = TopicOpener(self.cluster, self.kafka)
        self._tails.clear()
        self._set_ring_limit()
        pace = BatchPacing()
        self.broadcaster = Broadcaster(pace, self.tracing)
        self.shared_catch_ups = SharedCatchUps(self.settings.memory // 8 // len(self.process_hubs))
        self.models = Models(self.settings, self.topics.get_settings)
        self.shared_reads = SharedReads(
            self.cluster,
            self.topics.get_settings,
            pace,
            self.models.get_topic_model,
            self._on_log_growth,
        )
        self.backfill_reader = BackfillReader(
            self.cluster, self.topics.get_settings, self.models.get_topic_model
        )
        self.epoch_ends = EpochEnds(self.cluster)
        self.key_partitions = KeyPartitions(self.cluster, self.topics.get_settings)
        self.token_verifier = TokenVerifier(self.cluster, self.topics, self.settings.tokens)
        self.publisher = Publisher(self.cluster, models=self.models)
        self.publisher.tracing = self.tracing
        self.snapshots = Snapshots(self)
        self.documents = self.publisher.document_locks = DocumentReader(self)
        self.topics.start(self.shared_reads)
        self._maintenance_tasks = [
            asyncio.create_task(self._sweep_forever()), asyncio.create_task(self._beat_forever())
        ]  # fmt: skip

    async def close(self) -> None:
        for client in list(self.clients):
            client.close()
        self.shared_catch_ups.close()
        for task in self._maintenance_tasks:
            task.cancel()
        await asyncio.gather(*self._maintenance_tasks, return_exceptions=True)
        self.key_partitions.close()
        await self.token_verifier.close()
        await self.snapshots.close()
        await self.publisher.close()
        await self.topics.close()
        await self.epoch_ends.close()
        await self.backfill_reader.close()
        await self.shared_reads.close()
        await self.models.close()
        self.started = False

    def apply_settings(self, settings: Settings) -> frozenset[str]:
        """Go by these settings from now on. The topics whose options are others: they are read
        anew, and who looks at them hears nothing more until it is `CHANGED`."""
        self.settings = settings
        self._set_ring_limit()
        changed = self.topics.apply_settings(self.kafka)
        self.models.apply_settings(settings)
        for key, shared in list(self._tails.items()):
            if not changed.isdisjoint(key[0]):
                self.shared_reads.detach_tail(shared)
                del self._tails[key]
        read = changed & self.shared_reads.topics
        for name in read:
            known = self.cluster.get_topic(name)
            self.shared_reads.close_topic(name)
            self.snapshots.tables.drop_topic(name)
            if known is not None:
                self.cluster.metadata.watch(name, known)
                self.shared_reads.open_topic(name)
        if read:  # who is being moved may look at it once more before it is
            holding = self.topics.hold(tuple(read))
            holding.__enter__()
            asyncio.get_running_loop().call_later(LINGER_S, holding.__exit__)
        return changed

    def drain(self, reason: str = "drain") -> None:
        """End all streams; their clients come back, spread over some seconds."""
        self.draining = True
        for client in list(self.clients):
            client.end(reason)

    def remove_client(self, client: Client) -> None:
        self.clients.discard(client)
        left = self._on_closed.pop(client, None)
        if left is not None:
            left()

    def call_when_closed(self, client: Client, on_closed: Callable[[], None]) -> None:
        """Call it once the client is gone."""
        if client in self.clients:
            self._on_closed[client] = on_closed
        else:
            on_closed()

    async def subscribe(
        self,
        view: View,
        start: StreamStart,
        wire: Wire,
        *,
        heartbeat: float,
        slow: SlowClientPolicy,
        lifetime: float | None = None,
        expires_at: float | None = None,
        position_refused: bool = False,
        handover: Handover | None = None,
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
        if handover is None and self._is_full:
            raise MemoryFull
        deadline = asyncio.get_running_loop().time() + self._get_ready_timeout(view)
        with self.topics.hold(view.topics):
            may_be_gone = start.token is not None or view.is_pattern
            await self.topics.open_topics(deadline, view.topics, may_be_missing=may_be_gone)
            if start.token is not None:
                token = await self.token_verifier.verify(
                    start.token,
                    view,
                    route,
                    start.max_age,
                    handover_route=None if handover is None else handover.route,
                )
                start = replace(start, token=token)
            shared = self._get_shared_tail(view)
            traffic = self.traffics.get_counts(route, wire.name)
            subscription = await self._create_subscription(
                shared, view, start, wire, slow, deadline, traffic, handover
            )
        before = None if handover is None else handover.throttle
        allowance = None if rate is None else RateLimiter.from_rate(rate, subscription, before)
        client = Client(
            self,
            shared,
            subscription,
            wire,
            heartbeat=heartbeat,
            deadline=deadline,
            lifetime=lifetime,
            expires_at=expires_at,
            position_refused=position_refused,
            handover=handover,
            view=view,
            token=start.token,
            since=start.since,
            number=next(self._numbers) if handover is None else handover.number,
            rate_limiter=allowance,
        )
        self.clients.add(client)
        traffic.opened += 1
        if self.draining:
            client.end("drain")
        return client

    def keep_open(self, view: View) -> SharedTail:
        """Let topics that are open be read for a while from now on, also without a client."""
        return self._get_shared_tail(view)

    def _get_ready_timeout(self, view: View) -> float:
        return max(self.topics.get_settings(name).partition_ready_timeout for name in view.topics)

    async def _create_subscription(
        self,
        shared_tail: SharedTail,
        view: View,
        start: StreamStart,
        wire: Wire,
        slow: SlowClientPolicy,
        deadline: float,
        traffic: StreamCounts,
        handover: Handover | None,
    ) -> Subscription:
        tail, token = shared_tail.tail, start.token
        until = handover.until if handover is not None else None
        if until is None and start.until is not None:
            until = await fetch_ends(self.cluster, tail, start.until)
        own: Position = {}
        behind = token is not None or start.since is not None
        reads = await self.key_partitions.build_partition_predicate(view, token) if behind else None
        if token is not None:  # places are of the topic ids that are known at this instant
            if stream_start.has_recreated_topic(token, tail):  # or is it our metadata that is old?
                await self.cluster.metadata.refresh("a token has another topic id")
            own = stream_start.build_position(token, tail)
            if token.max_age is not None:
                await self.token_verifier.check_history(token, own, tail)
                own = stream_start.build_position(
                    token, tail
                )  # or a topic was created anew meanwhile
        elif start.since is not None:
            own = await resolve_starts(self.backfill_reader, tail, start.since, deadline, reads)
        snapshot = await self._create_snapshot(tail, view, start, own, deadline)
        return Subscription(
            # not before the last await: a channel that nobody follows yet is swept away
            self._get_channel(
                shared_tail, self.token_verifier.bind_route(view, traffic.route), wire
            ),
            own,
            slow_policy=slow,
            end_offsets=until,
            max_records=start.max_records,
            credit=start.credit,
            resolve_since=token.issued if token else _to_epoch_seconds(start.since),
            snapshot=snapshot,
            reads_partition=reads,
            delivered_sum=None if handover is None else handover.delivered_sum,
            traffic=traffic,
        )

    async def _create_snapshot(
        self, tail: Tail, view: View, start: StreamStart, own: Position, deadline: float
    ) -> Snapshot | None:
        """Of all partitions that it has places of; those of topics that its token does not speak
        of begin with their tables, too."""
        if not start.snapshot:
            return None
        self.snapshots.check_cleanup_policies(view.topics)
        if start.token is None:
            return Snapshot(view.topics, own, own, view.filters)
        told = start.token.match_topics(tail.topic_ids)
        fresh = await resolve_starts(
            self.backfill_reader,
            tail,
            TimestampStart(EARLIEST),
            deadline,
            lambda tp: tp.topic not in told,
        )
        own.update(fresh)
        return Snapshot(view.topics, own, fresh, view.filters)

    # tails and channels

    def _get_shared_tail(self, view: View) -> SharedTail:
        topics, interval = key = view.topics, view.interval
        shared = self._tails.get(key)
        if shared is None:
            feeds = [feed for name in topics for feed in self.shared_reads.open_topic(name)]
            ids = {name: self.topics.get_id(name) for name in topics}
            logs = [feed.log for feed in feeds]
            tail = Tail(self.cluster.cluster_id or "", logs, ids, is_conflated=interval is not None)
            shared = SharedTail(tail) if interval is None else SteppedTail(tail, interval)
            shared.tracing = self.tracing
            self._tails[key] = shared
            self.shared_reads.attach_tail(shared)
            self.shared_reads.refresh_readiness(shared)
        shared.used_at = asyncio.get_running_loop().time()
        shared.tail.set_issued(int(time.time()))
        return shared

    def _get_channel(self, shared_tail: SharedTail, view: View, wire: Wire) -> Channel:
        key = view, wire
        channel = shared_tail.channels.get(key)
        if channel is None:
            encoder = self._get_encoder(view, wire)
            accepts = view.filters.matches if view.filters.filters else None
            fails = [
                n for n in view.topics if self.topics.get_settings(n).offset_out_of_range == "fail"
            ]
            channel = Channel(
                shared_tail.tail,
                self.token_verifier.create_seal(view),
                encoder,
                accepts,
                failing_topics=fails,
                ring_budget=self.rings,
            )
            shared_tail.add_channel(key, channel, view.filters)
        return channel

    def _get_encoder(self, view: View, wire: Wire) -> Encoder:
        """One for all views that look alike: what it makes of a record is made once for them."""
        decodes = any(map(self.models.has_model, view.topics))
        alike = wire, view.format, view.binary, view.fields, decodes
        encoder = self._encoders.get(alike)
        if encoder is None:
            format = create_format(view.format, binary=view.binary, fields=view.fields)
            if decodes:
                format = wrap_format(format, view.format)
            encoder = self._encoders[alike] = wire.create_encoder(format)
        return encoder

    # upkeep

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self._sweep(asyncio.get_running_loop().time())

    async def _beat_forever(self) -> None:
        """Heartbeats and lifetimes of those that have no task to see to them."""
        while True:
            shortest = min((route.with_.heartbeat for route in self.settings.routes), default=1.0)
            await asyncio.sleep(min(MAX_BEAT_INTERVAL_S, max(MIN_BEAT_INTERVAL_S, shortest / 4)))
            now = asyncio.get_running_loop().time()
            distances = LagScan()
            for n, client in enumerate(list(self.clients)):
                try:
                    client.check_heartbeat(now)
                    if client.state is not None and client in self.clients:
                        distances.add_client(client)
                except Exception:  # the heartbeats of all others depend on this task
                    log.exception("the heartbeat of a stream failed")
                if n % BEATS_PER_SLICE == BEATS_PER_SLICE - 1 or distances.should_yield:
                    await asyncio.sleep(0)
            self.behind, self._unsent_bytes = distances.behind, distances.unsent_bytes

    def _sweep(self, now: float) -> None:
        for key, shared in list(self._tails.items()):
            topics = key[0]
            for channel in shared.remove_left_channels():
                self.broadcaster.remove_channel(channel)
            if not shared.is_idle:
                shared.used_at = now
                shared.announce_positions(now)
                self._warn_of_long_ids(topics, shared.tail)
            elif now - shared.used_at > LINGER_S and not self.topics.held_topics & set(topics):
                self.shared_reads.detach_tail(shared)
                del self._tails[key]
        used = {name for topics, _ in self._tails for name in topics} | self.topics.required_topics
        for name in self.shared_reads.topics - used:
            self.shared_reads.close_topic(name)
            self.snapshots.tables.drop_topic(name)
        self.shared_catch_ups.maintain(now)
        self._limit_memory(now)

    def _warn_of_long_ids(self, topics: tuple[str, ...], tail: Tail) -> None:
        """Say once of a topic set that proxies may refuse what its clients come back with."""
        if topics not in self._long_id_topics and len(tail.token_text) > LONG_ID_CHARS:
            self._long_id_topics.add(topics)
            log.warning(
                "ids of %s have %d characters; let proxies pass headers of 64 KB "
                "(nginx: large_client_header_buffers 4 64k), or give topics routes of their own",
                ", ".join(topics), len(tail.token_text),
            )  # fmt: skip

    def _on_log_growth(self, size: int) -> None:
        """Bound memory before the next sweep if the logs grew a lot since the last one.

        At 300 MB/s, 75 MB arrive between two sweeps, which are 0.25 s apart.
        """
        self._grown_bytes += size
        if self._grown_bytes > self.settings.memory // GROWTH_MEMORY_DIVISOR:
            self._limit_memory(asyncio.get_running_loop().time())

    def _limit_memory(self, now: float) -> None:
        """Old entries go; then those over their topic's `cache`, and over the process's `memory`:
        each partition gives up its share, whichever cluster it is of. Rings see to their own."""
        self._grown_bytes = 0
        by_topic: dict[str, list[PartitionLog]] = {}
        for each in self.logs:
            each.expire(now)
            by_topic.setdefault(each.tp.topic, []).append(each)
        for name, some in by_topic.items():
            _shrink_logs(some, self.topics.get_settings(name).cache.bytes)
        tails = self._tails.values()
        backlog = self._measure_backlog()
        if backlog > self._max_backlog_bytes:
            # What those have read who take nothing would keep all others from reading.
            self.shared_catch_ups.release_stalled()
            for client in self.clients:
                if client.outlet is not None and client.outlet.full:
                    client.subscription.discard_backfill()
            backlog = self._measure_backlog()
        self.rings.bytes = sum(each.bytes + each.latest_bytes for each in self._iter_channels())
        views = sum(view.size for shared in tails for view, _ in shared.channels)
        self.memory = {
            "rings": self.rings.bytes,
            "tables": self.snapshots.tables.used_bytes,
            "backlog": backlog,
            "views": VIEW_COPIES * views,
            "unsent": self._unsent_bytes,
            "inflated": self.cluster.inflation.held_bytes,
            # of the process, which may have several hubs
            "received": received_bytes.total if self.process_hubs[0] is self else 0,
        }
        every = [hub for hub in self.process_hubs if hub.started]
        behind = sum(hub.memory.get("backlog", 0) for hub in every)
        self.backfill_reader.limit_reads(behind > self._max_backlog_bytes)
        used = sum(sum(hub.memory.values()) for hub in every)
        pinned = sum(hub.memory.get(part, 0) for hub in every for part in PINNED_PARTS)
        self._is_full = pinned > self.settings.memory // PINNED_MEMORY_DIVISOR
        logs = [each for hub in every for each in hub.logs]
        _shrink_logs(logs, max(0, self.settings.memory - used))

    @property
    def _max_backlog_bytes(self) -> int:
        """The bytes of records that clients may have read and not taken yet."""
        return self.settings.memory // BACKLOG_MEMORY_DIVISOR

    def _measure_backlog(self) -> int:
        readers = (each for shared in self._tails.values() for each in shared.tail.readers)
        return self.shared_catch_ups.size + sum(each.buffered_bytes for each in readers)

    def _set_ring_limit(self) -> None:
        self.rings.limit = self.settings.memory // RINGS_MEMORY_DIVISOR // len(self.process_hubs)

    def _iter_channels(self) -> Iterator[Channel]:
        return (each for shared in self._tails.values() for each in shared.channels.values())

    @property
    def logs(self) -> list[PartitionLog]:
        return [feed.log for feed in self.shared_reads.by_partition.values()]


def _shrink_logs(logs: Sequence[PartitionLog], max_bytes: int) -> None:
    held = sum(each.bytes for each in logs)
    if held > max_bytes:
        for each in logs:
            each.shrink(int(each.bytes * max_bytes / held))


def _to_epoch_seconds(since: TimestampStart | None) -> int | None:
    """For the ids of a client of which a partition is pending: they hold no better start."""
    return None if since is None else max(0, since.timestamp) // 1000
