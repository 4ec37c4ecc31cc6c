"""Tables of the partitions that clients want a snapshot of.

A table is read from Kafka once, by one private read for all who want it, and brought up to date
when the next client comes: from the partition's log as far as that reaches. The tables of a topic
are bounded by its `cache`. Those of one that has more are *spilled*: not kept at all, but read for
each client window by window. A window is filled from where the client stands; the rest of the
partition is read too, to find out which of its records are not the latest of their keys. So a
partition of which n windows are to be sent is read (n + 1) / 2 times over, each key comes once
nevertheless, and memory stays bounded: the remedy is a larger cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from ..config import Topic
from ..config.units import show_size
from ..core.conflation import Stretch
from ..core.position import Place
from ..core.reading import EARLIEST, Since
from ..core.record import Entry, Gap, Reason, Record, Skip, TopicPartition
from ..core.table import Edition, Key, Table
from .archive import Archive
from .feeds import Feeds

log = logging.getLogger(__name__)

AT_ONCE = 4096  # entries taken over without a turn for others: 2 ms
WINDOW = 4 << 20  # bytes of records
WINDOWS = 2  # filled at a time
AGAIN = 0.05  # seconds until a log that goes back is asked again


class Spilled(Exception):
    """The latest records of a topic, its argument, are more than its cache."""


class Tables:
    """topic: the settings of a topic, by name."""

    def __init__(self, feeds: Feeds, archive: Archive, topic: Callable[[str], Topic]) -> None:
        self.spilled: set[str] = set()
        self._feeds = feeds
        self._archive = archive
        self._topic = topic
        self._tables: dict[TopicPartition, Table] = {}
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        self._filling = asyncio.Semaphore(WINDOWS)

    @property
    def bytes(self) -> int:
        return sum(table.held for table in self._tables.values())

    def drop(self, topic: str) -> None:
        """Nobody looks at it any more."""
        self.spilled.discard(topic)
        for tp in [tp for tp in self._locks if tp.topic == topic]:
            self._tables.pop(tp, None)
            del self._locks[tp]

    async def edition(self, tp: TopicPartition, end: int) -> Edition | None:
        """The table, up to this offset at least; None if the topic's tables are spilled."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            table = await self._up_to(tp, end)
            return None if table is None else table.edition()

    async def latest(self, tp: TopicPartition, end: int, key: Key) -> Record | None:
        """Of a key, up to this offset at least. Raises Spilled."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            table = await self._up_to(tp, end)
            if table is None:
                raise Spilled(tp.topic)
            return table.get(key)

    async def _up_to(self, tp: TopicPartition, end: int) -> Table | None:
        table = self._tables.get(tp)
        while tp.topic not in self.spilled:
            lineage = self._feeds.by_partition[tp].log.lineage
            if table is None or table.place.lineage != lineage:
                start = await self._archive.resolve(tp, Since(EARLIEST))
                table = self._tables[tp] = Table(tp, start._replace(lineage=lineage))
            if await self._bring_up(table, end):
                return table
            table = None
        return None

    async def window(self, tp: TopicPartition, place: Place, end: int) -> list[Entry]:
        """Of a table that is spilled, what comes from a place on; the last entry leads to where
        the next ones are to be asked for."""
        assert place.offset is not None
        stretch = Stretch(tp, place.offset, place.epoch, WINDOW)
        at = place
        async with self._filling:
            while at.offset is not None and at.offset < end:
                for entry in await self._after(tp, at):
                    if entry.offset < end:
                        stretch.add(entry)
                    at = Place(entry.next, entry.epoch, place.lineage)
        shown = [entry for entry in stretch.close() if _is_shown(entry)]
        stood = shown[-1].next if shown else place.offset
        if stood < stretch.end:
            shown.append(Skip(tp, stood, stretch.end, stretch.epoch))
        return shown

    async def _bring_up(self, table: Table, end: int) -> bool:
        """False if it is to be made anew, or is too large."""
        tp = table.tp
        while table.place.offset is not None and table.place.offset < end:
            entries = await self._after(tp, table.place)
            if table.place.lineage != self._feeds.by_partition[tp].log.lineage:
                return False
            if not table.apply(entries):
                return False
            self._mind_size(tp.topic)
            if tp.topic in self.spilled:
                return False
        table.prune(self._feeds.by_partition[tp].reading.log_start)
        return True

    async def _after(self, tp: TopicPartition, place: Place) -> Sequence[Entry]:
        """Some entries from a place on; at least one, unless the log goes back meanwhile."""
        held = self._feeds.by_partition[tp].log
        assert place.offset is not None
        if held.covers(place):
            found = list(islice(held.read(place.offset), AT_ONCE))
            if found:
                await asyncio.sleep(0)
                return found
        read = await self._archive.read(tp, place)
        admitted = list(takewhile(held.admits, read))
        if not admitted:  # the shared read is about to see that the log went back
            await asyncio.sleep(AGAIN)
        return admitted

    def _mind_size(self, topic: str) -> None:
        mine = [tp for tp in self._tables if tp.topic == topic]
        most = self._topic(topic).cache.bytes
        if sum(self._tables[tp].bytes for tp in mine) <= most:
            return
        self.spilled.add(topic)
        for tp in mine:
            del self._tables[tp]
        log.warning(
            "the latest records of %s are more than its cache (%s): each snapshot reads them from "
            "Kafka, several times over; raise cache.bytes of the topic", topic, show_size(most),
        )  # fmt: skip


def _is_shown(entry: Entry) -> bool:
    """As in a `Table`."""
    if type(entry) is Record:
        return entry.value is not None or entry.key is None
    return type(entry) is Gap and entry.reason is Reason.CORRUPT
