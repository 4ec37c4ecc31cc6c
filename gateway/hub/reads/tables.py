"""Keep the tables that snapshots are made of: the latest record of each key, by partition.

A table is read from Kafka once, by one private read for all clients that want it, and updated when
the next client comes: from the partition's log as far as that reaches. The tables of a topic are
limited by its `cache`. If they are larger, they are *spilled*: they are not kept, but read for each
client window by window. A window is filled from where the client stands; the rest of the partition
is read, too, to find out which records of the window are not the latest of their keys. So a
partition of n windows is read (n + 1) / 2 times over. Each key is still sent once, and memory stays
bounded; the remedy is a larger cache.

A view whose filters look at more than keys has a table of its own, which is built from the
partition's `RecordHistory`: one read for all such views, and one look at each record for each of
them. For a compacted topic a history is about twice as large as the table. If it does not fit
beside the tables, it is spilled first, and views that need it are read window by window.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from operator import length_hint
from time import monotonic
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

from gateway.config import Topic
from gateway.config.types.units import format_size
from gateway.core.channel.conflation import KeyWindow, buffered_size
from gateway.core.channel.filters import (
    MATCH_ALL,
    MISSING,
    Filters,
    LazyValue,
    parse_pointer,
)
from gateway.core.client.snapshot import KeyTable, RecordHistory, TableSnapshot
from gateway.core.client.terms import ClientKey
from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.record import (
    UNREADABLE_REASONS,
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    Record,
    Skip,
    TopicPartition,
)

from .backfill_reader import BackfillReader
from .shared_reads import SharedReads
from .slices import ClientTurns, Slice, Slices

log = logging.getLogger(__name__)

MAX_ENTRIES_AT_ONCE = 4096  # entries that are processed before other tasks get a turn: 2 ms
FEW_ENTRIES = 256  # that a table takes at once: documents do not wait for slices
WINDOW_BYTES = 4 << 20  # bytes of records in a window
MAX_PLACES = 2  # of one client in which views are built, and as many for documents
MAX_OPEN_WINDOWS = 2  # windows that are filled at a time
MIN_SPILL_S, MAX_SPILL_S = 60.0, 960.0  # seconds until what did not fit is tried again
MAX_JUDGED_BYTES = 256 * 1024  # in which a field is looked for that a filter has not found
RETRY_DELAY_S = 0.05  # seconds until a log that goes back is read again


T = TypeVar("T", bound=KeyTable)
TableType: TypeAlias = type[KeyTable]
KeyBytes: TypeAlias = bytes  # in `Tables`, `bytes` may be taken for a size
# In the order in which they are spilled, with how a warning calls what they hold.
TABLE_CONTENTS: Mapping[TableType, str] = {
    RecordHistory: "the records that filters look at", KeyTable: "the latest records",
}  # fmt: skip


class TableSpilled(Exception):
    """Report that the latest records of a topic, which is the argument, are more than its cache."""


class Tables:
    """The tables and histories of the partitions of one cluster.

    Each is built or updated under its lock. Between calls, the tables of a
    topic are within its `cache`, and all of them within the limit that `get_limit` returns.
    """

    def __init__(
        self,
        shared_reads: SharedReads,
        backfill_reader: BackfillReader,
        get_topic_settings: Callable[[str], Topic],
        get_limit: Callable[[], int] = lambda: sys.maxsize,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.spilled: set[str] = set()
        self.spilled_histories: set[str] = set()
        # Those for `memory`: each ends once more bytes than this are free, at this time or later.
        self._memory_spills: dict[tuple[TableType, str], tuple[int, float]] = {}
        self._spill_times: dict[tuple[TableType, str], float] = {}  # of the last one, at least
        self._shared_reads = shared_reads
        self._backfill_reader = backfill_reader
        self._get_topic_settings = get_topic_settings
        self._get_limit = get_limit
        self._window_bytes = window_bytes
        self._judged_topics: set[str] = set()  # those with a warning of a field that is nowhere
        self._tables: dict[tuple[TableType, TopicPartition], KeyTable] = {}
        # Snapshots of views, for clients that come while nothing changes and others still use them.
        self._view_snapshots: WeakValueDictionary[tuple[TopicPartition, Filters], TableSnapshot]
        self._view_snapshots = WeakValueDictionary()
        self._locks: WeakValueDictionary[tuple[TableType, TopicPartition], asyncio.Lock]
        self._locks = WeakValueDictionary()
        # One view of a partition is built at a time, so that equal views share it.
        self._view_turns: WeakValueDictionary[TopicPartition, ClientTurns] = WeakValueDictionary()
        self.slices = Slices()
        # Of a client, for views, and apart from these for documents.
        self._places: WeakValueDictionary[tuple[str, ClientKey], asyncio.Semaphore]
        self._places = WeakValueDictionary()
        self._window_slots = asyncio.Semaphore(MAX_OPEN_WINDOWS)

    def limit_snapshots(self) -> int:
        """Drop what snapshots take beyond what the tables leave of the limit.

        What was encoded of them goes first. Then some are released, if they are of views or not of
        the present. Clients that still read these are sent the rest as if the tables were spilled.
        Returns the bytes of all tables, of what was encoded of them, and of snapshots.
        """
        limit = self._get_limit()
        self._forget_spills(limit)
        kept_bytes, releasable = self._measure()
        if kept_bytes + sum(releasable.values()) > limit:
            for table in releasable:
                table.drop_encoded()
            kept_bytes, releasable = self._measure()
        available = max(0, limit - kept_bytes)
        while sum(releasable.values()) > available:
            for table, size in releasable.items():
                if size > available // len(releasable):
                    table.release_half()
                    releasable[table] = table.releasable_bytes
        return kept_bytes + sum(releasable.values())

    def _measure(self) -> tuple[int, dict[KeyTable, int]]:
        """Return the bytes that cannot be released, and those that can by table."""
        tables = self._tables.values()
        return sum(t.kept_bytes for t in tables), {t: t.releasable_bytes for t in tables}

    def _forget_spills(self, limit: int) -> None:
        """Let topics have tables again for which memory was too small, once it has room."""
        room = limit - sum(table.bytes for table in self._tables.values())
        for (table_type, topic), (needed, retry_at) in list(self._memory_spills.items()):
            if needed < room and retry_at <= monotonic():
                room -= needed
                del self._memory_spills[table_type, topic]
                self._get_spilled(table_type).discard(topic)

    def drop_topic(self, topic: str) -> None:
        for table_type in TABLE_CONTENTS:
            self._memory_spills.pop((table_type, topic), None)
            self._spill_times.pop((table_type, topic), None)
            self._get_spilled(table_type).discard(topic)
        self._judged_topics.discard(topic)
        for key in [key for key in self._tables if key[1].topic == topic]:
            self._drop_table(*key)

    async def read_to(self, tp: TopicPartition, end: int, filters: Filters) -> None:
        """Read what `get_snapshot` needs, unless it is spilled."""
        await self._get_table(KeyTable if filters.is_key_only else RecordHistory, tp, end)

    async def get_snapshot(
        self,
        tp: TopicPartition,
        end: int,
        filters: Filters = MATCH_ALL,
        client_key: ClientKey = "",
    ) -> TableSnapshot | None:
        """Return a snapshot up to an offset at least; None if the table or history is spilled.

        `client_key` is as in `SubscriptionTerms`.
        """
        while not filters.is_key_only:
            history = await self._get_table(RecordHistory, tp, end)
            if history is None:
                return None
            turns = self._view_turns.setdefault(tp, ClientTurns())
            async with self._take_place("views", client_key), turns.take(client_key):
                if self._tables.get((RecordHistory, tp)) is history:  # nobody reads Kafka in a turn
                    return await self._build_view_snapshot(history, filters, client_key)
        table = await self._get_table(KeyTable, tp, end)
        if table is None or filters.keys is None:
            return None if table is None else table.take_snapshot()
        selected = table.select_keys(filters.keys)
        return table.create_snapshot(selected, sum(map(buffered_size, selected)))

    async def get_latest(
        self,
        tp: TopicPartition,
        end: int,
        key: KeyBytes,
        filters: Filters = MATCH_ALL,
        client_key: ClientKey = "",
    ) -> Record | None:
        """Return the latest record of a key that the filters let through, up to an offset at least.

        Raises:
            TableSpilled: The table or history that is needed is spilled.
        """
        table = await self._get_table(KeyTable, tp, end)
        if table is None:
            raise TableSpilled(tp.topic)
        latest = table.get(key)
        if latest is None or filters.matches(latest):
            return latest
        if filters.is_key_only:
            return None
        # The latest record is not for this view: an earlier one may be.
        history = await self._get_table(RecordHistory, tp, end)
        if history is None:
            raise TableSpilled(tp.topic)
        async with self._take_place("documents", client_key):  # each holds the records of the key
            newest_first = history.select_keys((key,))[::-1]
            async for matching in self._iter_matching(newest_first, filters, client_key):
                for entry in matching:
                    if type(entry) is Record:
                        return entry
        return None

    def _take_place(self, work: str, client_key: ClientKey) -> asyncio.Semaphore:
        return self._places.setdefault((work, client_key), asyncio.Semaphore(MAX_PLACES))

    async def _iter_matching(
        self, entries: Sequence[Record | Gap], filters: Filters, client_key: ClientKey
    ) -> AsyncIterator[list[Record | Gap]]:
        """Yield gaps, and the records that filters let through, in slices."""
        remaining = iter(entries)

        def match(is_over: Callable[[], bool]) -> list[Record | Gap]:
            matching: list[Record | Gap] = []
            for entry in remaining:
                if type(entry) is not Record or filters.matches(entry):
                    matching.append(entry)
                if is_over():
                    break
            return matching

        while length_hint(remaining):
            yield await self.slices.work(client_key, Slice(match), is_locked=True)

    async def _build_view_snapshot(
        self, history: RecordHistory, filters: Filters, client_key: ClientKey
    ) -> TableSnapshot | None:
        """Return the snapshot of a view, shared by clients of equal views while nothing changes.

        None if the history is spilled meanwhile.
        """
        whole, cache_key = history.take_snapshot(), (history.tp, filters)
        snapshot = self._view_snapshots.get(cache_key)
        is_present = snapshot is not None and snapshot.end_position == whole.end_position
        if snapshot is not None and is_present and not snapshot.is_released:
            return snapshot
        entries = whole.entries if filters.keys is None else history.select_keys(filters.keys)
        table = KeyTable(
            history.tp, PartitionPosition(0, whole.end_position.epoch, whole.end_position.lineage)
        )
        async for matching in self._iter_matching(entries, filters, client_key):
            table.apply(matching)
        if self._tables.get((RecordHistory, history.tp)) is not history:
            return None
        snapshot = history.create_snapshot(table.take_snapshot().entries, table.bytes, whole)
        if not snapshot.entries and history.tp.topic not in self._judged_topics:
            self._warn_of_missing_field(history.tp, entries, filters)
        if filters.keys is None:  # else only the records of these keys were looked at: that is fast
            self._view_snapshots[cache_key] = snapshot
        return snapshot

    def _warn_of_missing_field(
        self, tp: TopicPartition, entries: Sequence[Entry], filters: Filters
    ) -> None:
        """Log if none of some records has a field that filters ask for: it may be misspelled."""
        paths = {pointer: parse_pointer(pointer) for pointer in sorted(filters.required_pointers)}
        count, bytes_left = 0, MAX_JUDGED_BYTES
        for entry in entries:
            if not paths or bytes_left < 0:
                break
            if type(entry) is Record and entry.value is not None:
                value = LazyValue(entry.value)
                paths = {p: path for p, path in paths.items() if value.get_value(path) is MISSING}
                count, bytes_left = count + 1, bytes_left - entry.payload_size
        if count and paths:
            self._judged_topics.add(tp.topic)
            log.warning(
                "a snapshot of %s is empty: its filter looks at %s, which none of %d records has; "
                "correct the filter", tp, next(iter(paths)), count,
            )  # fmt: skip

    async def _get_table(self, table_type: type[T], tp: TopicPartition, end: int) -> T | None:
        """Return a table that reaches up to `end`; None if it is spilled."""
        table = self._tables.get((table_type, tp))
        log = self._shared_reads.by_partition[tp].log
        if table is None or table.position.lineage != log.lineage or not table.reaches(end):
            async with self._locks.setdefault((table_type, tp), asyncio.Lock()):
                return await self._build_table(table_type, tp, end)
        self._prune(table)
        assert isinstance(table, table_type)
        return table

    async def _build_table(self, table_type: type[T], tp: TopicPartition, end: int) -> T | None:
        key = table_type, tp
        table = self._tables.get(key)
        while tp.topic not in self._get_spilled(table_type):
            lineage = self._shared_reads.by_partition[tp].log.lineage
            # A table of a log that went back cannot be mended: what the cut-off records had
            # replaced is not known any more.
            if table is None or table.position.lineage != lineage:
                start = await self._backfill_reader.resolve_start(tp, TimestampStart(EARLIEST))
                self._drop_table(table_type, tp)
                table = self._tables[key] = table_type(tp, start._replace(lineage=lineage))
            if await self._update_table(table, end) and self._tables.get(key) is table:
                assert isinstance(table, table_type)
                return table
            table = None  # the log went back: build it anew, unless it is spilled by now
        return None

    def _drop_table(self, table_type: TableType, tp: TopicPartition) -> None:
        table = self._tables.pop((table_type, tp), None)
        if table is not None:
            table.release_all()

    def _get_spilled(self, table_type: TableType) -> set[str]:
        return self.spilled if table_type is KeyTable else self.spilled_histories

    async def read_window(
        self,
        tp: TopicPartition,
        position: PartitionPosition,
        end: int,
        filters: Filters = MATCH_ALL,
        client_key: ClientKey = "",
    ) -> list[Entry]:
        """Return entries of a spilled table; the last one leads to where the next window begins."""
        assert position.offset is not None

        def accepts(record: Record) -> bool:
            # A tombstone removes its key for every view, whatever that lets through.
            return record.value is None or filters.matches(record)

        window = KeyWindow(
            tp,
            position.offset,
            position.epoch,
            self._window_bytes,
            accepts if filters.filters else None,
        )
        read_position = position

        def gather(remaining: Iterator[Entry], is_over: Callable[[], bool]) -> None:
            nonlocal read_position
            for entry in remaining:
                if entry.offset < end:
                    window.add(entry)
                read_position = PartitionPosition(entry.next_offset, entry.epoch, position.lineage)
                if is_over():
                    break

        async with self._window_slots:
            # Up to the end, also when the window is full: later records replace some in it.
            while read_position.offset is not None and read_position.offset < end:
                remaining = iter(await self._read_from(tp, read_position))
                while length_hint(remaining):
                    slice = Slice(partial(gather, remaining))
                    await self.slices.work(client_key, slice, is_locked=True)
        shown = [entry for entry in window.close() if _is_shown(entry)]
        shown_end = shown[-1].next_offset if shown else position.offset
        if shown_end < window.end_offset:
            shown.append(Skip(tp, shown_end, window.end_offset, window.epoch))
        return shown

    async def _update_table(self, table: KeyTable, end: int) -> bool:
        """Bring a table up to an offset; return False if the log went back, or it was spilled."""
        tp = table.tp
        while not table.reaches(end):
            if not await self._apply_in_turn(table, await self._read_from(tp, table.position)):
                return False
        self._prune(table)
        return True

    def _prune(self, table: KeyTable) -> None:
        """Remove from a table what retention has deleted in Kafka."""
        table.prune(self._shared_reads.by_partition[table.tp].reader.log_start_offset)

    async def _apply_in_turn(self, table: KeyTable, entries: Sequence[Entry]) -> bool:
        if len(entries) <= FEW_ENTRIES:
            return self._apply(table, entries)
        slice = Slice(lambda _: self._apply(table, entries))
        return await self.slices.work("", slice, is_locked=True)

    def _apply(self, table: KeyTable, entries: Sequence[Entry]) -> bool:
        # It may have been spilled meanwhile, and what was read may be of the log as it was then.
        if self._tables.get((type(table), table.tp)) is not table:
            return False
        if table.position.lineage != self._shared_reads.by_partition[table.tp].log.lineage:
            return False
        if not table.apply(entries):
            return False
        self._enforce_limit(type(table), table.tp.topic)
        return table.tp.topic not in self._get_spilled(type(table))

    async def _read_from(self, tp: TopicPartition, position: PartitionPosition) -> Sequence[Entry]:
        """Return some entries from a position on: at least one, unless the log goes back.

        With `offsetOutOfRange: latest`, reads skip to the end of the log when the records at their
        position are gone. A table goes on at the first record instead: it needs those skipped.
        """
        partition_log = self._shared_reads.by_partition[tp].log
        assert position.offset is not None
        if partition_log.covers(position):
            following = takewhile(_is_read, partition_log.iter_entries(position.offset))
            entries = list(islice(following, MAX_ENTRIES_AT_ONCE))
            if entries:
                await asyncio.sleep(0)
                return entries
        read = await self._backfill_reader.read(tp, position)
        valid = list(takewhile(partition_log.matches_lineage, read))
        if valid and not _is_read(valid[0]):
            start = await self._backfill_reader.resolve_start(tp, TimestampStart(EARLIEST))
            first = start.offset or 0
            if first > position.offset:
                return [Gap(tp, position.offset, first, start.epoch, GapReason.RETENTION)]
            valid = []  # Kafka has the position again, or the log went back
        if not valid:  # the shared read is about to find out that the log went back
            await asyncio.sleep(RETRY_DELAY_S)
        return valid

    def _enforce_limit(self, table_type: TableType, topic: str) -> None:
        """Spill tables of a topic that grow beyond its cache, or beyond what memory leaves.

        Histories are spilled first: views that need none are still served from tables. What a
        filter looks at must not cost another topic its tables, nor a table those that are in use.
        """
        max_bytes = self._get_topic_settings(topic).cache.bytes
        for each in TABLE_CONTENTS:
            if sum(self._count_bytes(each, topic) for each in TABLE_CONTENTS) > max_bytes:
                bound = f"its cache ({format_size(max_bytes)})"
                self._spill(each, topic, bound, "cache.bytes of the topic")
        excess = sum(table.bytes for table in self._tables.values()) - self._get_limit()
        if excess <= 0:
            return
        histories = Counter[str]()
        for (each, tp), table in self._tables.items():
            if each is RecordHistory:
                histories[tp.topic] += table.bytes
        if table_type is RecordHistory or histories.total() < excess:
            # How much it needs is not known, but that it is more than there is.
            room, key = self._count_bytes(table_type, topic) - excess, (table_type, topic)
            seconds = min(MAX_SPILL_S, 2 * self._spill_times.get(key, MIN_SPILL_S / 2))
            self._spill_times[key] = seconds
            self._spill_for_memory(table_type, topic, room, seconds)
            return
        for name, size in histories.most_common():
            if excess > 0:
                excess -= size
                self._spill_for_memory(RecordHistory, name, size)

    def _spill_for_memory(
        self, table_type: TableType, topic: str, needed: int, seconds: float = 0.0
    ) -> None:
        bound = f"what `memory` leaves for tables ({format_size(self._get_limit())})"
        self._spill(table_type, topic, bound, "memory")
        self._memory_spills[table_type, topic] = needed, monotonic() + seconds

    def _count_bytes(self, table_type: TableType, topic: str) -> int:
        return sum(
            table.bytes
            for (each, tp), table in self._tables.items()
            if each is table_type and tp.topic == topic
        )

    def _spill(self, table_type: TableType, topic: str, bound: str, remedy: str) -> None:
        dropped = [key for key in self._tables if key[0] is table_type and key[1].topic == topic]
        if not dropped:
            return
        self._get_spilled(table_type).add(topic)
        self._memory_spills.pop((table_type, topic), None)
        for key in dropped:
            self._drop_table(*key)
        log.warning(
            "%s of %s are more than %s: each snapshot reads them from Kafka, several times over; "
            "raise %s", TABLE_CONTENTS[table_type], topic, bound, remedy,
        )  # fmt: skip


def _is_read(entry: Entry) -> bool:
    """Return whether a table can take an entry as it is: no gap of skipped records."""
    return type(entry) is not Gap or entry.reason is not GapReason.SKIPPED


def _is_shown(entry: Entry) -> bool:
    """Return whether an entry is part of a table (see `KeyTable`)."""
    if type(entry) is Record:
        return entry.value is not None or entry.key is None
    return type(entry) is Gap and entry.reason in UNREADABLE_REASONS
