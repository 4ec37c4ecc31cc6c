"""Private reads from Kafka: for clients behind what the logs hold, and for starts by time.

One read of a partition at a time, and one fetch of a broker, however many clients wait:
those who want the same offsets share the answer, and nobody takes the live tail's
connection. A read that meets an offset out of range recovers as the shared read would.
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
from gateway.core.log.record import Entry, Fault, Gap, Ready, TopicPartition
from gateway.hub.wires.transform import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.fetch.topic_model import TopicModel, get_no_model

from .shared_reads import create_reader

MAX_WAIT_S = 0.1  # seconds; what is asked for is there already
CACHE_TTL_S = 2.0  # seconds for which an answer is kept for others who come back from about there


class _ReadRequest(NamedTuple):
    start: Start
    result: asyncio.Future[Sequence[Entry]]


class _CachedRead(NamedTuple):
    """What was read of a partition. of: the lineage of its log, and its leader and epoch: a log
    that went back since has others; and the options of its topic, whose transforms were applied."""

    version: tuple[int, tuple[int, int] | None, Topic]
    read_at: float
    entries: Sequence[Entry]

    def find_entries(self, offset: int) -> Sequence[Entry]:
        """What follows an offset, if it was read from there on."""
        entries = self.entries
        if not entries or not entries[0].offset <= offset < entries[-1].next_offset:
            return ()
        found = entries[bisect_right(entries, offset, key=lambda entry: entry.next_offset) :]
        first = found[0]
        if type(first) is Gap and first.offset < offset:
            return [first._replace(offset=offset), *found[1:]]
        return found


class BackfillReader:
    """topic: the settings of a topic, by name. understand: how its entries are understood."""

    def __init__(
        self,
        cluster: Cluster,
        get_topic_settings: Callable[[str], Topic],
        get_topic_model: Callable[[str], TopicModel | None] = get_no_model,
    ) -> None:
        self._get_topic_settings = get_topic_settings
        self._cluster = cluster
        self.read_counts: Counter[tuple[str, str]] = Counter()  # reads, by topic and who answered
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
        await self.fetcher.close()
        for wanted in self._queues.values():
            for one in wanted:
                one.result.cancel()

    def limit_reads(self, is_full: bool) -> None:
        """Hold reads back while clients have too much in hand that they did not take yet."""
        now = asyncio.get_running_loop().time()
        for tp in [tp for tp, held in self._cache.items() if now - held.read_at > CACHE_TTL_S]:
            del self._cache[tp]
        if is_full:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def read(self, tp: TopicPartition, place: PartitionPosition) -> Sequence[Entry]:
        """Some entries from a place on: at least one. Waits as long as Kafka takes."""
        assert place.offset is not None
        await self._may_read.wait()
        topic = self._get_topic_settings(tp.topic)
        of = place.lineage, self._cluster.leader_for_partition(tp), topic
        held = self._cache.get(tp)
        if held is not None and held.version == of and (found := held.find_entries(place.offset)):
            self.read_counts[tp.topic, "held"] += 1
            return found
        entries = await self._request_read(tp, OffsetStart(place.offset, place.epoch))
        if topic.transforms:
            entries = list(map(Transformer(topic.transforms), entries))
        self._cache[tp] = _CachedRead(of, asyncio.get_running_loop().time(), entries)
        return entries

    async def resolve_start(self, tp: TopicPartition, start: Start) -> PartitionPosition:
        """The offset of a start, as the shared read would find it."""
        (ready,) = await self._request_read(tp, start)
        return PartitionPosition(ready.next_offset, ready.epoch)

    async def _request_read(self, tp: TopicPartition, start: Start) -> Sequence[Entry]:
        answer: asyncio.Future[Sequence[Entry]] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(tp, deque())
        queue.append(_ReadRequest(start, answer))
        if len(queue) == 1:
            self._start_next(tp)
        try:
            return await answer
        finally:
            if not answer.done() or answer.cancelled():
                self._cancel_request(tp, answer)

    def _start_next(self, tp: TopicPartition) -> None:
        queue = self._queues.get(tp)
        if not queue:
            self._queues.pop(tp, None)
            self._readers.pop(tp, None)
            return
        topic = self._get_topic_settings(tp.topic)
        reading = self._readers[tp] = create_reader(tp, queue[0].start, topic)
        self.fetcher.add_partition(reading, read_committed=topic.isolation == "read_committed")

    def _on_entries(self, reader: PartitionReader, entries: Sequence[Entry]) -> None:
        queue = self._queues.get(reader.tp)
        if not queue or self._readers.get(reader.tp) is not reader:
            return
        asked = queue[0].start
        found: list[Entry]
        if isinstance(asked, OffsetStart):
            found = [entry for entry in entries if not isinstance(entry, Ready | Fault)]
        else:
            found = [entry for entry in entries if isinstance(entry, Ready)]
        if found:
            self._resolve_requests(reader.tp, asked, found)

    def _resolve_requests(self, tp: TopicPartition, start: Start, entries: Sequence[Entry]) -> None:
        self.fetcher.remove_partition(tp)
        queue = self._queues[tp]
        for n, wanted in enumerate(list(queue)):
            if wanted.start == start:
                self.read_counts[tp.topic, "joined" if n else "kafka"] += 1
                queue.remove(wanted)
                if not wanted.result.done():
                    wanted.result.set_result(entries)
        self._start_next(tp)

    def _cancel_request(self, tp: TopicPartition, result: asyncio.Future[Sequence[Entry]]) -> None:
        queue = self._queues.get(tp)
        if not queue:
            return
        first = queue[0]
        self._queues[tp] = deque(wanted for wanted in queue if wanted.result is not result)
        if first.result is result:
            self.fetcher.remove_partition(tp)
            self._start_next(tp)
