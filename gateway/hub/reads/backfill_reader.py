"""Read privately from Kafka: for clients behind what the logs hold, and for starts by time.

A partition has one read at a time, and a broker one fetch, however many clients wait: an answer
goes to all whose offset it covers, and the connection of the live tail is not used. Where n clients
come back from n offsets that one answer can cover, about ln(n) reads serve them all. Clients take
turns by identity or address: each may have any number of streams, from offsets that it makes up. A
read that meets an offset out of range recovers as the shared read would. Starts by time are asked
for beside the reads: clients choose any number of them, which no answer serves together.

An answer is handed out in slices, between which the event loop runs: it may have 100,000 entries,
and 1,000 clients may wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from time import perf_counter
from typing import NamedTuple

from gateway.background_tasks import BackgroundTasks
from gateway.config import Topic
from gateway.core.client.read_buffer import EntryRun, ReadAnswer
from gateway.core.client.terms import ClientKey
from gateway.core.error_code import ErrorCode
from gateway.core.log.partition_reader import (
    EpochEndCommand,
    ListOffsetCommand,
    OffsetStart,
    PartitionReader,
    Start,
)
from gateway.core.log.record import (
    NO_EPOCH,
    REWIND_REASONS,
    Entry,
    Fault,
    Gap,
    PartitionPosition,
    Ready,
    TopicPartition,
)
from gateway.core.log.recovery import cause_from_code
from gateway.hub.wires.models import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    EpochEnd,
    OffsetAndTimestamp,
)
from gateway.kafka.fetch.fetcher import Fetcher, TopicModel, get_no_model

from .leader_queries import LeaderLookups
from .shared_reads import create_reader

log = logging.getLogger(__name__)

MAX_WAIT_S = 0.1  # seconds that a broker may hold a fetch back; what is asked for is there already
# Seconds for which an answer is kept for other clients that return from about the same place.
CACHE_TTL_S = 2.0
SLICE_S = 0.002  # seconds of work on an answer before other tasks get a turn
ENTRIES_PER_CLOCK_CHECK = 512  # entries from one look at the clock to the next: 0.1 ms
# Clients that are answered before other tasks get a turn; what each then does takes 20 us or more.
REQUESTS_PER_SLICE = 64


class _Version(NamedTuple):
    """The log that an answer is of: clients share it only if theirs is the same.

    Attributes:
        leader: Its leader and leader epoch; None if it has no leader.
        topic_id: Empty if unknown. A topic that is created again begins with the same epochs, and
            its logs here with the same lineage if it was not read.
    """

    lineage: int
    leader: tuple[int, int] | None
    topic_id: str
    topic: Topic


@dataclass(eq=False, slots=True)
class _ReadRequest:
    """A read that one client waits for.

    `postponed` is how often it was put behind all that waited, for its clients had had a turn.
    """

    start: OffsetStart
    version: _Version
    client_keys: frozenset[str]
    result: asyncio.Future[EntryRun]
    postponed: int = 0


class _CachedRead(NamedTuple):
    """An answer for other clients, as far as they may have it, with the topic's transforms applied.

    `version` is of the log before the read: others use the answer only while theirs is the same.
    `read_at` is by the loop's clock.
    """

    version: _Version
    read_at: float
    answer: ReadAnswer


def _select_shared(answer: ReadAnswer) -> ReadAnswer:
    """Return the part of an answer that others may have: it precedes a gap that goes back.

    The rest is of the log's next lineage, and only who gets the gap knows that. Readers return
    gaps of that kind before all records.
    """
    for index, entry in enumerate(answer.entries):
        if type(entry) is not Gap:
            break
        if entry.reason in REWIND_REASONS:
            return ReadAnswer(answer.entries[:index])
    return answer


class BackfillReader:
    """Read from Kafka for single clients, one read per partition at a time.

    `Hub` creates and closes it. Between calls, a partition is in `_readers` as long as it has a
    queue: the first request is being read, or an answer is being handed out. `read_counts` is by
    topic and by where the answer came from: `held`, `joined` or `kafka`.
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
        self.lookups = LeaderLookups(cluster)
        self._queues: dict[TopicPartition, dict[asyncio.Future[EntryRun], _ReadRequest]] = {}
        # None while an answer is being handed out.
        self._readers: dict[TopicPartition, PartitionReader | None] = {}
        self._tasks = BackgroundTasks(log)
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def close(self) -> None:
        # At once, so that nothing more is begun or answered while the tasks end.
        self._tasks.cancel()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for result in queue:
                result.cancel()
        await self.fetcher.close()
        await self.lookups.close()
        await self._tasks.close()

    @property
    def cached_answers(self) -> Iterator[ReadAnswer]:
        return (cached.answer for cached in self._cache.values())

    def drop_cached_answers(self) -> None:
        self._cache.clear()

    def limit_reads(self, is_full: bool) -> None:
        """Hold reads back while clients have not taken too much of them; drop outdated answers."""
        now = asyncio.get_running_loop().time()
        for tp in [tp for tp, cached in self._cache.items() if now - cached.read_at > CACHE_TTL_S]:
            del self._cache[tp]
        if is_full:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def read(
        self, tp: TopicPartition, position: PartitionPosition, client_key: ClientKey = ""
    ) -> EntryRun:
        """Return some entries from a position on. It waits as long as Kafka takes.

        `client_key` is as in `SubscriptionTerms`; the gateway's own reads have an empty one.
        """
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
        run = self._find_cached(tp, position.offset, version)
        if run is None:
            start = OffsetStart(position.offset, position.epoch)
            client_keys = frozenset((client_key,)) if isinstance(client_key, str) else client_key
            return await self._request_read(tp, start, version, client_keys)
        self.read_counts[tp.topic, "held"] += 1
        return run

    async def resolve_start(self, tp: TopicPartition, start: Start) -> PartitionPosition:
        """Return the position of a start, as the shared read would find it."""
        topic, loop = self._get_topic_settings(tp.topic), asyncio.get_running_loop()
        is_committed = topic.isolation == "read_committed"
        isolation = READ_COMMITTED if is_committed else READ_UNCOMMITTED
        reader = create_reader(tp, start, topic)
        while reader.position.offset is None:
            leader, epoch = self._cluster.leader_for_partition(tp) or (None, NO_EPOCH)
            reader.on_leader_change(leader, epoch, loop.time())
            command = reader.next_command(loop.time())
            answer: OffsetAndTimestamp | EpochEnd | int | None = ErrorCode.LEADER_NOT_AVAILABLE
            if isinstance(command, ListOffsetCommand):
                answer = await self.lookups.find_offset(tp, command.timestamp, isolation)
            elif isinstance(command, EpochEndCommand):
                answer = await self.lookups.find_epoch_end(tp, command.epoch)
            now = loop.time()
            if isinstance(answer, OffsetAndTimestamp):
                offset = None if answer.offset < 0 else answer.offset
                reader.on_list_offsets(offset, answer.epoch, now)
            elif isinstance(answer, EpochEnd):
                reader.on_epoch_end(answer.epoch, answer.end_offset, now)
            else:
                reader.on_error(cause_from_code(answer or ErrorCode.NETWORK_EXCEPTION), now)
                await asyncio.sleep(reader.retry_at - now)
        return reader.position

    def _find_cached(self, tp: TopicPartition, offset: int, version: _Version) -> EntryRun | None:
        # Not in `read`, whose frame would keep the whole answer for as long as its client waits.
        cached = self._cache.get(tp)
        if cached is None or cached.version != version:
            return None
        return cached.answer.find_run(offset)

    async def _request_read(
        self, tp: TopicPartition, start: OffsetStart, version: _Version, client_keys: frozenset[str]
    ) -> EntryRun:
        future: asyncio.Future[EntryRun] = asyncio.get_running_loop().create_future()
        request = _ReadRequest(start, version, client_keys, future)
        self._queues.setdefault(tp, {})[future] = request
        if tp not in self._readers:  # else it is this one's turn later
            self._start_next(tp)
        try:
            return await future
        finally:
            # The client went away: do not read for nobody, and do not block the queue.
            if not future.done() or future.cancelled():
                self._cancel_request(tp, future)

    def _start_next(self, tp: TopicPartition) -> None:
        queue = self._queues.get(tp)
        if not queue:
            self._queues.pop(tp, None)
            self._readers.pop(tp, None)
            return
        topic, first = self._get_topic_settings(tp.topic), next(iter(queue.values()))
        # The next turn of its clients is after those of all others that wait. A request that was
        # postponed more often stays: so it is postponed only by requests that are older than it,
        # and not for ever by crowds that its client is in, too, which ask again and again.
        for request in list(queue.values()):
            if request is first or request.postponed > first.postponed:
                continue
            if request.client_keys <= first.client_keys:
                request.postponed += 1
                queue[request.result] = queue.pop(request.result)
        reader = self._readers[tp] = create_reader(tp, first.start, topic)
        # If the topic was created again since, the client gets the gap of that.
        reader.on_topic_id(first.version.topic_id)
        self.fetcher.add_partition(reader, read_committed=topic.isolation == "read_committed")

    def _on_entries(self, reader: PartitionReader, entries: Sequence[Entry]) -> None:
        queue = self._queues.get(reader.tp)
        if not queue or self._readers.get(reader.tp) is not reader:
            return
        first = next(iter(queue.values()))
        # A `Fault` answers nothing: who waits here waits as long as Kafka takes. Readers return
        # what is neither record nor gap before the others.
        wanted = list(dropwhile(lambda entry: isinstance(entry, Ready | Fault), entries))
        if not wanted:
            return
        # One answer is enough: what follows is read when somebody asks for it.
        self.fetcher.remove_partition(reader.tp)
        self._readers[reader.tp] = None
        self.read_counts[reader.tp.topic, "kafka"] += 1
        self._tasks.start(
            self._hand_out(reader.tp, first, wanted), f"answering reads of {reader.tp}"
        )

    async def _hand_out(
        self, tp: TopicPartition, first: _ReadRequest, entries: Sequence[Entry]
    ) -> None:
        """Hand out the answer of a read for the request `first`, and then begin the next read."""
        try:
            await self._answer_requests(tp, first, entries)
        except Exception as error:  # nobody expects one; its client must not wait for ever
            if self._queues[tp].pop(first.result, None) is None or first.result.done():
                raise
            first.result.set_exception(error)
        finally:
            self._start_next(tp)

    async def _answer_requests(
        self, tp: TopicPartition, first: _ReadRequest, entries: Sequence[Entry]
    ) -> None:
        """Answer all requests that an answer serves; the others are read afterwards."""
        answer = await self._build_answer(first.version, entries)
        shared, now = _select_shared(answer), asyncio.get_running_loop().time()
        self._cache[tp] = _CachedRead(first.version, now, shared)
        whole, queue = answer.get_run(), self._queues[tp]
        for count, request in enumerate(list(queue.values())):
            if count % REQUESTS_PER_SLICE == REQUESTS_PER_SLICE - 1:
                await asyncio.sleep(0)
            run: EntryRun | None = None
            if request.version == first.version:
                is_same = request.start == first.start
                run = whole if is_same else shared.find_run(request.start.offset)
            # It may be cancelled by now, and leaves the queue by itself.
            if run is None or request.result.done():
                continue
            del queue[request.result]
            if request is not first:
                self.read_counts[tp.topic, "joined"] += 1
            request.result.set_result(run)

    async def _build_answer(self, version: _Version, entries: Sequence[Entry]) -> ReadAnswer:
        transforms = version.topic.transforms
        transformer = Transformer(transforms) if transforms else None
        answer, slice_end = ReadAnswer(), perf_counter() + SLICE_S
        for index in range(0, len(entries), ENTRIES_PER_CLOCK_CHECK):
            part = entries[index : index + ENTRIES_PER_CLOCK_CHECK]
            answer.extend(part if transformer is None else map(transformer, part))
            if perf_counter() > slice_end:
                await asyncio.sleep(0)
                slice_end = perf_counter() + SLICE_S
        return answer

    def _cancel_request(self, tp: TopicPartition, result: asyncio.Future[EntryRun]) -> None:
        """Forget a request that is cancelled; if it was being read, begin the next one."""
        queue = self._queues.get(tp)
        if not queue:
            return
        is_first = result is next(iter(queue))
        queue.pop(result, None)
        if is_first and self._readers[tp] is not None:
            self.fetcher.remove_partition(tp)
            self._start_next(tp)
