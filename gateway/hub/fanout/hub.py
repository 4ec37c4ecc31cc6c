"""Serve the streams of one cluster: shared tails by topic set, channels by view.

`Hub.subscribe` is how a client begins: it opens the topics, verifies the resume token, resolves the
start, and returns a `Client` with a `Subscription` to a channel. Three tasks maintain the hub. The
sweep closes what nobody uses, announces positions and bounds memory. Another checks the heartbeats
and lifetimes of all clients, so that an idle client needs no timer. The third builds the indexes of
keys that logs need.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast
from weakref import WeakValueDictionary

from gateway.client_memory import MAX_UNCOUNTED_BYTES, ClientMemory, HeldPart
from gateway.config import Kafka, Settings
from gateway.core.channel.channel import Channel, Encoder
from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.channel.tail import Tail
from gateway.core.client.snapshot import Snapshot
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.record import Position
from gateway.errors import MemoryFull
from gateway.formats import create_format
from gateway.formats.exact_values import wrap_format
from gateway.hub.reads import position_resolver
from gateway.hub.reads.backfill_reader import BackfillReader
from gateway.hub.reads.dictionaries import Dictionaries
from gateway.hub.reads.documents import DocumentReader
from gateway.hub.reads.key_indexes import KeyIndexBuilder, KeyPartitions
from gateway.hub.reads.pacing import BatchPacing, RateLimiter
from gateway.hub.reads.position_resolver import LookupTurns, StreamStart, fetch_ends, resolve_starts
from gateway.hub.reads.services import LATER_EPOCH_TIMEOUT_S, ReadServices
from gateway.hub.reads.shared_reads import SharedReads
from gateway.hub.reads.shared_tail import ChannelKey, SharedTail, SteppedTail
from gateway.hub.reads.snapshots import Snapshots
from gateway.hub.reads.token_verifier import TokenVerifier
from gateway.hub.reads.topic_opener import TopicOpener
from gateway.hub.reads.view import View
from gateway.hub.wires.models import Models
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Wire, end_retries
from gateway.hub.writes.publisher import DocumentKeyLocks, Publisher
from gateway.hub.writes.writer import RecordWriter
from gateway.kafka.client.cluster import Cluster
from gateway.telemetry.traffic import NO_CREDIT, SLOW, THROTTLED, ClientsBehind, StreamCountsByRoute

from .broadcaster import Broadcaster
from .client import Client, ClientOptions, ClientRegistry
from .client_shares import ClientShares
from .lag_scan import LagScan
from .shared_catch_up import SharedCatchUps
from .state_log import log as state_logger

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

log = logging.getLogger(__name__)

LINGER_S = 60.0  # seconds for which a topic is read after its last client left
SWEEP_INTERVAL_S = 0.25
# Seconds from one check of the heartbeats of all clients to the next.
MIN_HEARTBEAT_CHECK_S, MAX_HEARTBEAT_CHECK_S = 0.02, 1.0
HEARTBEAT_REST_FACTOR = 9  # a check is followed by a rest of so many times what it took
CHANNELS_PER_SLICE = 1000  # channels that are removed before other tasks get a turn: 3 ms
CLIENTS_PER_SLICE = 500  # clients that are checked before other tasks get a turn
FULL_QUIET_PERIOD_S = 60.0  # seconds in which no client was refused, until it is logged again
LONG_ID_CHARS = 6 * 1024  # longer ids are warned of: by default, proxies allow 8 KB of headers

# `memory` divided by each of these is a limit.
BACKLOG_MEMORY_DIVISOR = 4  # records that were read for clients and not taken by them yet
RINGS_MEMORY_DIVISOR = 4  # the rings of all channels
WRITES_MEMORY_DIVISOR = 8  # clients' records until Kafka has them
TABLES_MEMORY_DIVISOR = 4  # `memory` divided by this is what tables may take
PINNED_MEMORY_DIVISOR = 2  # what cannot be freed; beyond it, new clients are refused
SHARE_DIVISOR = 4  # of that, what views of one client may take
GROWTH_MEMORY_DIVISOR = 16  # growth of the logs that causes memory to be bounded at once

_STALLED = frozenset({SLOW, NO_CREDIT, THROTTLED})  # clients that take nothing for now

# What `gateway_memory_bytes` lists; the cache is counted apart, by topic.
MEMORY_PARTS = (
    "cache", "rings", "tables", "backlog", "writes", "keys", "views", "inflated", "dictionaries",
    *HeldPart,
)  # fmt: skip
PINNED_PARTS = (  # parts of memory that cannot be freed
    "tables", "views", HeldPart.UNSENT, HeldPart.RECEIVED, HeldPart.PARSED, HeldPart.RESPONSES,
)  # fmt: skip


TailKey: TypeAlias = tuple[tuple[str, ...], float | None]
"""The topics of a tail, in the order of the view, and its interval in seconds."""


@dataclass(frozen=True, slots=True)
class HubLimits:
    """How long a hub keeps what nobody uses, and how large it lets ids become."""

    linger_s: float = LINGER_S
    sweep_interval_s: float = SWEEP_INTERVAL_S
    long_id_chars: int = LONG_ID_CHARS
    later_epoch_timeout_s: float = LATER_EPOCH_TIMEOUT_S


DEFAULT_LIMITS = HubLimits()


class Hub:
    """The streams of one cluster.

    `Hubs` creates one for each cluster, and starts and closes the cluster itself. A hub is started
    and closed within the event loop, and may be started again. The components that are annotated
    below without a value exist only while `started` is true.

    A channel, a tail and a shared read live as long as somebody uses them: channels go with their
    last follower and tails with their last channel, at the next sweep. Topics are read for
    `linger_s` more.

    Attributes:
        name: The name of the cluster; empty where there is only one.
        process_hubs: All hubs of this process, which share the limit `memory`.
        draining: New clients are ended at once.
        replies: Counters of answered requests (request-reply), by topic and outcome.
        is_full: Whether new clients are refused, because too much of memory cannot be freed.
        memory: Bytes in use by part, as of the last check.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        name: str = "",
        numbers: Iterator[int] | None = None,
        limits: HubLimits = DEFAULT_LIMITS,
        client_memory: ClientMemory | None = None,
        client_shares: ClientShares | None = None,
    ) -> None:
        self.cluster = cluster
        self.limits = limits
        self.settings = settings
        self.name = name
        self.process_hubs: Sequence[Hub] = (self,)
        self.topics = TopicOpener(cluster, self.kafka)
        self.clients = ClientRegistry()
        self.started = False
        self.draining = False
        self.tracing: Tracing | None = None
        self.traffics = StreamCountsByRoute()
        self.replies: Counter[tuple[str, str]] = Counter()
        self.behind = ClientsBehind()
        self.memory: dict[str, int] = {}
        self.rings = RingBudget(list_rings=self._iter_channels)
        self.client_memory = client_memory or ClientMemory()
        self.client_shares = client_shares or ClientShares()
        self._limit_clients()
        self.lookup_turns = LookupTurns()
        self._grown_bytes = 0  # bytes by which the logs grew since memory was bounded last
        self.is_full = False
        self._full_at = -math.inf  # when it was last, by the loop's clock
        self._numbers = numbers or itertools.count(1)
        self._tails: dict[TailKey, SharedTail] = {}
        self._used_at: dict[str, float] = {}  # when topics had a tail last, by the loop's clock
        # Tails that a reload replaced, until their last client has moved on.
        self._replaced_tails: list[SharedTail] = []
        # Clients of this process, such as the reader of replies: they go on by themselves when
        # `apply_settings` ends them by CHANGED.
        self.own_clients: set[Client] = set()
        # An encoder goes with the last channel that uses it.
        self._encoders: WeakValueDictionary[Hashable, Encoder] = WeakValueDictionary()
        self._long_id_topics: set[tuple[str, ...]] = set()  # those that were warned of
        self._maintenance_tasks: list[asyncio.Task[None]] = []
        self.models: Models
        self.shared_reads: SharedReads
        self.backfill_reader: BackfillReader
        self.broadcaster: Broadcaster
        self.shared_catch_ups: SharedCatchUps
        self.key_partitions: KeyPartitions
        self.token_verifier: TokenVerifier
        self.publisher: Publisher
        self.snapshots: Snapshots
        self.documents: DocumentReader
        self.dictionaries: Dictionaries
        self.document_locks: DocumentKeyLocks
        self.read_services: ReadServices

    @property
    def kafka(self) -> Kafka:
        return self.settings.clusters[self.name]

    async def start(self) -> None:
        self.started, self.draining = True, False
        self.topics = TopicOpener(self.cluster, self.kafka)
        self._tails.clear()
        self._used_at.clear()
        self._set_ring_limit()
        pace = BatchPacing()
        self.broadcaster = Broadcaster(pace, self.tracing)
        # An eighth of `memory` for what shared catch-ups keep for their members.
        self.shared_catch_ups = SharedCatchUps(
            self.broadcaster, self.settings.memory // 8 // len(self.process_hubs)
        )
        self.models = Models(self.settings, self.topics.get_settings)
        self.shared_reads = SharedReads(
            self.cluster,
            self.topics.get_settings,
            pace,
            self.models.get_topic_model,
            self._on_log_growth,
            on_unreadable=self.models.count_unreadable,
        )
        self.backfill_reader = BackfillReader(
            self.cluster, self.topics.get_settings, self.models.get_topic_model
        )
        self.key_partitions = KeyPartitions(self.cluster, self.topics.get_settings)
        self.token_verifier = TokenVerifier(self.cluster, self.topics, self.settings.tokens)
        max_pending_bytes = self.settings.memory // WRITES_MEMORY_DIVISOR // len(self.process_hubs)
        self.publisher = Publisher(
            self.cluster, max_pending_bytes=max_pending_bytes, models=self.models
        )
        self.publisher.tracing = self.tracing
        self.snapshots = Snapshots(
            self.cluster,
            self.shared_reads,
            self.backfill_reader,
            self.topics.get_settings,
            self._get_table_limit,
        )
        self.read_services = ReadServices(
            self.cluster,
            self.topics,
            self.shared_reads,
            self.backfill_reader,
            self.token_verifier,
            self.snapshots,
            later_epoch_timeout_s=self.limits.later_epoch_timeout_s,
        )
        self.documents = DocumentReader(self.read_services, self.key_partitions, self.keep_open)
        self.dictionaries = Dictionaries(
            self.read_services, self.keep_open, lambda view: self.get_encoder(view, SseWire())
        )
        self.document_locks = self.publisher.document_locks = DocumentKeyLocks(
            self.publisher, self.topics.get_settings, self.settings, self.name
        )
        self.topics.start(self.shared_reads)
        key_indexes = KeyIndexBuilder(self.shared_reads.by_partition, self._on_log_growth)
        self._maintenance_tasks = [
            asyncio.create_task(self._sweep_forever()),
            asyncio.create_task(self._check_heartbeats_forever()),
            asyncio.create_task(key_indexes.build_forever()),
        ]  # fmt: skip

    async def close(self) -> None:
        """Close all clients and components, in the order of their dependencies."""
        for client in self.clients:
            client.end(EndReason.CLOSED)  # unless it was ended already
            client.close()
        # Then from the users to the used: nothing may start a read or a write that is closed.
        self.shared_catch_ups.close()
        while self._remove_left_channels():
            pass
        for task in self._maintenance_tasks:
            task.cancel()
        await asyncio.gather(*self._maintenance_tasks, return_exceptions=True)
        await self.dictionaries.close()
        self.key_partitions.close()
        await self.token_verifier.close()
        await self.snapshots.close()
        await self.publisher.close()
        await self.topics.close()
        await self.backfill_reader.close()
        await self.shared_reads.close()
        await self.models.close()
        self.started = False

    def apply_settings(self, settings: Settings) -> frozenset[str]:
        """Apply other settings while the hub runs, and return the topics whose options changed.

        These topics are read from scratch. Their present clients keep a tail that is no longer
        fed, so the caller must move them on (see `EndReason.CHANGED`), except `own_clients`.
        """
        old_security, self.settings = self.kafka.security, settings
        self._limit_clients()
        self._set_ring_limit()
        if self.kafka.security != old_security:
            self.cluster.replace_security(self.kafka.security)
        changed = self.topics.apply_settings(self.kafka)
        self.models.apply_settings(settings)
        self.document_locks.apply_settings(settings)
        self.dictionaries.clear()
        for key, shared_tail in list(self._tails.items()):
            if not changed.isdisjoint(key[0]):
                self.shared_reads.detach_tail(shared_tail)
                self._replaced_tails.append(self._tails.pop(key))
        for client in list(self.own_clients):
            if client.shared_tail in self._replaced_tails:
                client.end(EndReason.CHANGED)
        reopened = changed & self.shared_reads.topics
        for name in reopened:
            metadata = self.cluster.get_topic(name)
            self.shared_reads.close_topic(name)
            self.snapshots.tables.drop_topic(name)
            if metadata is not None:
                self.shared_reads.watch_topic(name, metadata)
                self.shared_reads.open_topic(name)
        # No tail uses these topics until their clients have been moved.
        self._used_at |= dict.fromkeys(reopened, asyncio.get_running_loop().time())
        return changed

    def create_writer(self) -> RecordWriter:
        return RecordWriter(self.publisher)

    def _get_table_limit(self) -> int:
        return self.settings.memory // TABLES_MEMORY_DIVISOR // len(self.process_hubs)

    def drain(self, reason: EndReason = EndReason.DRAIN) -> None:
        """End all streams; their `end` events spread the reconnects over some seconds.

        Of many clients only the first are ended within the call: a million at once would block the
        loop for seconds.
        """
        self.draining = True
        end_retries.spread(sum(len(hub.clients) for hub in self.process_hubs))
        self._end_clients(iter(self.clients), reason)

    def _end_clients(self, clients: Iterator[Client], reason: EndReason) -> None:
        ending = list(itertools.islice(clients, CLIENTS_PER_SLICE))
        for client in ending:
            client.end(reason)
        if ending:  # there may be more
            asyncio.get_running_loop().call_soon(self._end_clients, clients, reason)

    def remove_client(self, client: Client) -> None:
        self.own_clients.discard(client)
        self.clients.discard(client)
        subscription = client.subscription
        self.client_shares.remove(subscription.client_key, subscription.channel)

    async def subscribe(
        self, view: View, start: StreamStart, wire: Wire, options: ClientOptions
    ) -> Client:
        """Create a client of a view, which the caller must close in any case.

        The caller awaits its `wait_until_ready` and then attaches it to an outlet.

        Raises:
            UnknownTopic: A topic does not exist, and the client has no token that speaks of it.
            AccessDenied: The brokers do not let the gateway read a topic.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
            BrokerUnavailable: The brokers did not answer in time.
            TokenCorrupt: The resume token has no valid MAC, where one is needed.
            TokenForeign: The resume token is of another cluster or of other topics.
            TokenTooOld: The resume token goes back further than the route allows.
            MemoryFull: Memory has no space for a new client.
            Busy: The streams of this client, or topics that do not exist, are too many.
        """
        handover = options.handover
        if handover is None and self.is_full:
            raise MemoryFull
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._get_ready_timeout(view)
        with self.topics.hold(view.topics):
            # The stream of a client that resumes stays open while its topic is missing: the topic
            # may be created again. A topic found by a pattern may have been deleted since.
            may_be_missing = start.token is not None or view.is_pattern
            await self.topics.open_topics(deadline, view.topics, may_be_missing=may_be_missing)
            if start.token is not None:
                token = await self.token_verifier.verify(
                    start.token,
                    view,
                    options.route,
                    start.max_age,
                    handover_route=None if handover is None else handover.route,
                )
                start = replace(start, token=token)
            # With a token, a snapshot looks up the starts of topics that the token does not have.
            looks_up = start.since is not None or start.until is not None or start.snapshot
            takes_turn = looks_up and options.client_key  # without a key they are of many clients
            while True:
                waits_since = loop.time()
                async with (
                    self.lookup_turns.take(options.client_key) if takes_turn else nullcontext()
                ):
                    deadline += loop.time() - waits_since  # Kafka has had no chance to answer
                    shared_tail = self.keep_open(view)
                    subscription = await self._create_subscription(
                        shared_tail, view, start, wire, options, deadline
                    )
                if self._tails.get((view.topics, view.interval)) is shared_tail:
                    break
                # Other settings ended its reads meanwhile. A follower would keep it for ever.
                self.client_shares.remove(options.client_key, subscription.channel)
                subscription.close()
                shared_tail.on_client_left(subscription.channel)
        shared_view = cast("ChannelKey", subscription.channel.key)[0]
        if view.filters is not shared_view.filters and view.size > MAX_UNCOUNTED_BYTES:
            # They are equal, and counted once.
            view = replace(view, filters=shared_view.filters)
        number = next(self._numbers) if handover is None else handover.number
        client = Client(
            self, shared_tail, subscription, wire, start, options,
            number=number, deadline=deadline, view=view,
        )  # fmt: skip
        if options.rate is not None:
            throttle = None if handover is None else handover.throttle
            client.limit_rate(RateLimiter.from_rate(options.rate, subscription, throttle))
        self.clients.add(client)
        subscription.traffic.opened += 1
        if self.draining:  # it began while this client was waiting above
            client.end(EndReason.DRAIN)
        return client

    def _get_ready_timeout(self, view: View) -> float:
        return max(self.topics.get_settings(name).partition_ready_timeout for name in view.topics)

    async def _create_subscription(
        self,
        shared_tail: SharedTail,
        view: View,
        start: StreamStart,
        wire: Wire,
        options: ClientOptions,
        deadline: float,
    ) -> Subscription:
        tail, token, handover = shared_tail.tail, start.token, options.handover
        until = None if handover is None else handover.until
        lineages = None if handover is None else handover.end_lineages
        if until is None and start.until is not None:
            lineages = tail.lineages  # as of the call: the answer may be of a topic that is gone
            until = await fetch_ends(self.backfill_reader.lookups, tail, start.until)
        positions: Position = {}
        has_history = token is not None or start.since is not None
        reads_partition = (
            await self.key_partitions.build_partition_predicate(view, token)
            if has_history
            else None
        )
        if token is not None:
            # A token with another topic id may also mean that our own metadata is outdated.
            if position_resolver.has_recreated_topic(token, tail):
                await self.cluster.metadata.refresh_until_certain(
                    tail.topic_ids, "a token has another topic id"
                )
            positions = position_resolver.build_position(token, tail)
            if token.max_age is not None:
                await self.token_verifier.check_history(token, positions, tail)
                # Again: a topic may have been deleted and created during the await, and positions
                # are compared with the topic ids that are known at this instant.
                positions = position_resolver.build_position(token, tail)
        elif start.since is not None:
            positions = await resolve_starts(
                self.backfill_reader, tail, start.since, deadline, reads_partition
            )
        terms = SubscriptionTerms(
            slow_policy=options.slow,
            end_offsets=until,
            end_lineages=lineages,
            max_records=start.max_records,
            credit=start.credit,
            resolve_since=token.issued if token else _to_epoch_seconds(start.since),
            snapshot=await self._create_snapshot(tail, view, start, positions, deadline),
            reads_partition=reads_partition,
            delivered_sum=None if handover is None else handover.delivered_sum,
            client_key=options.client_key,
        )
        return Subscription(
            # No await may follow: the sweep drops a channel that nobody follows yet.
            self.get_channel(
                shared_tail, self.token_verifier.bind_route(view, options.route), wire, options
            ),
            positions,
            terms,
            self.traffics.get_counts(options.route, wire.name),
        )

    async def _create_snapshot(
        self, tail: Tail, view: View, start: StreamStart, positions: Position, deadline: float
    ) -> Snapshot | None:
        """Return the snapshot that a client begins with; None if its start asks for none.

        A client that resumes is sent what it missed of the topics in its token. Other topics begin
        with their whole table, and their positions are added to `positions`.
        """
        if not start.snapshot:
            return None
        self.snapshots.check_cleanup_policies(view.topics)
        if start.token is None:
            return Snapshot(view.topics, set(positions), set(positions), view.filters)
        token_topics = start.token.match_topics(tail.topic_ids)
        fresh = await resolve_starts(
            self.backfill_reader,
            tail,
            TimestampStart(EARLIEST),
            deadline,
            lambda tp: tp.topic not in token_topics,
        )
        positions.update(fresh)
        return Snapshot(view.topics, set(positions), set(fresh), view.filters)

    # tails and channels

    def keep_open(self, view: View) -> SharedTail:
        """Return the tail of a view whose topics are open.

        They stay open for `linger_s` from now on, also without a client.
        """
        topics, interval = key = view.topics, view.interval
        shared_tail = self._tails.get(key)
        if shared_tail is None:
            reads = [read for name in topics for read in self.shared_reads.open_topic(name)]
            ids = {name: self.topics.get_id(name) for name in topics}
            logs = [read.log for read in reads]
            tail = Tail(self.cluster.cluster_id or "", logs, ids, is_conflated=interval is not None)
            on_unreadable = self.models.count_unreadable
            shared_tail = (
                SharedTail(tail, on_unreadable)
                if interval is None
                else SteppedTail(tail, interval, on_unreadable)
            )
            shared_tail.tracing = self.tracing
            self.shared_reads.attach_tail(shared_tail)
            self._tails[key] = shared_tail
            self.shared_reads.refresh_readiness(shared_tail)
        # On a quiet topic the last update may be long ago. If its time were the time of issue of
        # the client's first id, a resume would seem to come after a long absence (gap `compacted`).
        shared_tail.tail.set_issued(int(time.time()))
        return shared_tail

    def get_channel(
        self, shared_tail: SharedTail, view: View, wire: Wire, options: ClientOptions
    ) -> Channel:
        key = view, wire
        channel = shared_tail.channels.get(key)
        if channel is None:
            encoder = self.get_encoder(view, wire)
            topics_ending_on_loss = [
                name
                for name in view.topics
                if self.topics.get_settings(name).offset_out_of_range == "fail"
            ]
            channel = Channel(
                shared_tail.tail,
                self.token_verifier.create_seal(view),
                encoder,
                view.filters if view.filters.filters else None,
                parses_values=bool(view.fields or view.filters.pointers),
                topics_ending_on_loss=topics_ending_on_loss,
                ring_budget=self.rings,
            )
        self.client_shares.add(options.client_key, channel, view)  # first: it may refuse
        if key not in shared_tail.channels:
            shared_tail.add_channel(key, channel, view.filters)
        return channel

    def get_encoder(self, view: View, wire: Wire) -> Encoder:
        """Return the encoder of a view on a wire.

        Views that differ only in topics or filters share one. If they filter, and read the same
        topics, a record is encoded once for all of them.
        """
        decodes = any(map(self.models.has_model, view.topics))
        # Only this format tells the type of a value.
        decoded = self.models.select_decoded(view.topics if view.format == "cloudevents" else ())
        key = wire, view.format, view.binary, view.fields, decodes, decoded
        encoder = self._encoders.get(key)
        if encoder is None:
            format = create_format(view.format, binary=view.binary, fields=view.fields)
            if decodes:
                format = wrap_format(format, view.format, decoded)
            encoder = self._encoders[key] = wire.create_encoder(format)
        return encoder

    # maintenance

    async def _sweep_forever(self) -> None:
        has_failed = False
        while True:
            await asyncio.sleep(self.limits.sweep_interval_s)
            try:
                has_more = True
                while has_more:
                    has_more = self._remove_left_channels()
                    await asyncio.sleep(0)
                self.sweep(asyncio.get_running_loop().time())
                has_failed = False
            except Exception:  # the bound of memory, and that anything is ever closed, depend on it
                if not has_failed:
                    log.exception("the sweep of unused channels failed; it is tried again")
                has_failed = True

    async def _check_heartbeats_forever(self) -> None:
        took_s = 0.0
        while True:
            streams = [route.stream for route in self.settings.routes if route.is_stream]
            shortest = min([stream.heartbeat for stream in streams], default=1.0)
            interval = max(MIN_HEARTBEAT_CHECK_S, shortest / 4)
            # A million clients take half a second: they are checked as rarely as heartbeats allow.
            usual = max(MAX_HEARTBEAT_CHECK_S, HEARTBEAT_REST_FACTOR * took_s)
            await asyncio.sleep(min(usual, interval))
            took_s = await self._check_heartbeats()

    async def _check_heartbeats(self) -> float:
        """Check all clients once, in slices, and return how many seconds that took.

        The frame of its caller would keep the last client while it sleeps.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        scan, logs_states = LagScan(), state_logger.isEnabledFor(logging.DEBUG)
        for count, client in enumerate(self.clients, 1):
            try:
                client.check_heartbeat(now)
                # A client that takes nothing pushes nothing, and would not log that it falls
                # out of the ring.
                if logs_states and client.outlet is not None:
                    client.log_changes(is_full=client.outlet.full)
                # The check may have ended and closed it.
                if client.state is not None and client in self.clients:
                    scan.add_client(client)
            except Exception:  # the heartbeats of all others depend on this task
                log.exception("the heartbeat of a stream failed")
            if count % CLIENTS_PER_SLICE == 0 or scan.should_yield:
                await asyncio.sleep(0)
        self.behind = scan.behind
        return loop.time() - now

    def sweep(self, now: float) -> None:
        """Close what nobody uses any more, announce positions and bound memory."""
        self._used_at |= {name: now for topics, _ in self._tails for name in topics}
        held_topics = self.topics.held_topics
        for key, shared_tail in list(self._tails.items()):
            topics = key[0]
            if not shared_tail.is_idle:
                shared_tail.announce_positions(now)
                self._warn_of_long_ids(topics, shared_tail.tail)
            elif topics not in held_topics:
                self.shared_reads.detach_tail(shared_tail)
                del self._tails[key]
        self._used_at = {
            name: used_at
            for name, used_at in self._used_at.items()
            if now - used_at <= self.limits.linger_s
        }
        # Topics that no tail ever had are closed at once: their clients were refused, or left.
        unused = self.shared_reads.watched_topics - self._used_at.keys()
        for name in unused - self.topics.required_topics:
            self.topics.close_topic(name)
            self.snapshots.tables.drop_topic(name)
        self._long_id_topics = {
            topics for topics in self._long_id_topics if self._used_at.keys() >= {*topics}
        }
        self.shared_catch_ups.maintain(now)
        self._limit_memory(now)

    def _remove_left_channels(self) -> bool:
        """Remove channels that nobody follows any more; return whether there may be more."""
        for shared_tail in self.iter_tails():
            for channel in shared_tail.remove_left_channels(CHANNELS_PER_SLICE):
                self.broadcaster.remove_channel(channel)
        self._replaced_tails = [each for each in self._replaced_tails if each.channels]
        return any(shared_tail.has_left_channels for shared_tail in self.iter_tails())

    def _warn_of_long_ids(self, topics: tuple[str, ...], tail: Tail) -> None:
        """Warn, once per topic set in use, that proxies may refuse requests with such long ids."""
        if topics not in self._long_id_topics and len(tail.token_text) > self.limits.long_id_chars:
            self._long_id_topics.add(topics)
            log.warning(
                "ids of %s have %d characters; let proxies pass headers of 64 KB "
                "(nginx: large_client_header_buffers 4 64k), or give topics routes of their own",
                ", ".join(topics), len(tail.token_text),
            )  # fmt: skip

    def _on_log_growth(self, size: int) -> None:
        """Bound memory early if the logs grew a lot: 75 MB may arrive between two sweeps."""
        self._grown_bytes += size
        if self._grown_bytes > self.settings.memory // GROWTH_MEMORY_DIVISOR:
            self._limit_memory(asyncio.get_running_loop().time())

    def _limit_memory(self, now: float) -> None:
        """Drop old entries, and bound logs by their topic's `cache` and the process's `memory`.

        All logs of the process shrink by the same factor. Rings bound themselves (`RingBudget`).
        """
        self._grown_bytes = 0
        by_topic: dict[str, list[PartitionLog]] = {}
        for partition_log in self.logs:
            partition_log.expire(now)
            by_topic.setdefault(partition_log.tp.topic, []).append(partition_log)
        for name, topic_logs in by_topic.items():
            _shrink_logs(topic_logs, self.topics.get_settings(name).cache.bytes)
        backlog = self._measure_backlog()
        others_backlog = sum(
            hub.memory.get("backlog", 0)
            for hub in self.process_hubs
            if hub.started and hub is not self
        )
        if backlog + others_backlog > self._max_backlog_bytes:
            # Records that were read for clients that take nothing would keep all other clients
            # from reading. They can be read again later.
            stalled = [client for client in self.clients if client.state in _STALLED]
            self.shared_catch_ups.release_stalled(stalled)
            for client in stalled:
                if client.subscription.private_reader is not None:
                    client.subscription.private_reader.discard_buffer()
            self.backfill_reader.drop_cached_answers()
            backlog = self._measure_backlog()
        views = sum(
            shared_tail.view_bytes + shared_tail.tail.size for shared_tail in self.iter_tails()
        )
        self.memory = {
            "rings": self.rings.bytes,
            "tables": self.snapshots.tables.limit_snapshots(),
            "backlog": backlog,
            "writes": self.publisher.pending_bytes,
            "keys": self.publisher.idempotency_window.used_bytes,
            "views": views,
            "inflated": self.cluster.decompression_slot.held_bytes,
            "dictionaries": self.dictionaries.used_bytes,
        }
        if self.process_hubs[0] is self:  # what clients hold is of the process, not of a cluster
            self.memory |= self.client_memory.by_part
        # The other hubs' figures are those of their own last check, at most one sweep ago.
        hubs = [hub for hub in self.process_hubs if hub.started]
        self.backfill_reader.limit_reads(backlog + others_backlog > self._max_backlog_bytes)
        used = sum(sum(hub.memory.values()) for hub in hubs)
        pinned = sum(hub.memory.get(part, 0) for hub in hubs for part in PINNED_PARTS)
        self.is_full = pinned > self.settings.memory // PINNED_MEMORY_DIVISOR
        if self.is_full:
            if now - self._full_at > FULL_QUIET_PERIOD_S and self.process_hubs[0] is self:
                log.warning(
                    "clients are refused: more than half of `memory` cannot be freed (see "
                    "gateway_memory_bytes); logged again after %g s without it",
                    FULL_QUIET_PERIOD_S,
                )
            self._full_at = now
        # The logs are what can be freed at any time: they get what the other parts leave.
        logs = [partition_log for hub in hubs for partition_log in hub.logs]
        _shrink_logs(logs, max(0, self.settings.memory - used))

    @property
    def _max_backlog_bytes(self) -> int:
        return self.settings.memory // BACKLOG_MEMORY_DIVISOR

    def _measure_backlog(self) -> int:
        """Return the bytes of records that are kept for clients for which they were read."""
        readers = [
            reader for shared_tail in self.iter_tails() for reader in shared_tail.tail.readers
        ]
        shared = {id(answer): answer.bytes for answer in self.backfill_reader.cached_answers}
        shared.update(itertools.chain.from_iterable(reader.shared_sizes for reader in readers))
        return (
            self.shared_catch_ups.size
            + sum(reader.own_bytes for reader in readers)
            + sum(shared.values())
        )

    def _limit_clients(self) -> None:
        limit = self.client_memory.limit = self.settings.memory // PINNED_MEMORY_DIVISOR
        limits = self.settings.listen.limits
        # Without limits of one client, one address may be a proxy with all clients behind it.
        has_limits = limits.per_address or limits.per_identity
        self.client_shares.max_bytes = limit // SHARE_DIVISOR if has_limits else None

    def _set_ring_limit(self) -> None:
        self.rings.limit = self.settings.memory // RINGS_MEMORY_DIVISOR // len(self.process_hubs)

    def iter_tails(self) -> Iterator[SharedTail]:
        return itertools.chain(self._tails.values(), self._replaced_tails)

    def _iter_channels(self) -> Iterator[Channel]:
        return (
            channel
            for shared_tail in self.iter_tails()
            for channel in shared_tail.channels.values()
        )

    @property
    def logs(self) -> list[PartitionLog]:
        return [read.log for read in self.shared_reads.by_partition.values()]


def _shrink_logs(logs: Sequence[PartitionLog], max_bytes: int) -> None:
    total = sum(partition_log.bytes for partition_log in logs)
    if total > max_bytes:
        for partition_log in logs:
            partition_log.shrink(int(partition_log.bytes * max_bytes / total))


def _to_epoch_seconds(since: TimestampStart | None) -> int | None:
    """Return a start by time in seconds since 1970, for ids while a partition is pending."""
    return None if since is None else max(0, since.timestamp) // 1000
