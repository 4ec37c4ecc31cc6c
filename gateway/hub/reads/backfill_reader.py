"""Read privately from Kafka: for clients behind what the logs hold, and for starts by time.

A partition has one read at a time, and a broker one fetch, however many clients wait: an answer
goes to all whose offset it covers, and the connection of the live tail is not used. Where n clients
come back from n offsets that one answer can cover, about ln(n) reads serve them all. A read that
meets an offset out of range recovers as the shared read would.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.config import Topic
from gateway.core.log.partition_reader import OffsetStart, PartitionReader, Start
from gateway.core.log.position import PartitionPosition
from gateway.core.log.record import (
    REWIND_REASONS,
    Entry,
    Fault,
    Gap,
    GapReason,
    Ready,
    TopicPartition,
)
from gateway.hub.wires.transform import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.fetch.topic_model import TopicModel, get_no_model

from .shared_reads import create_reader

MAX_WAIT_S = 0.1  # seconds that a broker may hold a fetch back; what is asked for is there already
# Seconds for which an answer is kept for other clients that return from about the same place.
CACHE_TTL_S = 2.0


class _Version(NamedTuple):
    """Identify the log that an answer is of: clients share it only if theirs is the same.

    Attributes:
        lineage: The lineage of the log.
        leader: Its leader and leader epoch; None if it has no leader.
        topic_id: The id of the topic; empty if it is unknown. A topic that is created again begins
            with the same epochs, and its logs here with the same lineage if it was not read.
        topic: The settings of the topic.
    """

    lineage: int
    leader: tuple[int, int] | None
    topic_id: str
    topic: Topic


class _ReadRequest(NamedTuple):
    """Describe what one client waits for.

    Attributes:
        start: Where to read.
        version: Of the log when the client asked; None if only the start is to be resolved.
        result: What was read.
    """

    start: Start
    version: _Version | None
    result: asyncio.Future[Sequence[Entry]]


# A gap of these reasons says the same of every offset in it. The other ones are true only for the
# position that they were found for: `skipped` also spans records that Kafka still has.
_SHARED_GAP_REASONS = frozenset({GapReason.RETENTION, GapReason.CORRUPT})


class _CachedRead(NamedTuple):
    """Hold what was read of a partition.

    Attributes:
        version: Of the log before it was read: others use it only while theirs is the same.
        read_at: When it was read, by the loop's clock.
        entries: What was read, with the topic's transforms applied.
    """

    version: _Version
    read_at: float
    entries: Sequence[Entry]

    def find_entries(self, offset: int) -> Sequence[Entry]:
        """Return the entries from an offset on; empty if it does not cover the offset.

        The offset may be another one than was asked for.
        """
        entries = self.entries
        if not entries or not entries[0].offset <= offset < entries[-1].next_offset:
            return ()
        following = entries[bisect_right(entries, offset, key=lambda entry: entry.next_offset) :]
        first = following[0]
        if type(first) is Gap:
            if first.reason not in _SHARED_GAP_REASONS:
                return ()
            # A gap may span the offset: only the part after it concerns this client.
            if first.offset < offset:
                return [first._replace(offset=offset), *following[1:]]
        return following


def _select_shared(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return what others may have of an answer: what precedes a gap that goes back.

    What follows is of the log's next lineage, and only who gets the gap knows that. Readers return
    gaps of that kind before all records.
    """
    for index, entry in enumerate(entries):
        if type(entry) is not Gap:
            break
        if entry.reason in REWIND_REASONS:
            return entries[:index]
    return entries


class BackfillReader:
    """Read from Kafka for single clients, one read per partition at a time.

    `Hub` creates and closes it. Requests for a partition are queued; the first one in a queue is
    being read, and its answer also goes to the others that asked for the same start.

    Args:
        cluster: The cluster to read from.
        get_topic_settings: Returns the settings of a topic.
        get_topic_model: Returns what decodes the entries of a topic; None if nothing does.

    Attributes:
        read_counts: The number of reads by topic and by where the answer came from: `held`,
            `joined` or `kafka`.
        fetcher: Fetches what the readers need.
    """

    def __init__(
        self,
        cluster: Cluster,
        get_topic_settings: Callable[[str], Topic],
        get_topic_model: Callable[[str], TopicModel | None] = get_no_model,
    ) -> None:
        self._get_topic_settings = get_topic_settings
        self._cluster = cluster
        self.read_counts: Counter[tuple[str, str]] = Counter()
        self._cache: dict[TopicPartition, _CachedRead] = {}
        self.fetcher = Fetcher(
            cluster,
            self._on_entries,
            role=ConnectionRole.CATCHUP,
            max_wait=MAX_WAIT_S,
            get_topic_model=get_topic_model,
        )
        self._queues: dict[TopicPartition, deque[_ReadRequest]] = {}
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def close(self) -> None:
        """Stop fetching, and cancel those who wait."""
        await self.fetcher.close()
        for queue in self._queues.values():
            for request in queue:
                request.result.cancel()

    def limit_reads(self, is_full: bool) -> None:
        """Hold reads back while clients have read too much that they did not take yet.

        It is called by the sweep of the hub, and also drops answers that are no longer kept.
        """
        now = asyncio.get_running_loop().time()
        for tp in [tp for tp, cached in self._cache.items() if now - cached.read_at > CACHE_TTL_S]:
            del self._cache[tp]
        if is_full:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def read(self, tp: TopicPartition, position: PartitionPosition) -> Sequence[Entry]:
        """Return some entries from a position on: at least one. It waits as long as Kafka takes."""
        assert position.offset is not None
        await self._may_read.wait()
        # As of before the read: if the leader changes meanwhile, the answer is of no use to others.
        metadata = self._cluster.get_topic(tp.topic)
        version = _Version(
            position.lineage,
            self._cluster.leader_for_partition(tp),
            "" if metadata is None else str(metadata.topic_id or ""),
            self._get_topic_settings(tp.topic),
        )
        cached = self._cache.get(tp)
        if (
            cached is not None
            and cached.version == version
            and (cached_entries := cached.find_entries(position.offset))
        ):
            self.read_counts[tp.topic, "held"] += 1
            return cached_entries
        return await self._request_read(tp, OffsetStart(position.offset, position.epoch), version)

    async def resolve_start(self, tp: TopicPartition, start: Start) -> PartitionPosition:
        """Return the position of a start, as the shared read would find it."""
        (ready,) = await self._request_read(tp, start, None)
        return PartitionPosition(ready.next_offset, ready.epoch)

    async def _request_read(
        self, tp: TopicPartition, start: Start, version: _Version | None
    ) -> Sequence[Entry]:
        """Queue a read and return its answer."""
        future: asyncio.Future[Sequence[Entry]] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(tp, deque())
        queue.append(_ReadRequest(start, version, future))
        if len(queue) == 1:  # else the partition is being read: it is this one's turn later
            self._start_next(tp)
        try:
            return await future
        finally:
            # The client went away: do not read for nobody, and do not block the queue.
            if not future.done() or future.cancelled():
                self._cancel_request(tp, future)

    def _start_next(self, tp: TopicPartition) -> None:
        """Begin the first read in the queue of a partition."""
        queue = self._queues.get(tp)
        if not queue:
            self._queues.pop(tp, None)
            self._readers.pop(tp, None)
            return
        topic, version = self._get_topic_settings(tp.topic), queue[0].version
        reader = self._readers[tp] = create_reader(tp, queue[0].start, topic)
        if version is not None:  # if the topic was created again since, the client gets that gap
            reader.on_topic_id(version.topic_id)
        self.fetcher.add_partition(reader, read_committed=topic.isolation == "read_committed")

    def _on_entries(self, reader: PartitionReader, entries: Sequence[Entry]) -> None:
        queue = self._queues.get(reader.tp)
        if not queue or self._readers.get(reader.tp) is not reader:
            return
        version = queue[0].version
        wanted: list[Entry]
        # A read at an offset wants records and gaps; any other start wants to know its offset. A
        # `Fault` answers nothing: who waits here waits as long as Kafka takes.
        if version is not None:
            wanted = [entry for entry in entries if not isinstance(entry, Ready | Fault)]
        else:
            wanted = [entry for entry in entries if isinstance(entry, Ready)]
        if not wanted:
            return
        # One answer is enough: what follows is read when somebody asks for it.
        self.fetcher.remove_partition(reader.tp)
        if version is None:
            self._resolve_requests(reader.tp, wanted, None)
        else:
            if transforms := version.topic.transforms:
                wanted = list(map(Transformer(transforms), wanted))
            cached = _CachedRead(version, asyncio.get_running_loop().time(), _select_shared(wanted))
            self._cache[reader.tp] = cached
            self._resolve_requests(reader.tp, wanted, cached)
        self._start_next(reader.tp)

    def _resolve_requests(
        self, tp: TopicPartition, entries: Sequence[Entry], cached: _CachedRead | None
    ) -> None:
        """Hand an answer to the first in the queue, and to all others that it serves.

        Args:
            tp: The partition.
            entries: What was read for the first.
            cached: The same as others get it if they read; None if it is where a start is.
        """
        queue = self._queues[tp]
        first, waiting = queue[0], deque[_ReadRequest]()
        for request in queue:
            answer: Sequence[Entry] = ()
            if request.start == first.start and request.version == first.version:
                answer = entries
            elif cached is not None and request.version == cached.version:
                assert isinstance(request.start, OffsetStart)
                answer = cached.find_entries(request.start.offset)
            if not answer:
                waiting.append(request)
                continue
            self.read_counts[tp.topic, "kafka" if request is first else "joined"] += 1
            if not request.result.done():
                request.result.set_result(answer)
        self._queues[tp] = waiting

    def _cancel_request(self, tp: TopicPartition, result: asyncio.Future[Sequence[Entry]]) -> None:
        """Forget a request that is cancelled; if it was being read, begin the next one."""
        queue = self._queues.get(tp)
        if not queue:
            return
        first = queue[0]
        self._queues[tp] = deque(request for request in queue if request.result is not result)
        if first.result is result:
            self.fetcher.remove_partition(tp)
            self._start_next(tp)
