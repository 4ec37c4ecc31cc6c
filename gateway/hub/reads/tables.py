"""Tables of the partitions that clients want a snapshot of.

A table is read from Kafka once, by one private read for all who want it, and brought up to date
when the next client comes: from the partition's log as far as that reaches. The tables of a topic
are bounded by its `cache`. Those of one that has more are *spilled*: not kept at all, but read for
each client window by window. A window is filled from where the client stands; the rest of the
partition is read too, to find out which of its records are not the latest of their keys. So a
partition of which n windows are to be sent is read (n + 1) / 2 times over, each key comes once
nevertheless, and memory stays bounded: the remedy is a larger cache.

A view whose filters look at more than keys is shown a table of its own, made from the partition's
`History`: one read for all such views, and one look at each record for each of them. Of a compacted
topic a history is about twice the table; where it does not fit beside the tables, it is spilled
first, and views that need it are read for window by window.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

from gateway.config import Topic
from gateway.config.types.units import show_size
from gateway.core.channel.conflation import Stretch
from gateway.core.channel.filters import ALL, Filters
from gateway.core.client.table_snapshot import Edition, History, Table
from gateway.core.log.partition_reader import EARLIEST, Since
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Gap, Reason, Record, Skip, TopicPartition

from .archive import Archive
from .feeds import Feeds

log = logging.getLogger(__name__)

AT_ONCE = 4096  # entries taken over without a turn for others: 2 ms
WINDOW = 4 << 20  # bytes of records
WINDOWS = 2  # filled at a time
AGAIN = 0.05  # seconds until a log that goes back is asked again


T = TypeVar("T", bound=Table)
Kind: TypeAlias = type[Table]
KeyBytes: TypeAlias = bytes  # in `Tables`, `bytes` is what is held
KINDS: Sequence[tuple[Kind, str]] = (
    (History, "the records that filters look at"), (Table, "the latest records"),
)  # fmt: skip


class Spilled(Exception):
    """The latest records of a topic, its argument, are more than its cache."""


class Tables:
    """topic: the settings of a topic, by name. limit: bytes of all tables together.

    spilled: topics whose tables are. spilled_histories: those whose histories are.
    """

    def __init__(
        self,
        feeds: Feeds,
        archive: Archive,
        topic: Callable[[str], Topic],
        limit: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self.spilled: set[str] = set()
        self.spilled_histories: set[str] = set()
        self._feeds = feeds
        self._archive = archive
        self._topic = topic
        self._limit = limit
        self._tables: dict[tuple[Kind, TopicPartition], Table] = {}
        # editions of views, for those who come while nothing changed
        self._views: WeakValueDictionary[tuple[TopicPartition, Filters], Edition]
        self._views = WeakValueDictionary()
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        self._filling = asyncio.Semaphore(WINDOWS)

    @property
    def bytes(self) -> int:
        views = [shown for edition in self._views.values() for shown in edition.shown.values()]
        held = sum(table.held for table in self._tables.values())
        return held + sum(shown.bytes for shown in views)

    def drop(self, topic: str) -> None:
        """Nobody looks at it any more."""
        self.spilled.discard(topic)
        self.spilled_histories.discard(topic)
        for tp in [tp for tp in self._locks if tp.topic == topic]:
            for kind in (Table, History):
                self._tables.pop((kind, tp), None)
            del self._locks[tp]

    async def edition(self, tp: TopicPartition, end: int, filters: Filters = ALL) -> Edition | None:
        """The table of what filters let through, up to this offset at least; None if what it is
        made of is spilled."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            if not filters.by_key:
                history = await self._up_to(History, tp, end)
                return None if history is None else await self._seen(history, filters)
            table = await self._up_to(Table, tp, end)
            if table is None or filters.keys is None:
                return None if table is None else table.edition()
            return table.edition().narrowed(filters.keys)

    async def latest(
        self, tp: TopicPartition, end: int, key: KeyBytes, filters: Filters = ALL
    ) -> Record | None:
        """Of a key, the latest that filters let through, up to this offset at least. Raises
        Spilled."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            table = await self._up_to(Table, tp, end)
            if table is None:
                raise Spilled(tp.topic)
            found = table.get(key)
            if found is None or filters.matches(found):
                return found
            if filters.by_key:
                return None
            history = await self._up_to(History, tp, end)
            if history is None:
                raise Spilled(tp.topic)
            return history.latest(key, filters.matches)

    async def _seen(self, history: History, filters: Filters) -> Edition:
        """The edition of a view, shared by all that look at the same while nothing changes."""
        whole, name = history.edition(), (history.tp, filters)
        made = self._views.get(name)
        if made is not None and made.end == whole.end:
            return made
        entries = whole.entries if filters.keys is None else history.of(filters.keys)
        table = Table(history.tp, Place(0, whole.end.epoch, whole.end.lineage))
        for first in range(0, len(entries), AT_ONCE):
            some = entries[first : first + AT_ONCE]
            table.apply(e for e in some if type(e) is not Record or filters.matches(e))
            await asyncio.sleep(0)
        made = Edition(history.tp, table.edition().entries, whole.end)
        if filters.keys is None:
            self._views[name] = made
        return made

    async def _up_to(self, kind: type[T], tp: TopicPartition, end: int) -> T | None:
        table = self._tables.get((kind, tp))
        while tp.topic not in self._spilled(kind):
            lineage = self._feeds.by_partition[tp].log.lineage
            if table is None or table.place.lineage != lineage:
                start = await self._archive.resolve(tp, Since(EARLIEST))
                table = self._tables[kind, tp] = kind(tp, start._replace(lineage=lineage))
            if await self._bring_up(table, end):
                assert isinstance(table, kind)
                return table
            table = None
        return None

    def _spilled(self, kind: Kind) -> set[str]:
        return self.spilled if kind is Table else self.spilled_histories

    async def window(
        self, tp: TopicPartition, place: Place, end: int, filters: Filters = ALL
    ) -> list[Entry]:
        """Of a table that is spilled, what comes from a place on; the last entry leads to where
        the next ones are to be asked for."""
        assert place.offset is not None

        def accepts(record: Record) -> bool:  # a tombstone removes its key for everybody
            return record.value is None or filters.matches(record)

        stretch = Stretch(
            tp, place.offset, place.epoch, WINDOW, accepts if filters.filters else None
        )
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
            if tp.topic in self._spilled(type(table)):
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
        """Histories go first: views that need none are served from tables."""
        others = sum(table.bytes for (_, tp), table in self._tables.items() if tp.topic != topic)
        cache, left = self._topic(topic).cache.bytes, max(0, self._limit() - others)
        most = min(cache, left)
        bound, remedy = (
            ("its cache", "cache.bytes of the topic")
            if cache <= left
            else ("what `memory` leaves for tables", "memory")
        )
        for kind, what in KINDS:
            mine = [name for name in self._tables if name[1].topic == topic]
            if sum(self._tables[name].bytes for name in mine) <= most:
                return
            gone = [name for name in mine if name[0] is kind]
            if gone:
                self._spilled(kind).add(topic)
                for name in gone:
                    del self._tables[name]
                log.warning(
                    "%s of %s are more than %s (%s): each snapshot reads them from Kafka, "
                    "several times over; raise %s",
                    what, topic, bound, show_size(most), remedy,
                )  # fmt: skip


def _is_shown(entry: Entry) -> bool:
    """As in a `Table`."""
    if type(entry) is Record:
        return entry.value is not None or entry.key is None
    return type(entry) is Gap and entry.reason is Reason.CORRUPT
