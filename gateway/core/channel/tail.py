"""Merge the partitions of a topic set into one order, the tail, and know the position in it.

The order is arrival order across partitions and offset order within one. Entries that became ready
in one turn of the event loop are one `TailUpdate`. After each of its entries the position is known,
and the shared text of its token is written at most once, however many channels send it. The
positions before recent updates can be found again (`position_before`), for clients that fell
behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from gateway.core.log.partition_log import PartitionLog, estimate_entry_size
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    REWIND_REASONS,
    UNVERIFIED_LINEAGE,
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Position,
    Readiness,
    Ready,
    TopicPartition,
)
from gateway.core.token.resume_token import TokenWriter, TopicPositions, overlay_positions

# Characters of a topic and of a partition in a token. Offsets below 68 billion take at most six.
TOPIC_CHARS, PARTITION_CHARS = 20, 6
# Bytes of memory: of a tail, of each partition, of each update and each position that it moved.
TAIL_BYTES, PARTITION_BYTES, MOVE_BYTES = 8192, 400, 160
MAX_OVERLAID_TEXTS = 64  # token texts of other positions that are kept until the tail moves
_tuple_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


class TailEntry(NamedTuple):
    """One entry and the token text after it, if there is one (see `Tail`)."""

    entry: Entry
    token_text: bytes | None


class TailUpdate(NamedTuple):
    """The entries that became ready in one turn of the event loop, in their merged order.

    `seq` counts the updates of a tail. `token_text` is that after the last entry.
    """

    seq: int
    entries: Sequence[TailEntry]
    token_text: bytes


class TailReader(Protocol):
    """A client that reads some partitions privately, up to where the tail stands."""

    @property
    def private_positions(self) -> Mapping[TopicPartition, PartitionPosition]: ...

    @property
    def own_bytes(self) -> int: ...

    @property
    def shared_sizes(self) -> Iterable[tuple[int, int]]:
        """The ids and bytes of what it holds, and other clients may hold, too."""

    def wake(self) -> None: ...


class Tail:
    """The merged order of some topics, and the position at its end.

    The hub creates one per topic set and applies the entries of the shared reads to it. The owner
    appends entries to the logs first and passes the same entries to `apply_entries` without
    awaiting in between, so that tail and logs agree whenever other code runs (a tail that moves in
    steps is behind its logs). Invariants between calls:

    - `position` is the position after the last entry of the last update, and the token text is that
      of `position`.
    - `position_before(seq)` is defined for `oldest_seq <= seq <= self.seq`.
    - A partition in `pending_since` has a pending position.

    Attributes:
        is_conflated: The tail moves in steps: an update covers many entries, of which only the
            latest of each key are sent, so its entries have no token texts of their own.
        has_exact_tokens: Each event has its token. It never changes, since `begin` says so: the
            tokens themselves grow with offsets, elections and partitions.
        logs: One log per partition, opened or not; they are shared with other tails.
        pending_since: The time, in seconds since 1970, as of which the end of a partition is to be
            found.
        readers: The clients that read some partitions privately; they register themselves.
        move_count: How many positions the updates from `oldest_seq` on moved.
    """

    # Long tokens are not sent with every event but now and then ("ids come in batches"): they are
    # written after this many bytes of entries, so that a channel can choose among them.
    TOKEN_INTERVAL_BYTES = 8 * 1024
    MAX_EXACT_TOKEN_CHARS = 1024  # characters; tokens that may be longer come in batches

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
        token_chars = TOPIC_CHARS * len(topic_ids) + PARTITION_CHARS * len(self.logs)
        self.has_exact_tokens = token_chars <= self.MAX_EXACT_TOKEN_CHARS
        self.readiness = Readiness(set(self.logs))
        self.seq = 0
        self.pending_since: dict[TopicPartition, int] = {}
        self.readers: set[TailReader] = set()
        # Partitions whose topic was created again, but whose `recreated` gap is still to come.
        self._retiring: set[TopicPartition] = set()
        self._position: Position = {tp: log.position for tp, log in self.logs.items()}
        self._writer = TokenWriter(cluster, self._build_topics())
        # What each update from `_oldest_seq` on moved, and the position before all of them:
        # together they give the position before any of these updates.
        self._update_moves: deque[Position] = deque()
        self.move_count = 0
        self._oldest_position: Position = dict(self._position)
        # The last result of `position_before`: its `seq`, the number of logs then, the position.
        self._position_cache: tuple[int, int, Position] | None = None
        self._oldest_seq = 0
        # What `build_token_text` made of the present text: thousands may come back from one place.
        self._overlaid_base = b""
        self._overlaid_texts: dict[Hashable, bytes] = {}

    @property
    def position(self) -> Mapping[TopicPartition, PartitionPosition]:
        return self._position

    @property
    def lineages(self) -> dict[TopicPartition, int]:
        return {tp: log.lineage for tp, log in self.logs.items()}

    @property
    def token_text(self) -> bytes:
        return self._writer.to_text()

    @property
    def oldest_seq(self) -> int:
        return self._oldest_seq

    @property
    def size(self) -> int:
        """Return about how many bytes of memory it takes, without the logs."""
        moves = self.move_count + len(self._update_moves)
        return TAIL_BYTES + len(self.logs) * PARTITION_BYTES + moves * MOVE_BYTES

    def add_partition(self, log: PartitionLog, position: PartitionPosition) -> None:
        """Add a partition, at `position` until its log is opened."""
        self.logs[log.tp] = log
        self.readiness.partitions.add(log.tp)
        self._set_position(log.tp, log.position if log.next_offset is not None else position)
        self._oldest_position.setdefault(log.tp, self._position[log.tp])

    def set_topic_id(self, topic: str, topic_id: str) -> None:
        """Set the id of a topic as metadata has it now.

        An id that replaces another one is in all tokens from now on. The tail still stands at an
        offset of the earlier topic then. Until the gap of each partition is applied, its positions
        are marked in tokens as those of the earlier topic.
        """
        old_id = self.topic_ids[topic]
        if not topic_id or topic_id == old_id:
            return
        self.topic_ids[topic] = topic_id
        self._writer.set_topic_id(topic, topic_id)
        for tp in self.logs if old_id else ():
            if tp.topic == topic:
                self._retiring.add(tp)
                self._set_position(tp, self._position[tp])

    def mark_pending_since(self, tp: TopicPartition, epoch: int, since: int) -> None:
        """Record that the end of a partition is unknown, and as of which time it is to be found.

        The first call for a partition wins: a later epoch or time (seconds since 1970) would lose
        the records written since. The end of the epoch is the exact answer.
        """
        if tp not in self.pending_since:
            self.pending_since[tp] = since
            self._set_position(tp, PartitionPosition(None, epoch))

    def set_issued(self, now: int) -> None:
        """Set the time of issue, in seconds since 1970, of the tokens that follow.

        While a partition is pending, it is the time as of which the end of the partition is to be
        found: a client that resumes with the token must get everything since then.
        """
        self._writer.set_issued(min(self.pending_since.values(), default=now))

    def apply_entries(self, entries: Iterable[Entry], now: int) -> TailUpdate:
        """Take over entries of the logs, each partition's in order, as one update."""
        is_exact, bytes_since_text = self.has_exact_tokens and not self.is_conflated, 0
        self.set_issued(now)
        items: list[TailEntry] = []
        moves: Position = {}
        for entry in entries:
            self._apply_entry(entry, moves)
            # With exact tokens every entry has a text. With batched ones a text is written now
            # and then, and a conflated tail has only the one of the whole update.
            text = self._writer.to_text() if is_exact else None
            if (
                not (is_exact or self.is_conflated)
                and (bytes_since_text := bytes_since_text + estimate_entry_size(entry))
                >= self.TOKEN_INTERVAL_BYTES
            ):
                text, bytes_since_text = self._writer.to_text(), 0
            items.append(_tuple_new(TailEntry, (entry, text)))
        self._update_moves.append(moves)
        self.move_count += len(moves)
        update = TailUpdate(self.seq, items, self._writer.to_text())
        self.seq += 1
        return update

    def wake_readers(self) -> None:
        """Wake the clients that read privately in partitions that the last update moved.

        Their channel does not wake them if it shows nothing of the update.
        """
        moved = self._update_moves[-1].keys()
        for reader in self.readers:
            if not moved.isdisjoint(reader.private_positions):
                reader.wake()

    def position_before(self, seq: int) -> Position:
        """Return the position just before an update, which must not be older than `oldest_seq`."""
        # Many followers fall behind at the same update, and walking from the oldest one takes
        # 0.2 ms, so walk from the last result where possible. A partition that was added since is
        # missing from it, hence the number of logs in the cache.
        start, log_count, base = self._position_cache or (-1, 0, self._oldest_position)
        if log_count != len(self.logs) or not self._oldest_seq <= start <= seq:
            start, base = self._oldest_seq, self._oldest_position
        position = dict(base)
        for moves in islice(self._update_moves, start - self._oldest_seq, seq - self._oldest_seq):
            position.update(moves)
        self._position_cache = seq, len(self.logs), dict(position)
        return position

    def forget_updates(self, before: int) -> None:
        while self._oldest_seq < before:
            moves = self._update_moves.popleft()
            self.move_count -= len(moves)
            self._oldest_position.update(moves)
            self._oldest_seq += 1

    def build_token_text(
        self, positions: Mapping[TopicPartition, PartitionPosition], issued: int | None = None
    ) -> bytes:
        """Return the token text of the present position, with some partitions elsewhere."""
        base = self._writer.to_text()
        if base is not self._overlaid_base:
            self._overlaid_base = base
            self._overlaid_texts.clear()
        marked = self.mark_retired(positions)
        key = issued, frozenset(marked.items())
        text = self._overlaid_texts.get(key)
        if text is None:
            writer = self.create_token_writer(marked)
            if issued is not None:
                writer.set_issued(issued)
            text = writer.to_text()
            # The logs of a conflated tail may change, and with them what is retired, before it
            # takes a step and its own text changes.
            if len(self._overlaid_texts) < MAX_OVERLAID_TEXTS and not self.is_conflated:
                self._overlaid_texts[key] = text
        return text

    def create_token_writer(
        self, positions: Mapping[TopicPartition, PartitionPosition]
    ) -> TokenWriter:
        writer = TokenWriter(self.cluster, self._build_topics())
        writer.set_issued(self._writer.issued)
        for tp, position in self.mark_retired(positions).items():
            writer.move(tp, position.offset, position.epoch)
        return writer

    def overlay_token(
        self,
        text: bytes,
        positions: Mapping[TopicPartition, PartitionPosition],
        issued: int | None = None,
    ) -> bytes:
        """Return one of this tail's token texts with positions as `mark_retired` returns them."""
        return overlay_positions(text, self._writer.names, positions, issued)

    def mark_retired(self, positions: Mapping[TopicPartition, PartitionPosition]) -> Position:
        """Return positions as they go into a token.

        A token has one id for each topic. Positions of an earlier topic of the same name, whose gap
        was not sent yet, therefore get RETIRED_EPOCH instead of their epoch.
        """
        return {
            tp: position._replace(epoch=RETIRED_EPOCH)
            if self._is_retired(tp, position)
            else position
            for tp, position in positions.items()
        }

    def is_retiring(self, tp: TopicPartition) -> bool:
        """Return whether the topic was created again and this partition's gap is still to come.

        Kafka's records are then of another topic than the tail's position.
        """
        return tp in self._retiring

    def token_epoch(self, tp: TopicPartition, position: PartitionPosition) -> int:
        return RETIRED_EPOCH if tp in self._retiring else position.epoch

    def _is_retired(self, tp: TopicPartition, position: PartitionPosition) -> bool:
        """Return whether a position is of an earlier topic; an unverified one keeps its epoch."""
        if position.lineage == UNVERIFIED_LINEAGE or tp not in self.logs:
            return False
        return tp in self._retiring or self.logs[tp].is_retired(position)

    def _apply_entry(self, entry: Entry, moves: Position) -> None:
        tp = entry.tp
        if type(entry) is Fault:  # it moves nothing
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
        moves[tp] = position = _tuple_new(
            PartitionPosition, (entry.next_offset, entry.epoch, lineage)
        )
        self._set_position(tp, position)

    def _set_position(self, tp: TopicPartition, position: PartitionPosition) -> None:
        self._position[tp] = position
        self._writer.move(tp, position.offset, self.token_epoch(tp, position))

    def _build_topics(self) -> list[TopicPositions]:
        counts: dict[str, int] = dict.fromkeys(self.topic_ids, 0)
        for tp in self.logs:
            counts[tp.topic] = max(counts[tp.topic], tp.partition + 1)
        return [self._build_topic(name, count) for name, count in counts.items()]

    def _build_topic(self, name: str, count: int) -> TopicPositions:
        unknown = PartitionPosition(None, NO_EPOCH)
        tps = [TopicPartition(name, index) for index in range(count)]
        positions = self.mark_retired({tp: self._position.get(tp, unknown) for tp in tps}).values()
        offsets, epochs = (
            [index.offset for index in positions],
            [index.epoch for index in positions],
        )
        return TopicPositions(name, self.topic_ids[name], offsets, epochs)
