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

from gateway.core.channel.conflation import LatestOffsets, Stretch, weight
from gateway.core.log.partition_log import Log
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, TopicPartition

from .shared_cursor import Ride
from .snapshot_blocks import Block

BACKLOG = 1 << 18  # bytes of records from Kafka that wait for a client to take them
STRETCH = 1 << 20  # bytes of records that are gathered at most before they are sent

P = TypeVar("P", bound=Entry | Block)


class Backlog:
    """See the module. Nothing of it is looked at twice: what is taken is gone."""

    __slots__ = ("_brought", "_bytes", "_fed", "_latest", "_ride", "_stretches")

    def __init__(self, ride: Ride) -> None:
        self._ride = ride
        self._fed: dict[TopicPartition, deque[Entry]] = {}
        self._brought: dict[TopicPartition, deque[Entry | Block]] = {}  # of tables
        self._stretches: dict[TopicPartition, Stretch] = {}
        self._latest: dict[TopicPartition, LatestOffsets] = {}
        self._bytes = 0  # of what was fed and brought

    @property
    def bytes(self) -> int:
        return self._bytes + sum(stretch.bytes for stretch in self._stretches.values())

    @property
    def full(self) -> bool:
        return self.bytes >= BACKLOG

    def has(self, tp: TopicPartition) -> bool:
        """Is something there that came from Kafka?"""
        return bool(self._fed.get(tp) or self._brought.get(tp))

    def gathers(self, tp: TopicPartition) -> bool:
        stretch = self._stretches.get(tp)
        return stretch is not None and not stretch.done

    def feed(self, tp: TopicPartition, entries: Iterable[Entry]) -> None:
        """A private read may see that the log went back before the shared read does. It is no
        authority: what is not of the lineage is left out, and read again in the next one.
        """
        if not self._fed.get(tp):
            log = self._ride.channel.tail.logs[tp]
            self._fed[tp] = self._weighed(takewhile(log.admits, entries))

    def bring(self, tp: TopicPartition, pieces: Iterable[Entry | Block]) -> None:
        """Of its table."""
        if not self._brought.get(tp):
            self._brought[tp] = self._weighed(pieces)

    def drop(self, tp: TopicPartition) -> None:
        """What is there is of no use any more."""
        self.drop_fed(tp)
        for piece in self._brought.pop(tp, ()):
            self._bytes -= weight(piece)
        self._stretches.pop(tp, None)
        self._latest.pop(tp, None)
        if self._ride.snapshot is not None:
            self._ride.snapshot.parted(tp)

    def drop_fed(self, tp: TopicPartition) -> None:
        for entry in self._fed.pop(tp, ()):
            self._bytes -= weight(entry)

    def shed(self) -> None:
        """Drop all that came from Kafka."""
        for tp in list(self._fed):
            self.drop_fed(tp)

    # taking

    def following(self, tp: TopicPartition, log: Log, place: Place) -> Iterator[Entry]:
        """What comes after a place, and not more than the tail has seen: it is joined there. One
        with an end of its own never joins."""
        end, bounded = self._ride.channel.tail.position[tp], self._ride.bounded
        assert place.offset is not None
        if not bounded and end.lineage != log.lineage:
            return
        read = self._ride.traffic.read
        if log.covers(place):
            self.drop_fed(tp)
            for entry in log.read(place.offset):
                if not bounded and entry.next > (end.offset or 0):
                    return
                read["cache"] += 1
                yield entry
        while fed := self._fed.get(tp):
            if not bounded and fed[0].next > (end.offset or 0):
                return
            entry = fed.popleft()
            self._bytes -= weight(entry)
            read["kafka"] += 1
            yield entry

    def given(self, tp: TopicPartition) -> Iterator[Entry | Block]:
        """What was brought of its table."""
        while brought := self._brought.get(tp):
            piece = brought.popleft()
            self._bytes -= weight(piece)
            self._ride.traffic.read["table"] += piece.records if type(piece) is Block else 1
            yield piece

    def stretch(self, tp: TopicPartition, place: Place) -> Stretch:
        """The one that is being gathered or sent, or one that begins here."""
        stretch = self._stretches.get(tp)
        if stretch is None or stretch.done:
            assert place.offset is not None
            accepts = self._ride.channel.accepts
            stretch = Stretch(tp, place.offset, place.epoch, STRETCH, accepts)
            self._stretches[tp] = stretch
        return stretch

    def latest(self, tp: TopicPartition, log: Log, offset: int) -> LatestOffsets:
        """What the log has of the latest records of keys, as of now."""
        latest = self._latest.get(tp)
        if latest is None:
            latest = self._latest[tp] = self._ride.channel.latest_offsets(tp)
        latest.look(log, offset, self._ride.channel.tail.position[tp].offset)
        return latest

    def _weighed(self, pieces: Iterable[P]) -> deque[P]:
        kept = deque(pieces)
        self._bytes += sum(map(weight, kept))
        return kept
