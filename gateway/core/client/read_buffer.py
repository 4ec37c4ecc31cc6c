"""Hold the entries that were read privately for one client until they are sent.

Entries come from the logs, without waiting; from Kafka, if no log holds them any more; or, for a
snapshot, from a table. If the client gets only the latest record of each key, they are gathered
first, window by window. Entries from Kafka are read once for all clients that need them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

from gateway.core.channel.conflation import KeyWindow, LatestOffsets, buffered_size
from gateway.core.channel.filters import get_lookup_keys
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    UNREADABLE_REASONS,
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    TopicPartition,
)

from .shared_cursor import SharedCursor
from .snapshot import SnapshotBlock

# A gap of these reasons says the same of every offset in it. The other ones are true only for the
# position that they were found for: `skipped` also spans records that Kafka still has.
_SHARED_GAP_REASONS = UNREADABLE_REASONS | {GapReason.RETENTION}


class ReadAnswer:
    """The consecutive entries of one private read, which the `BackfillReader` creates.

    When a worker is killed, hundreds of clients come back from offsets that one answer covers. Each
    of them holds an index into the one list of entries, so serving one more costs neither a copy
    nor memory (500 clients, 10,000 records: copies took 1.1 s and counted as 935 MB).

    It does not change once somebody has a run of it, and is freed with the last of these.
    """

    __slots__ = ("bytes", "entries")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0
        self.extend(entries)

    def extend(self, entries: Iterable[Entry]) -> None:
        first = len(self.entries)
        self.entries.extend(entries)
        self.bytes += sum(map(buffered_size, self.entries[first:]))

    def get_run(self) -> EntryRun:
        return EntryRun(self, 0, self.entries[0])

    def find_run(self, offset: int) -> EntryRun | None:
        """Return the entries from an offset on; None if the answer does not cover it."""
        entries = self.entries
        if not entries or not entries[0].offset <= offset < entries[-1].next_offset:
            return None
        index = bisect_right(entries, offset, key=lambda entry: entry.next_offset)
        first = entries[index]
        if type(first) is Gap:
            if first.reason not in _SHARED_GAP_REASONS:
                return None
            # A gap may span the offset: only the part after it concerns this client.
            first = first._replace(offset=max(first.offset, offset))
        return EntryRun(self, index, first)


class EntryRun:
    """The entries of an answer from an index on: at least one.

    Clients that stand at the same offset can share it. `first` may be a part of a gap.
    """

    __slots__ = ("_index", "answer", "first")

    def __init__(self, answer: ReadAnswer, index: int, first: Entry) -> None:
        self.answer = answer
        self.first = first
        self._index = index

    def __len__(self) -> int:
        return len(self.answer.entries) - self._index

    def __iter__(self) -> Iterator[Entry]:
        run: EntryRun | None = self
        while run is not None:
            yield run.first
            run = run.get_rest()

    @property
    def next_offset(self) -> int:
        return self.answer.entries[-1].next_offset

    @property
    def bytes(self) -> int:
        return self.answer.bytes * len(self) // len(self.answer.entries)

    def get_rest(self) -> EntryRun | None:
        index, entries = self._index + 1, self.answer.entries
        return EntryRun(self.answer, index, entries[index]) if index < len(entries) else None


MAX_BUFFER_BYTES = 1 << 18  # bytes that are held for a client before no more is read from Kafka
MAX_WINDOW_BYTES = 1 << 20  # bytes of records that are gathered at most before they are sent


class ReadBuffer:
    """The entries that were read for one client and not sent yet, owned by its `PrivateReader`.

    Iterators take what they yield, except that an answer from Kafka stays as long as one of its
    clients needs it. Invariant between calls: the entries of a partition begin where the client
    stands in it, since `drop` is called whenever the position jumps.
    """

    __slots__ = (
        "_backfilled", "_cursor", "_keys", "_latest_offsets", "_piece_bytes", "_snapshot_pieces",
        "_windows",
    )  # fmt: skip

    def __init__(self, cursor: SharedCursor) -> None:
        self._cursor = cursor
        self._keys = get_lookup_keys(cursor.channel.accepts)
        self._backfilled: dict[TopicPartition, EntryRun] = {}
        self._snapshot_pieces: dict[TopicPartition, deque[Entry | SnapshotBlock]] = {}  # of tables
        self._windows: dict[TopicPartition, KeyWindow] = {}
        self._latest_offsets: dict[TopicPartition, LatestOffsets] = {}
        self._piece_bytes = 0  # of `_snapshot_pieces`

    @property
    def bytes(self) -> int:
        runs = sum(run.bytes for run in self._backfilled.values())
        return self.own_bytes + runs + sum(block.size for block in self._list_blocks())

    @property
    def own_bytes(self) -> int:
        return self._piece_bytes + sum(window.bytes for window in self._windows.values())

    @property
    def shared_sizes(self) -> Iterator[tuple[int, int]]:
        """Yield the ids and bytes of what other clients may hold, too."""
        yield from ((id(run.answer), run.answer.bytes) for run in self._backfilled.values())
        yield from ((id(block), block.size) for block in self._list_blocks())

    @property
    def is_full(self) -> bool:
        return self.bytes >= MAX_BUFFER_BYTES

    def _list_blocks(self) -> list[SnapshotBlock]:
        # The pieces of a partition are one block, or entries.
        firsts = (pieces[0] for pieces in self._snapshot_pieces.values() if pieces)
        return [piece for piece in firsts if type(piece) is SnapshotBlock]

    def has_pieces(self, tp: TopicPartition) -> bool:
        return tp in self._backfilled or bool(self._snapshot_pieces.get(tp))

    def is_gathering(self, tp: TopicPartition) -> bool:
        window = self._windows.get(tp)
        return window is not None and not window.is_drained

    def feed(self, tp: TopicPartition, run: EntryRun) -> None:
        self._backfilled.setdefault(tp, run)

    def feed_snapshot(self, tp: TopicPartition, pieces: Iterable[Entry | SnapshotBlock]) -> None:
        if not self._snapshot_pieces.get(tp):
            kept = self._snapshot_pieces[tp] = deque(pieces)
            self._piece_bytes += sum(map(buffered_size, kept))

    def drop(self, tp: TopicPartition) -> None:
        """Drop all entries of a partition, as the client does not go on with them."""
        self.drop_backfilled(tp)
        for piece in self._snapshot_pieces.pop(tp, ()):
            self._piece_bytes -= buffered_size(piece)
        self._windows.pop(tp, None)
        self._latest_offsets.pop(tp, None)
        if self._cursor.snapshot is not None:
            self._cursor.snapshot.forget_end(tp)

    def drop_backfilled(self, tp: TopicPartition) -> None:
        self._backfilled.pop(tp, None)

    def drop_all(self) -> None:
        """Drop all entries; the client goes on with them where it stands when they come again."""
        self._backfilled.clear()
        self._snapshot_pieces.clear()
        self._windows.clear()
        self._piece_bytes = 0

    # What is sent next.

    def iter_following(
        self, tp: TopicPartition, log: PartitionLog, position: PartitionPosition
    ) -> Iterator[Entry]:
        """Yield the entries after a position, from the log or, where that ends, from Kafka.

        A private read may see that the log went back before the shared read does, which alone
        decides about lineages. So entries that are not of the log's lineage are left out, and read
        again when the client has come to the next lineage.

        The iterator ends where the tail stands, because the partition joins there, unless the
        stream has an end of its own.
        """
        end, is_bounded = self._cursor.channel.tail.position[tp], self._cursor.is_bounded
        assert position.offset is not None
        if not is_bounded and end.lineage != log.lineage:
            return
        records_by_source = self._cursor.traffic.catch_up_records
        if log.covers(position):
            self.drop_backfilled(tp)  # it would only repeat what the log has
            for entry in self._iter_log(log, position.offset):
                if not is_bounded and entry.next_offset > (end.offset or 0):
                    return
                records_by_source["cache"] += 1
                yield entry
        while (run := self._backfilled.get(tp)) is not None:
            entry = run.first
            if not log.matches_lineage(entry):
                self.drop_backfilled(tp)
                return
            if not is_bounded and entry.next_offset > (end.offset or 0):
                return
            rest = run.get_rest()
            if rest is None:
                del self._backfilled[tp]
            else:
                self._backfilled[tp] = rest
            records_by_source["kafka"] += 1
            yield entry

    def _iter_log(self, log: PartitionLog, offset: int) -> Iterator[Entry]:
        if self._keys is None:
            return log.iter_entries(offset)
        return log.iter_key_entries(offset, self._keys, self._find_end(log.tp, offset))

    def _find_end(self, tp: TopicPartition, offset: int) -> float:
        """Return the first offset behind a given one at which the client has to stop.

        No run of other records may lead across it.
        """
        cursor = self._cursor
        ends: list[float] = []
        if not cursor.is_bounded:
            ends.append(cursor.channel.tail.position[tp].offset or 0)
        if cursor.end_offsets is not None:
            ends.append(cursor.end_offsets.get(tp, 0))
        if cursor.snapshot is not None:
            ends.append(cursor.snapshot.end_offsets.get(tp, 0))
        return min((end for end in ends if end > offset), default=inf)

    def iter_snapshot(self, tp: TopicPartition) -> Iterator[Entry | SnapshotBlock]:
        while pieces := self._snapshot_pieces.get(tp):
            piece = pieces.popleft()
            self._piece_bytes -= buffered_size(piece)
            self._cursor.traffic.catch_up_records["table"] += (
                piece.records if type(piece) is SnapshotBlock else 1
            )
            yield piece

    def get_window(self, tp: TopicPartition, position: PartitionPosition) -> KeyWindow:
        window = self._windows.get(tp)
        if window is None or window.is_drained:
            assert position.offset is not None
            accepts = self._cursor.channel.accepts
            window = KeyWindow(tp, position.offset, position.epoch, MAX_WINDOW_BYTES, accepts)
            self._windows[tp] = window
        return window

    def get_latest_offsets(
        self, tp: TopicPartition, log: PartitionLog, offset: int
    ) -> LatestOffsets:
        latest = self._latest_offsets.get(tp)
        if latest is None:
            latest = self._latest_offsets[tp] = self._cursor.channel.get_latest_offsets(tp)
        latest.scan(log, offset, self._cursor.channel.tail.position[tp].offset)
        return latest
