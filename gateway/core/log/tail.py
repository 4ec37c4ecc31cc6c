"""The live end of a topic set: one merged order of what its partitions bring.

Arrival order across partitions, offset order within one. What became ready in one turn of
the loop is one Turn; after each of its entries the position is known, and its token's
shared text is written at most once, however many channels send it. Positions of the last
turns can be found again (`position_before`), for clients that fell behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from gateway.core.token.resume_token import TokenWriter, TopicPositions, overlay_positions

from .partition_log import PartitionLog, estimate_entry_size
from .position import NO_EPOCH, RETIRED_EPOCH, UNVERIFIED_LINEAGE, PartitionPosition, Position
from .readiness import Readiness
from .record import REWIND_REASONS, Entry, Fault, Gap, GapReason, Ready, TopicPartition

TOKEN_INTERVAL_BYTES = (
    8 * 1024
)  # bytes of entries from one text to the next where ids come in batches
MAX_EXACT_TOKEN_CHARS = 512  # characters; longer ones are not sent with every event

_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


class TailEntry(NamedTuple):
    """One entry of a turn, and the token text after it; where ids come in batches most are
    None."""

    entry: Entry
    token_text: bytes | None


class TailUpdate(NamedTuple):
    """What became ready in one turn of the loop. `text` is the token text at its end."""

    seq: int
    entries: Sequence[TailEntry]
    token_text: bytes


class TailReader(Protocol):
    """Who reads some partitions alone, up to where the tail stands."""

    @property
    def private_positions(self) -> Mapping[TopicPartition, PartitionPosition]: ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait for it to take them."""

    def wake(self) -> None: ...


class Tail:
    """The merged order of some topics.

    logs:    one per partition, opened or not; shared with other tails. The owner appends
             to them first and hands the same entries to `turn` in the same breath.
    ids:     topic ids by name, empty text where the cluster has none.
    conflates: it moves in steps: turns are many entries, of which only the latest of each key
             are sent, so they have no texts of their own.
    """

    def __init__(
        self,
        cluster: str,
        logs: Iterable[PartitionLog],
        topic_ids: Mapping[str, str],
        *,
        is_conflated: bool = False,
    ) -> None:
        self.cluster = cluster
        self.is_conflated = is_conflated
        self.topic_ids = dict(topic_ids)
        self.logs: dict[TopicPartition, PartitionLog] = {log.tp: log for log in logs}
        self.readiness = Readiness(set(self.logs))
        self.seq = 0
        self.pending_since: dict[TopicPartition, int] = {}
        self.readers: set[TailReader] = set()
        self._retiring: set[TopicPartition] = set()
        self._position: Position = {tp: log.position for tp, log in self.logs.items()}
        self._writer = TokenWriter(cluster, self._build_topics())
        self._update_moves: deque[Position] = deque()
        self._oldest_position: Position = dict(self._position)
        self._position_cache: tuple[int, int, Position] | None = (
            None  # by `position_before`: turn, logs
        )
        self._oldest_seq = 0

    @property
    def position(self) -> Mapping[TopicPartition, PartitionPosition]:
        """Where the tail stands now."""
        return self._position

    @property
    def token_text(self) -> bytes:
        return self._writer.to_text()

    @property
    def has_exact_tokens(self) -> bool:
        """Are ids short enough to go with every event?"""
        return len(self._writer.to_text()) <= MAX_EXACT_TOKEN_CHARS

    @property
    def oldest_seq(self) -> int:
        """The first turn whose position can still be found."""
        return self._oldest_seq

    def add_partition(self, log: PartitionLog, place: PartitionPosition) -> None:
        """A partition came into being, or is to be waited for since the connect."""
        self.logs[log.tp] = log
        self.readiness.partitions.add(log.tp)
        self._set_position(log.tp, log.position if log.next_offset is not None else place)
        self._oldest_position.setdefault(log.tp, self._position[log.tp])

    def set_topic_id(self, topic: str, id: str) -> None:
        """The topic's id as metadata has it. One that follows another is in tokens from now
        on; until the gap of a partition tells of it, its place is marked as the earlier's."""
        before = self.topic_ids[topic]
        if not id or id == before:
            return
        self.topic_ids[topic] = id
        self._writer.set_topic_id(topic, id)
        for tp in self.logs if before else ():
            if tp.topic == topic:
                self._retiring.add(tp)
                self._set_position(tp, self._position[tp])

    def mark_pending_since(self, tp: TopicPartition, epoch: int, since: int) -> None:
        """Nobody knows the end of this partition yet: it will be found as of `since`, in
        seconds of the epoch, or exactly, as the end of `epoch`."""
        if tp not in self.pending_since:  # the first who waits: no later epoch or time would do
            self.pending_since[tp] = since
            self._set_position(tp, PartitionPosition(None, epoch))

    def set_issued(self, now: int) -> None:
        """Note the time, in seconds of the epoch. While a partition is pending it stays at the
        time as of which its end will be found: a token must not forget that."""
        self._writer.set_issued(min(self.pending_since.values(), default=now))

    def apply_entries(self, entries: Iterable[Entry], now: int) -> TailUpdate:
        """Take over what the logs took over. `now` in seconds of the epoch."""
        exact, unmarked = self.has_exact_tokens and not self.is_conflated, 0
        self.set_issued(now)
        items: list[TailEntry] = []
        moves: Position = {}
        for entry in entries:
            self._apply_entry(entry, moves)
            text = self._writer.to_text() if exact else None
            if (
                not (exact or self.is_conflated)
                and (unmarked := unmarked + estimate_entry_size(entry)) >= TOKEN_INTERVAL_BYTES
            ):
                text, unmarked = self._writer.to_text(), 0
            items.append(_tuple_new(TailEntry, (entry, text)))
        self._update_moves.append(moves)
        turn = TailUpdate(self.seq, items, self._writer.to_text())
        self.seq += 1
        return turn

    def wake_readers(self) -> None:
        """Let those go on who read alone what the last turn moved: they wait for it also where
        none of it is seen in their channel."""
        moved = self._update_moves[-1].keys()
        for reader in self.readers:
            if not moved.isdisjoint(reader.private_positions):
                reader.wake()

    def position_before(self, seq: int) -> Position:
        """The position just before a turn that is not older than `oldest`."""
        # Many followers fall from the same turns: a walk from the oldest takes 0.2 ms.
        start, logs, found = self._position_cache or (-1, 0, self._oldest_position)
        if logs != len(self.logs) or not self._oldest_seq <= start <= seq:
            start, found = self._oldest_seq, self._oldest_position
        position = dict(found)
        for moves in islice(self._update_moves, start - self._oldest_seq, seq - self._oldest_seq):
            position.update(moves)
        self._position_cache = seq, len(self.logs), dict(position)
        return position

    def forget_updates(self, before: int) -> None:
        """Positions before turns older than this one will not be asked for any more."""
        while self._oldest_seq < before:
            self._oldest_position.update(self._update_moves.popleft())
            self._oldest_seq += 1

    def create_token_writer(
        self, places: Mapping[TopicPartition, PartitionPosition]
    ) -> TokenWriter:
        """A token of its own: this position, with some partitions elsewhere."""
        writer = TokenWriter(self.cluster, self._build_topics())
        writer.set_issued(self._writer.issued)
        for tp, place in self.mark_retired(places).items():
            writer.move(tp, place.offset, place.epoch)
        return writer

    def overlay_token(
        self,
        text: bytes,
        places: Mapping[TopicPartition, PartitionPosition],
        issued: int | None = None,
    ) -> bytes:
        """One of its texts with some partitions elsewhere (`marked`), and perhaps another time of
        issue."""
        return overlay_positions(text, self._writer.names, places, issued)

    def mark_retired(self, places: Mapping[TopicPartition, PartitionPosition]) -> Position:
        """Places as they go into a token: it has one id for a topic, so those of an earlier
        topic of the name, whose gap is not told yet, are marked."""
        return {
            tp: place._replace(epoch=RETIRED_EPOCH) if self._is_retired(tp, place) else place
            for tp, place in places.items()
        }

    def is_retiring(self, tp: TopicPartition) -> bool:
        """Was the topic created anew, and this partition's gap not told yet? What could be
        read from Kafka now is not what its places speak of."""
        return tp in self._retiring

    def token_epoch(self, tp: TopicPartition, place: PartitionPosition) -> int:
        """The epoch that a place of the log's present lineage has in a token."""
        return RETIRED_EPOCH if tp in self._retiring else place.epoch

    def _is_retired(self, tp: TopicPartition, place: PartitionPosition) -> bool:
        """One that was not held against the log yet may be of either topic: its owner knows."""
        if place.lineage == UNVERIFIED_LINEAGE or tp not in self.logs:
            return False
        return tp in self._retiring or self.logs[tp].is_retired(place)

    def _apply_entry(self, entry: Entry, moves: Position) -> None:
        tp = entry.tp
        if type(entry) is Fault:
            self.readiness.mark_pending(tp)
            return
        if type(entry) is Ready:
            self.readiness.mark_ready(tp)
            self.pending_since.pop(tp, None)
        lineage = self._position[tp].lineage
        if type(entry) is Gap and entry.reason in REWIND_REASONS:
            lineage += 1
            if entry.reason is GapReason.RECREATED:
                self._retiring.discard(tp)
        moves[tp] = place = _tuple_new(PartitionPosition, (entry.next_offset, entry.epoch, lineage))
        self._set_position(tp, place)

    def _set_position(self, tp: TopicPartition, place: PartitionPosition) -> None:
        self._position[tp] = place
        self._writer.move(tp, place.offset, self.token_epoch(tp, place))

    def _build_topics(self) -> list[TopicPositions]:
        counts: dict[str, int] = dict.fromkeys(self.topic_ids, 0)
        for tp in self.logs:
            counts[tp.topic] = max(counts[tp.topic], tp.partition + 1)
        return [self._build_topic(name, count) for name, count in counts.items()]

    def _build_topic(self, name: str, count: int) -> TopicPositions:
        unknown = PartitionPosition(None, NO_EPOCH)
        tps = [TopicPartition(name, p) for p in range(count)]
        places = self.mark_retired({tp: self._position.get(tp, unknown) for tp in tps}).values()
        offsets, epochs = [p.offset for p in places], [p.epoch for p in places]
        return TopicPositions(name, self.topic_ids[name], offsets, epochs)
