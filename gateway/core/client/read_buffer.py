"""What waits for one client to take it, of the partitions that it reads alone.

Entries come from the logs, without waiting; from Kafka, where no log holds them any more; or, of a
snapshot, from a table. For a client that is sent the latest of each key they are gathered first,
stretch by stretch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import TypeVar

from gateway.core.channel.conflation import KeyWindow, LatestOffsets, buffered_size
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.position import PartitionPosition
from gateway.core.log.record import Entry, TopicPartition

from .shared_cursor import SharedCursor
from .snapshot_blocks import SnapshotBlock

MAX_BUFFER_BYTES = 1 << 18  # bytes of records from Kafka that wait for a client to take them
MAX_WINDOW_BYTES = 1 << 20  # bytes of records that are gathered at most before they are sent

P = TypeVar("P", bound=Entry | SnapshotBlock)


class ReadBuffer:
    """See the module. Nothing of it is looked at twice: what is taken is gone."""

    __slots__ = (
        "_backfilled",
        "_bytes",
        "_cursor",
        "_latest_offsets",
        "_snapshot_pieces",
        "_windows",
    )

    def __init__(self, cursor: SharedCursor) -> None:
        self._cursor = cursor
        self._backfilled: dict[TopicPartition, deque[Entry]] = {}
        self._snapshot_pieces: dict[TopicPartition, deque[Entry | SnapshotBlock]] = {}  # of tables
        self._windows: dict[TopicPartition, KeyWindow] = {}
        self._latest_offsets: dict[TopicPartition, LatestOffsets] = {}
        self._bytes = 0  # of what was fed and brought

    @property
    def bytes(self) -> int:
        return self._bytes + sum(stretch.bytes for stretch in self._windows.values())

    @property
    def is_full(self) -> bool:
        return self.bytes >= MAX_BUFFER_BYTES

    def has_pieces(self, tp: TopicPartition) -> bool:
        """Is something there that came from Kafka?"""
        return bool(self._backfilled.get(tp) or self._snapshot_pieces.get(tp))

    def is_gathering(self, tp: TopicPartition) -> bool:
        stretch = self._windows.get(tp)
        return stretch is not None and not stretch.is_drained

    def feed(self, tp: TopicPartition, entries: Iterable[Entry]) -> None:
        """A private read may see that the log went back before the shared read does. It is no
        authority: what is not of the lineage is left out, and read again in the next one.
        """
        if not self._backfilled.get(tp):
            log = self._cursor.channel.tail.logs[tp]
            self._backfilled[tp] = self._count_pieces(takewhile(log.matches_lineage, entries))

    def feed_snapshot(self, tp: TopicPartition, pieces: Iterable[Entry | SnapshotBlock]) -> None:
        """Of its table."""
        if not self._snapshot_pieces.get(tp):
            self._snapshot_pieces[tp] = self._count_pieces(pieces)

    def drop(self, tp: TopicPartition) -> None:
        """What is there is of no use any more."""
        self.drop_backfilled(tp)
        for piece in self._snapshot_pieces.pop(tp, ()):
            self._bytes -= buffered_size(piece)
        self._windows.pop(tp, None)
        self._latest_offsets.pop(tp, None)
        if self._cursor.snapshot is not None:
            self._cursor.snapshot.forget_end(tp)

    def drop_backfilled(self, tp: TopicPartition) -> None:
        for entry in self._backfilled.pop(tp, ()):
            self._bytes -= buffered_size(entry)

    def drop_all_backfilled(self) -> None:
        """Drop all that came from Kafka."""
        for tp in list(self._backfilled):
            self.drop_backfilled(tp)

    # taking

    def iter_following(
        self, tp: TopicPartition, log: PartitionLog, place: PartitionPosition
    ) -> Iterator[Entry]:
        """What comes after a place, and not more than the tail has seen: it is joined there. One
        with an end of its own never joins."""
        end, bounded = self._cursor.channel.tail.position[tp], self._cursor.is_bounded
        assert place.offset is not None
        if not bounded and end.lineage != log.lineage:
            return
        read = self._cursor.traffic.catch_up_records
        if log.covers(place):
            self.drop_backfilled(tp)
            for entry in log.iter_entries(place.offset):
                if not bounded and entry.next_offset > (end.offset or 0):
                    return
                read["cache"] += 1
                yield entry
        while fed := self._backfilled.get(tp):
            if not bounded and fed[0].next_offset > (end.offset or 0):
                return
            entry = fed.popleft()
            self._bytes -= buffered_size(entry)
            read["kafka"] += 1
            yield entry

    def iter_snapshot(self, tp: TopicPartition) -> Iterator[Entry | SnapshotBlock]:
        """What was brought of its table."""
        while brought := self._snapshot_pieces.get(tp):
            piece = brought.popleft()
            self._bytes -= buffered_size(piece)
            self._cursor.traffic.catch_up_records["table"] += (
                piece.records if type(piece) is SnapshotBlock else 1
            )
            yield piece

    def get_window(self, tp: TopicPartition, place: PartitionPosition) -> KeyWindow:
        """The one that is being gathered or sent, or one that begins here."""
        stretch = self._windows.get(tp)
        if stretch is None or stretch.is_drained:
            assert place.offset is not None
            accepts = self._cursor.channel.accepts
            stretch = KeyWindow(tp, place.offset, place.epoch, MAX_WINDOW_BYTES, accepts)
            self._windows[tp] = stretch
        return stretch

    def get_latest_offsets(
        self, tp: TopicPartition, log: PartitionLog, offset: int
    ) -> LatestOffsets:
        """What the log has of the latest records of keys, as of now."""
        latest = self._latest_offsets.get(tp)
        if latest is None:
            latest = self._latest_offsets[tp] = self._cursor.channel.get_latest_offsets(tp)
        latest.scan(log, offset, self._cursor.channel.tail.position[tp].offset)
        return latest

    def _count_pieces(self, pieces: Iterable[P]) -> deque[P]:
        kept = deque(pieces)
        self._bytes += sum(map(buffered_size, kept))
        return kept
