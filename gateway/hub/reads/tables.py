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
from gateway.config.types.units import format_size
from gateway.core.channel.conflation import KeyWindow
from gateway.core.channel.filters import MATCH_ALL, Filters
from gateway.core.client.table_snapshot import KeyTable, RecordHistory, TableSnapshot
from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.position import PartitionPosition
from gateway.core.log.record import Entry, Gap, GapReason, Record, Skip, TopicPartition

from .backfill_reader import BackfillReader
from .shared_reads import SharedReads

log = logging.getLogger(__name__)

MAX_ENTRIES_AT_ONCE = 4096  # entries taken over without a turn for others: 2 ms
WINDOW_BYTES = 4 << 20  # bytes of records
MAX_OPEN_WINDOWS = 2  # filled at a time
RETRY_DELAY_S = 0.05  # seconds until a log that goes back is asked again


T = TypeVar("T", bound=KeyTable)
TableType: TypeAlias = type[KeyTable]
KeyBytes: TypeAlias = bytes  # in `Tables`, `bytes` is what is held
TABLE_TYPES: Sequence[tuple[TableType, str]] = (
    (RecordHistory, "the records that filters look at"), (KeyTable, "the latest records"),
)  # fmt: skip


class TableSpilled(Exception):
    """The latest records of a topic, its argument, are more than its cache."""


class Tables:
    """topic: the settings of a topic, by name. limit: bytes of all tables together.

    spilled: topics whose tables are. spilled_histories: those whose histories are.
    """

    def __init__(
        self,
        shared_reads: SharedReads,
        backfill_reader: BackfillReader,
        get_topic_settings: Callable[[str], Topic],
        get_limit: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self.spilled: set[str] = set()
        self.spilled_histories: set[str] = set()
        self._shared_reads = shared_reads
        self._backfill_reader = backfill_reader
        self._get_topic_settings = get_topic_settings
        self._get_limit = get_limit
        self._tables: dict[tuple[TableType, TopicPartition], KeyTable] = {}
        # editions of views, for those who come while nothing changed
        self._view_snapshots: WeakValueDictionary[tuple[TopicPartition, Filters], TableSnapshot]
        self._view_snapshots = WeakValueDictionary()
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        self._window_slots = asyncio.Semaphore(MAX_OPEN_WINDOWS)

    @property
    def used_bytes(self) -> int:
        views = [
            shown
            for edition in self._view_snapshots.values()
            for shown in edition.encoded_by_channel.values()
        ]
        held = sum(table.total_bytes for table in self._tables.values())
        return held + sum(shown.bytes for shown in views)

    def drop_topic(self, topic: str) -> None:
        """Nobody looks at it any more."""
        self.spilled.discard(topic)
        self.spilled_histories.discard(topic)
        for tp in [tp for tp in self._locks if tp.topic == topic]:
            for kind in (KeyTable, RecordHistory):
                self._tables.pop((kind, tp), None)
            del self._locks[tp]

    async def get_snapshot(
        self, tp: TopicPartition, end: int, filters: Filters = MATCH_ALL
    ) -> TableSnapshot | None:
        """The table of what filters let through, up to this offset at least; None if what it is
        made of is spilled."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            if not filters.is_key_only:
                history = await self._get_table(RecordHistory, tp, end)
                return (
                    None if history is None else await self._build_view_snapshot(history, filters)
                )
            table = await self._get_table(KeyTable, tp, end)
            if table is None or filters.keys is None:
                return None if table is None else table.take_snapshot()
            return table.take_snapshot().select_keys(filters.keys)

    async def get_latest(
        self, tp: TopicPartition, end: int, key: KeyBytes, filters: Filters = MATCH_ALL
    ) -> Record | None:
        """Of a key, the latest that filters let through, up to this offset at least. Raises
        Spilled."""
        async with self._locks.setdefault(tp, asyncio.Lock()):
            table = await self._get_table(KeyTable, tp, end)
            if table is None:
                raise TableSpilled(tp.topic)
            found = table.get(key)
            if found is None or filters.matches(found):
                return found
            if filters.is_key_only:
                return None
            history = await self._get_table(RecordHistory, tp, end)
            if history is None:
                raise TableSpilled(tp.topic)
            return history.get_latest(key, filters.matches)

    async def _build_view_snapshot(self, history: RecordHistory, filters: Filters) -> TableSnapshot:
        """The edition of a view, shared by all that look at the same while nothing changes."""
        whole, name = history.take_snapshot(), (history.tp, filters)
        made = self._view_snapshots.get(name)
        if made is not None and made.end_position == whole.end_position:
            return made
        entries = whole.entries if filters.keys is None else history.select_keys(filters.keys)
        table = KeyTable(
            history.tp, PartitionPosition(0, whole.end_position.epoch, whole.end_position.lineage)
        )
        for first in range(0, len(entries), MAX_ENTRIES_AT_ONCE):
            some = entries[first : first + MAX_ENTRIES_AT_ONCE]
            table.apply(e for e in some if type(e) is not Record or filters.matches(e))
            await asyncio.sleep(0)
        made = TableSnapshot(history.tp, table.take_snapshot().entries, whole.end_position)
        if filters.keys is None:
            self._view_snapshots[name] = made
        return made

    async def _get_table(self, table_type: type[T], tp: TopicPartition, end: int) -> T | None:
        table = self._tables.get((table_type, tp))
        while tp.topic not in self._get_spilled(table_type):
            lineage = self._shared_reads.by_partition[tp].log.lineage
            if table is None or table.position.lineage != lineage:
                start = await self._backfill_reader.resolve_start(tp, TimestampStart(EARLIEST))
                table = self._tables[table_type, tp] = table_type(
                    tp, start._replace(lineage=lineage)
                )
            if await self._update_table(table, end):
                assert isinstance(table, table_type)
                return table
            table = None
        return None

    def _get_spilled(self, table_type: TableType) -> set[str]:
        return self.spilled if table_type is KeyTable else self.spilled_histories

    async def read_window(
        self, tp: TopicPartition, place: PartitionPosition, end: int, filters: Filters = MATCH_ALL
    ) -> list[Entry]:
        """Of a table that is spilled, what comes from a place on; the last entry leads to where
        the next ones are to be asked for."""
        assert place.offset is not None

        def accepts(record: Record) -> bool:  # a tombstone removes its key for everybody
            return record.value is None or filters.matches(record)

        stretch = KeyWindow(
            tp, place.offset, place.epoch, WINDOW_BYTES, accepts if filters.filters else None
        )
        at = place
        async with self._window_slots:
            while at.offset is not None and at.offset < end:
                for entry in await self._read_from(tp, at):
                    if entry.offset < end:
                        stretch.add(entry)
                    at = PartitionPosition(entry.next_offset, entry.epoch, place.lineage)
        shown = [entry for entry in stretch.close() if _is_shown(entry)]
        stood = shown[-1].next_offset if shown else place.offset
        if stood < stretch.end_offset:
            shown.append(Skip(tp, stood, stretch.end_offset, stretch.epoch))
        return shown

    async def _update_table(self, table: KeyTable, end: int) -> bool:
        """False if it is to be made anew, or is too large."""
        tp = table.tp
        while table.position.offset is not None and table.position.offset < end:
            entries = await self._read_from(tp, table.position)
            if table.position.lineage != self._shared_reads.by_partition[tp].log.lineage:
                return False
            if not table.apply(entries):
                return False
            self._enforce_limit(tp.topic)
            if tp.topic in self._get_spilled(type(table)):
                return False
        table.prune(self._shared_reads.by_partition[tp].reader.log_start_offset)
        return True

    async def _read_from(self, tp: TopicPartition, place: PartitionPosition) -> Sequence[Entry]:
        """Some entries from a place on; at least one, unless the log goes back meanwhile."""
        held = self._shared_reads.by_partition[tp].log
        assert place.offset is not None
        if held.covers(place):
            found = list(islice(held.iter_entries(place.offset), MAX_ENTRIES_AT_ONCE))
            if found:
                await asyncio.sleep(0)
                return found
        read = await self._backfill_reader.read(tp, place)
        admitted = list(takewhile(held.matches_lineage, read))
        if not admitted:  # the shared read is about to see that the log went back
            await asyncio.sleep(RETRY_DELAY_S)
        return admitted

    def _enforce_limit(self, topic: str) -> None:
        """Histories go first: views that need none are served from tables."""
        others = sum(table.bytes for (_, tp), table in self._tables.items() if tp.topic != topic)
        cache, left = (
            self._get_topic_settings(topic).cache.bytes,
            max(0, self._get_limit() - others),
        )
        most = min(cache, left)
        bound, remedy = (
            ("its cache", "cache.bytes of the topic")
            if cache <= left
            else ("what `memory` leaves for tables", "memory")
        )
        for kind, what in TABLE_TYPES:
            mine = [name for name in self._tables if name[1].topic == topic]
            if sum(self._tables[name].bytes for name in mine) <= most:
                return
            gone = [name for name in mine if name[0] is kind]
            if gone:
                self._get_spilled(kind).add(topic)
                for name in gone:
                    del self._tables[name]
                log.warning(
                    "%s of %s are more than %s (%s): each snapshot reads them from Kafka, "
                    "several times over; raise %s",
                    what, topic, bound, format_size(most), remedy,
                )  # fmt: skip


def _is_shown(entry: Entry) -> bool:
    """As in a `Table`."""
    if type(entry) is Record:
        return entry.value is not None or entry.key is None
    return type(entry) is Gap and entry.reason is GapReason.CORRUPT
