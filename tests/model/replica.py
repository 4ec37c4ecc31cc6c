"""One gateway without its loop: the core, driven as the hub and the fetchers drive it.

Every question to Kafka is an `Ask`, and is sent, answered and delivered in separate steps,
so that answers come late, out of order, or to a reading that has moved on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from support.per_event_encoder import PerEventEncoder

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import ChannelEvent, CountedBytes, RingBudget
from gateway.core.channel.dispatcher import ChannelDispatcher
from gateway.core.channel.filters import Filter, Filters
from gateway.core.client.read_buffer import ReadAnswer
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import (
    Command,
    EpochEndCommand,
    FetchResult,
    LiveStart,
    OffsetStart,
    OutOfRangePolicy,
    PartitionReader,
)
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Ready,
    Record,
    TopicPartition,
)
from gateway.core.log.recovery import Backoff, Cause
from gateway.core.token.resume_token import parse_token
from gateway.wire.gzip import Crc32Sum

from .simulation import (
    TOPIC,
    EpochEndAnswer,
    ListedOffset,
    Metadata,
    RefusedAnswer,
    SimulatedBrokers,
)

START_TIME_S = 1_700_000_000  # the wall clock when the model's starts
CLOCK_SKEW_MS = 2_000  # milliseconds that producers' clocks may be behind
KEY = b"a"  # what the filtered channel lets through
KEY_FILTERS = Filters((Filter(key=KEY),))


class ModelEncoder(PerEventEncoder):
    """Events short enough to be many, and counted: what every client got is checked by its sum."""

    def encode_events(self, events: Iterable[ChannelEvent], view_digest: bytes) -> bytes:
        data = super().encode_events(events, view_digest)
        return CountedBytes.create(data, Crc32Sum.from_bytes(data)) if data else data

    def encode_entry(self, entry: Entry) -> bytes | None:
        kind, p = type(entry), entry.tp.partition
        if kind is Record:
            return b"data: r %d %d %b\n" % (p, entry.offset, entry.value)
        if kind is Gap:
            told = (p, entry.offset, entry.next_offset, entry.reason.encode())
            return b"event: gap\ndata: g %d %d %d %b\n" % told
        if kind is Ready:
            return b"event: ready\ndata: y %d %d\n" % (p, entry.next_offset)
        return None

    def encode_position(self) -> bytes:
        return b"event: position\ndata: {}\n"

    def encode_event_end(self, token: bytes | None) -> bytes:
        return b"\n" if token is None else b"id: %b\n\n" % token


class PendingRequest:
    """A question that is under way. `then` takes the answer, unless it is unwanted by then."""

    def __init__(
        self, tp: TopicPartition, command: Command, on_answer: Callable[[Any], None], owner: Any
    ):
        self.tp, self.command, self.on_answer, self.owner = tp, command, on_answer, owner
        self.incarnation = 0
        self.epoch = 0
        self.answer: object = None


class ReaderJob:
    """A reading, and the question it waits for."""

    def __init__(self, reader: PartitionReader, sink: Callable[[Sequence[Entry]], None]) -> None:
        self.reader, self.sink = reader, sink
        self.pending_request: PendingRequest | None = None
        self.is_done = False


class Replica:
    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number = world, number
        self.kafka: SimulatedBrokers = world.kafka
        self.requests: list[PendingRequest] = []
        self.policy: OutOfRangePolicy = world.policy
        self.metadata: Metadata = self.kafka.metadata[-1]
        self.jobs: dict[TopicPartition, ReaderJob] = {}
        self.private_jobs: dict[tuple[Subscription, TopicPartition], ReaderJob] = {}
        self.verifications: dict[tuple[Subscription, TopicPartition], PendingRequest] = {}
        self.entries: list[Entry] = []
        self.judged_starts: dict[
            TopicPartition, Ready
        ] = {}  # live starts, as of when they were found
        self.started_at = world.now
        logs = [
            self._open_partition(TopicPartition(TOPIC, p)) for p in range(self._count_partitions())
        ]
        self.tail = world.tail_class("cluster", logs, {TOPIC: self.metadata.topic_id})
        fails = [TOPIC] if self.policy is OutOfRangePolicy.FAIL else []
        encoder, size = ModelEncoder(), world.ring
        self.channels = [
            Channel(
                self.tail,
                b"all--",
                encoder,
                None,
                ring_budget=RingBudget(max_ring_bytes=size),
                topics_ending_on_loss=fails,
            ),
            Channel(
                self.tail,
                b"keyed",
                encoder,
                KEY_FILTERS.matches,
                ring_budget=RingBudget(max_ring_bytes=size),
                topics_ending_on_loss=fails,
            ),
        ]
        self.spread = ChannelDispatcher(self.tail)
        for channel, filters in zip(self.channels, (Filters(), KEY_FILTERS), strict=True):
            self.spread.add(channel, filters)

    def _count_partitions(self) -> int:
        return len(self.metadata.partitions)

    def _open_partition(self, tp: TopicPartition, start: Any = None) -> PartitionLog:
        known = self.metadata.partitions[tp.partition]
        if start is None:
            start = self._build_live_start(self.world.now, known.epoch, not known.has_leader)
        job = ReaderJob(self._build_reader(tp, start), self._queue_entries)
        self.jobs[tp] = job
        self._apply_metadata(job)
        return PartitionLog(tp, self.world.cache, 1e9)

    def _build_live_start(self, born: float, epoch: int, leaderless: bool) -> LiveStart:
        return LiveStart(int((START_TIME_S + born) * 1000), born, epoch, leaderless, CLOCK_SKEW_MS)

    def _build_reader(self, tp: TopicPartition, start: Any) -> PartitionReader:
        return PartitionReader(tp, start, self.policy, Backoff(1.0, self.world.random))

    # metadata

    def refresh_metadata(self, age: int) -> None:
        """Ask a broker for metadata; it may be behind."""
        known = self.kafka.metadata
        answer = known[max(0, len(known) - 1 - age)]
        if answer.incarnation != self.metadata.incarnation:
            if answer.incarnation < self.metadata.incarnation:
                return  # an id that was left behind never comes back
            self.metadata = answer
            self.tail.set_topic_id(TOPIC, answer.topic_id)
            for sub in self._list_followers():
                self.drop_unverified(sub)
        else:
            before = self.metadata.partitions
            merged = tuple(
                new if new.epoch >= old.epoch else old
                for old, new in zip(before, answer.partitions, strict=False)
            )
            longer = max(before, answer.partitions, key=len)
            self.metadata = Metadata(
                answer.topic_id, answer.incarnation, merged + longer[len(merged) :]
            )
        for p in range(self._count_partitions()):
            tp = TopicPartition(TOPIC, p)
            if tp not in self.jobs:
                self.tail.add_partition(
                    self._open_partition(tp, OffsetStart(0)), PartitionPosition(0)
                )
        for job in [*self.jobs.values(), *self.private_jobs.values()]:
            self._apply_metadata(job)

    def _list_followers(self) -> list[Subscription]:
        every = [each for channel in self.channels for each in channel.followers]
        return [each for each in every if isinstance(each, Subscription)]

    def drop_unverified(self, sub: Subscription) -> None:
        """What it has not held against the log yet is of the topic that is no more."""
        for work in (self.private_jobs, self.verifications):
            for key in [key for key in work if key[0] is sub]:
                del work[key]
        for tp, place in sub.private_positions.items():
            if place.lineage == UNVERIFIED_LINEAGE:
                sub.ensure_private_reader().mark_retired(tp)

    def _apply_metadata(self, job: ReaderJob) -> None:
        reading = job.reader
        known = self.metadata.partitions[reading.tp.partition]
        before = (reading.leader, reading.leader_epoch, reading.topic_id)
        reading.on_topic_id(self.metadata.topic_id)
        job.sink(
            reading.on_leader_change(1 if known.has_leader else None, known.epoch, self.world.now)
        )
        if before != (reading.leader, reading.leader_epoch, reading.topic_id):
            job.pending_request = None

    # questions

    def _create_request(
        self, tp: TopicPartition, command: Command, on_answer: Callable[[Any], None], owner: Any
    ) -> PendingRequest:
        ask = PendingRequest(tp, command, on_answer, owner)
        ask.incarnation, ask.epoch = (
            self.metadata.incarnation,
            self.metadata.partitions[tp.partition].epoch,
        )
        self.requests.append(ask)
        return ask

    def send_requests(self) -> None:
        """Ask whatever is due."""
        now = self.world.now
        for job in [*self.jobs.values(), *self.private_jobs.values()]:
            if job.pending_request is None and (todo := job.reader.next_command(now)) is not None:
                self._send_request(job, todo)
        for sub in self._list_followers():
            self._start_backfills(sub)

    def _send_request(self, job: ReaderJob, command: Command) -> None:
        job.pending_request = self._create_request(job.reader.tp, command, lambda answer: None, job)
        job.pending_request.epoch = job.reader.leader_epoch

    def serve_request(self, request: PendingRequest) -> bool:
        """The leader answers, if it can; the answer is not here yet."""
        if request.answer is not None:
            return True
        kafka = self.kafka
        if request.incarnation != kafka.incarnation:
            request.answer = RefusedAnswer(Cause.UNKNOWN_TOPIC)
            return True
        partition = kafka.partitions[request.tp.partition]
        if partition.is_frozen:
            return False
        request.answer = partition.answer_request(request.command, request.epoch, 0)
        return True

    def deliver_answer(self, request: PendingRequest) -> None:
        self.requests.remove(request)
        if isinstance(request.owner, ReaderJob):
            if request.owner.pending_request is request:
                request.owner.pending_request = None
                self._on_answer(request.owner, request)
        elif self.verifications.get(request.owner) is request:
            del self.verifications[request.owner]
            request.on_answer(request.answer)

    def abandon_request(self, request: PendingRequest) -> None:
        """Out of patience. The answer may still come."""
        if isinstance(request.owner, ReaderJob):
            if request.owner.pending_request is request:
                request.owner.pending_request = None
                request.owner.sink(request.owner.reader.on_error(Cause.TIMEOUT, self.world.now))
        elif self.verifications.get(request.owner) is request:
            del self.verifications[request.owner]

    def _on_answer(self, job: ReaderJob, request: PendingRequest) -> None:
        reading, now, answer = job.reader, self.world.now, request.answer
        if isinstance(answer, RefusedAnswer):
            entries = reading.on_error(answer.cause, now)
        elif isinstance(answer, FetchResult):
            entries = reading.on_fetch(answer, now)
        elif isinstance(answer, ListedOffset):
            entries = reading.on_list_offsets(answer.offset, answer.epoch, now)
        else:
            assert isinstance(answer, EpochEndAnswer)
            entries = reading.on_epoch_end(answer.epoch, answer.end_offset, now)
        job.sink(entries)

    # the end of a turn of the loop

    def apply_turn(self) -> None:
        """Apply what came: logs, the tail and channels in one breath."""
        entries, now = list(self.entries), self.world.now
        self.entries.clear()
        if entries:
            for entry in entries:
                log = self.tail.logs[entry.tp]
                if type(entry) is Ready:
                    if log.next_offset is None:
                        self._on_resolved(entry)
                        log.open(entry.next_offset, entry.epoch)
                elif type(entry) is not Fault:
                    log.append(entry, now)
            turn = self.tail.apply_entries(entries, int(START_TIME_S + now))
            self.spread.publish(turn)

    def _queue_entries(self, entries: Sequence[Entry]) -> None:
        """Until the turn ends; time may pass by then."""
        for entry in entries:
            start = self.jobs[entry.tp].reader.start
            if type(entry) is Ready and isinstance(start, LiveStart):
                self.judged_starts.setdefault(entry.tp, self._mark_approximate(entry, start))
        self.entries += entries

    def _on_resolved(self, ready: Ready) -> None:
        """The oracle is to know where a live start was found right after the connect."""
        if ready.tp in self.judged_starts:
            self.world.on_resolved(self, None, self.judged_starts[ready.tp])

    def _mark_approximate(self, ready: Ready, start: LiveStart) -> Ready:
        """Only an end that was asked for within a second of the connect is that of then."""
        late = start.was_leaderless or self.world.now - start.connected_at > 1.0
        return ready._replace(is_approximate=ready.is_approximate or late)

    def run_rounds(self, rounds: int = 1) -> None:
        """The quick way: everything that can be answered is, at once."""
        for _ in range(rounds):
            self.send_requests()
            for ask in list(self.requests):
                if self.serve_request(ask):
                    self.deliver_answer(ask)
            self.apply_turn()

    # clients

    def open_subscription(
        self, view: int, last_event_id: str, start: str, **options: Any
    ) -> Subscription:
        channel = self.channels[view]
        own: dict[TopicPartition, PartitionPosition] = {}
        since = None
        if last_event_id:
            token = parse_token(last_event_id)
            topic = token.match_topics([TOPIC])[TOPIC]
            since = token.issued
            if not topic.matches_id(self.tail.topic_ids[TOPIC]):
                self.refresh_metadata(0)  # which of the two is the topic that is no more?
            for p in range(max(len(topic.offsets), self._count_partitions())):
                tp = TopicPartition(TOPIC, p)
                if p >= len(topic.offsets):
                    own[tp] = PartitionPosition(0, NO_EPOCH, self.tail.logs[tp].lineage)
                    continue
                offset, epoch = topic.offsets[p], topic.epochs[p]
                ours = topic.matches_id(self.tail.topic_ids[TOPIC])
                own[tp] = PartitionPosition(
                    offset, epoch if ours else RETIRED_EPOCH, UNVERIFIED_LINEAGE
                )
        elif start == "earliest":
            own = {tp: PartitionPosition(0, NO_EPOCH, UNVERIFIED_LINEAGE) for tp in self.tail.logs}
        else:
            self._await_live()
        sub = Subscription(channel, own, SubscriptionTerms(resolve_since=since, **options))
        return sub

    def _await_live(self) -> None:
        for tp, log in self.tail.logs.items():
            start = self.jobs[tp].reader.start
            if log.next_offset is None and isinstance(start, LiveStart):
                epoch = start.epoch if start.was_leaderless else NO_EPOCH
                self.tail.mark_pending_since(tp, epoch, start.connected_at_ms // 1000)

    def pin_starts(self, pending: Iterable[TopicPartition]) -> None:
        """A client was begun without them."""
        for tp in pending:
            self.jobs[tp].reader.pin_start()

    def close_subscription(self, sub: Subscription) -> None:
        sub.close()
        for work in (self.private_jobs, self.verifications):
            for key in [key for key in work if key[0] is sub]:
                del work[key]

    def _start_backfills(self, sub: Subscription) -> None:
        reader = sub.private_reader
        if reader is None or sub.end_reason:
            return
        for tp, place in reader.list_unverified():
            if (sub, tp) not in self.verifications and (sub, tp) not in self.private_jobs:
                self._start_verification(sub, tp, place)
        for tp, place in reader.list_backfills():
            if (sub, tp) not in self.private_jobs:
                self._start_fetch(sub, tp, place)

    def _start_fetch(self, sub: Subscription, tp: TopicPartition, place: PartitionPosition) -> None:
        def on_entries(entries: Sequence[Entry]) -> None:
            found = [e for e in entries if not isinstance(e, Ready | Fault)]
            if found and self.private_jobs.pop((sub, tp), None) and sub.private_reader is not None:
                sub.private_reader.feed(tp, place, ReadAnswer(found).get_run())

        assert place.offset is not None
        self._add_private(sub, tp, OffsetStart(place.offset, place.epoch), on_entries)

    def _start_resolve(
        self, sub: Subscription, tp: TopicPartition, place: PartitionPosition
    ) -> None:
        lineage = self.jobs[tp].reader.lineage

        def on_entries(entries: Sequence[Entry]) -> None:
            for e in entries:
                if isinstance(e, Ready) and self.private_jobs.pop((sub, tp), None):
                    self.world.on_resolved(self, sub, self._mark_approximate(e, start))
                    sub.ensure_private_reader().on_verified(
                        tp, PartitionPosition(e.next_offset, e.epoch, lineage)
                    )

        assert sub.resolve_since is not None
        # born long ago: an end that is asked for now is not that of then (as in hub's `Lacks`)
        start = LiveStart(
            sub.resolve_since * 1000, 0.0, place.epoch, place.epoch != NO_EPOCH, CLOCK_SKEW_MS
        )
        self._add_private(sub, tp, start, on_entries)

    def _add_private(self, sub: Subscription, tp: TopicPartition, start: Any, sink: Any) -> None:
        job = self.private_jobs[sub, tp] = ReaderJob(self._build_reader(tp, start), sink)
        self._apply_metadata(job)

    def _start_verification(
        self, sub: Subscription, tp: TopicPartition, place: PartitionPosition
    ) -> None:
        if place.offset is None and place.epoch != RETIRED_EPOCH:
            self._start_resolve(sub, tp, place)
            return
        reading = self.jobs[tp].reader
        if not reading.can_validate(NO_EPOCH if place.epoch == RETIRED_EPOCH else place.epoch):
            return
        if place.epoch == RETIRED_EPOCH:
            first = PartitionPosition(0, NO_EPOCH, reading.lineage)
            gap = Gap(tp, place.offset or 0, 0, NO_EPOCH, GapReason.RECREATED)
            sub.ensure_private_reader().on_verified(
                tp, first, gap if place.offset is not None else None
            )
            return
        present = PartitionPosition(place.offset, reading.leader_epoch, reading.lineage)
        if place.epoch in (NO_EPOCH, reading.leader_epoch):
            sub.ensure_private_reader().on_verified(tp, present._replace(epoch=place.epoch))
            return

        def on_epoch_end(answer: Any) -> None:
            if not isinstance(answer, EpochEndAnswer):
                return
            if not 0 <= answer.end_offset < present.offset:
                sub.ensure_private_reader().on_verified(tp, present)
                return
            gap = Gap(tp, present.offset, answer.end_offset, present.epoch, GapReason.TRUNCATED)
            sub.ensure_private_reader().on_verified(
                tp, present._replace(offset=answer.end_offset), gap
            )

        self.verifications[sub, tp] = self._create_request(
            tp, EpochEndCommand(place.epoch), on_epoch_end, (sub, tp)
        )
