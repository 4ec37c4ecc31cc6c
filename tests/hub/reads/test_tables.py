"""Tables as they are read and kept up."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.snapshot_model import PARTITIONS, KeyedTopic

from gateway.config import Topic
from gateway.core.channel.channel import Channel
from gateway.core.channel.filters import Condition, Filter, Filters, LazyValue
from gateway.core.client import private_reader
from gateway.core.client.snapshot import KeyTable, Snapshot, SnapshotBlocks, TableSnapshot
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.record import (
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    Record,
    Skip,
    TopicPartition,
)
from gateway.formats import create_format
from gateway.hub.reads import slices
from gateway.hub.reads import tables as tables_module
from gateway.hub.reads.snapshots import SnapshotRead
from gateway.hub.reads.tables import FEW_ENTRIES, Tables, TableSpilled
from gateway.hub.wires.sse import SseWire

A = TopicPartition("prices", 0)


class FakePartition:
    """One partition, as an archive and as a shared read with a short log see it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.read_offsets: list[int] = []
        self.log = PartitionLog(A, 1 << 20, 60.0)
        self.log_start = 0
        reader = SimpleNamespace(log_start_offset=0)
        self.by_partition = {A: SimpleNamespace(log=self.log, reader=reader)}

    def write_record(self, key: str, value: str | None, *, is_logged: bool = False) -> None:
        value_ = None if value is None else value.encode()
        record = Record(A, len(self.records), 0, 0, key.encode(), value_)
        self.records.append(record)
        if is_logged:
            if self.log.next_offset is None:
                self.log.open(record.offset, 0)
            self.log.append(record, 0.0)

    async def read(self, tp: TopicPartition, place: PartitionPosition) -> list[Entry]:
        assert place.offset is not None
        self.read_offsets.append(place.offset)
        await asyncio.sleep(0)
        if place.offset < self.log_start:  # as of `offsetOutOfRange: latest`
            return [Gap(A, place.offset, len(self.records), 0, GapReason.SKIPPED)]
        return list(self.records[place.offset : place.offset + 3])

    async def resolve_start(self, tp: TopicPartition, start: TimestampStart) -> PartitionPosition:
        assert start == TimestampStart(EARLIEST)
        return PartitionPosition(self.log_start)


@pytest.fixture
async def kafka() -> AsyncIterator[FakePartition]:
    yield FakePartition()


def build_tables(
    kafka: FakePartition, cache: str = "64MiB", limit: int = 1 << 30, **options: Any
) -> Tables:
    settings = Topic.model_validate({"name": "prices", "cache": {"bytes": cache}})
    topic: Callable[[str], Topic] = lambda name: settings  # noqa: E731
    return Tables(kafka, kafka, topic, lambda: limit, **options)  # type: ignore[arg-type]


async def test_all_who_come_at_once_share_one_read_and_one_edition(kafka: FakePartition):
    for n in range(6):
        kafka.write_record(f"k{n % 4}", str(n))
    made = build_tables(kafka)
    editions = await asyncio.gather(*(made.get_snapshot(A, 6) for _ in range(50)))
    assert kafka.read_offsets == [0, 3]
    assert len({id(edition) for edition in editions}) == 1
    assert editions[0] is not None
    assert [entry.offset for entry in editions[0].entries] == [2, 3, 4, 5]


async def test_what_came_since_is_taken_from_the_log(kafka: FakePartition):
    kafka.write_record("a", "1")
    made = build_tables(kafka)
    await made.get_snapshot(A, 1)
    kafka.write_record("b", "1", is_logged=True)
    kafka.write_record("a", None, is_logged=True)
    edition = await made.get_snapshot(A, 3)
    assert edition is not None
    assert [entry.offset for entry in edition.entries] == [1]
    assert kafka.read_offsets == [0]


async def test_a_log_that_went_back_makes_it_anew(kafka: FakePartition):
    kafka.write_record("a", "1")
    made = build_tables(kafka)
    first = await made.get_snapshot(A, 1)
    kafka.log.lineage = 1
    kafka.records.clear()
    kafka.write_record("b", "1")
    second = await made.get_snapshot(A, 1)
    assert first is not None and second is not None
    assert second.end_position == PartitionPosition(1, 0, 1)
    assert [r.key for r in second.entries if isinstance(r, Record)] == [b"b"]


async def test_one_larger_than_its_cache_is_read_window_by_window(kafka: FakePartition):
    """Each key once, as its latest; what is deleted is not there."""
    for n in range(30):
        kafka.write_record(f"k{n % 12}", "x" * 100)
    kafka.write_record("k1", None)
    made = build_tables(kafka, "1KiB", window_bytes=1000)
    assert await made.get_snapshot(A, 31) is None
    assert (made.spilled, made.limit_snapshots()) == ({"prices"}, 0)
    place, got, windows = PartitionPosition(0), list[Entry](), 0
    while place.offset is not None and place.offset < 31:
        entries = await made.read_window(A, place, 31)
        place, windows = PartitionPosition(entries[-1].next_offset), windows + 1
        got += entries
    found = [entry.offset for entry in got if not isinstance(entry, Skip)]
    last = {record.key: record.offset for record in kafka.records}
    del last[b"k1"]
    assert found == sorted(last.values())
    assert windows > 1


@pytest.mark.parametrize("cache", ["64MiB", "1KiB"])
async def test_a_table_has_what_reads_skipped(kafka: FakePartition, cache: str):
    """With `offsetOutOfRange: latest`, a table whose next record was gone was empty up to the end
    of the log as of then, for as long as it was kept."""
    kafka.log.open(0, 0)
    for n in range(8):
        kafka.write_record(f"k{n}", "x" * 200)
    kafka.log.append(Gap(A, 0, 6, 0, GapReason.SKIPPED), 0.0)  # the shared read skipped, too
    made = build_tables(kafka, cache)
    if cache == "1KiB":
        assert await made.get_snapshot(A, 8) is None
    kafka.log_start = 3
    if cache == "1KiB":  # it is spilled
        entries = await made.read_window(A, PartitionPosition(0), 8)
    else:
        await made.get_snapshot(A, 3)
        snapshot = await made.get_snapshot(A, 8)
        assert snapshot is not None
        entries = list(snapshot.entries)
    assert [entry.offset for entry in entries] == [3, 4, 5, 6, 7]


async def test_what_nobody_looks_at_is_let_go(kafka: FakePartition):
    kafka.write_record("a", "1")
    made = build_tables(kafka)
    await made.get_snapshot(A, 1)
    assert made.limit_snapshots()
    made.drop_topic("prices")
    assert made.limit_snapshots() == 0


async def test_the_latest_of_one_key_is_of_the_table_as_it_is_at_an_offset(kafka: FakePartition):
    for n in range(4):
        kafka.write_record("ab"[n % 2], str(n))
    made = build_tables(kafka)
    found = await made.get_latest(A, 4, b"a")
    assert found is not None and found.value == b"2"
    kafka.write_record("a", None)
    assert await made.get_latest(A, 5, b"a") is None
    assert kafka.read_offsets == [0, 3, 4]


async def test_a_view_by_key_finds_no_other_key(kafka: FakePartition):
    kafka.write_record("a", "1")
    kafka.write_record("b", "2")
    made = build_tables(kafka)
    of_a = Filters((Filter(key=b"a"),))
    assert await made.get_latest(A, 2, b"a", of_a) is not None
    assert await made.get_latest(A, 2, b"b", of_a) is None


async def test_of_a_table_that_is_too_large_no_key_is_looked_up(kafka: FakePartition):
    for n in range(12):
        kafka.write_record(str(n), "x" * 1024)
    made = build_tables(kafka, cache="8KiB")
    for _ in range(2):
        with pytest.raises(TableSpilled, match="prices"):
            await made.get_latest(A, 12, b"1")


OF_X = Filters((Filter(fields=(("/of", "x"),)),))


def write_owned(kafka: FakePartition, *owners: str | None) -> None:
    """A record of key k for each, who is in its value; None is a tombstone."""
    for owner in owners:
        kafka.write_record("k", None if owner is None else f'{{"of": "{owner}"}}')


async def get_snapshot_offsets(made: Tables, end: int) -> list[int]:
    edition = await made.get_snapshot(A, end, OF_X)
    assert edition is not None
    return [entry.offset for entry in edition.entries]


async def test_what_filters_do_not_let_through_replaces_nothing(kafka: FakePartition):
    """A table was made of all records, and filtered then."""
    write_owned(kafka, "x", "x", "y")
    made = build_tables(kafka)
    assert await get_snapshot_offsets(made, 3) == [1]
    found = await made.get_latest(A, 3, b"k", OF_X)
    assert found is not None and found.offset == 1
    write_owned(kafka, None, "y")
    assert await get_snapshot_offsets(made, 5) == []
    assert await made.get_latest(A, 5, b"k", OF_X) is None


async def test_a_filter_by_a_field_that_no_record_has_is_logged(
    kafka: FakePartition, caplog: pytest.LogCaptureFixture
):
    """A misspelled field was an empty snapshot without a word."""
    for n in range(3):
        kafka.write_record(f"k{n}", '{"of": "z"}')
    made = build_tables(kafka)
    gone = ("/gone", Condition(exists=False))
    await made.get_snapshot(A, 3, Filters((Filter(fields=(gone, ("/of", "x"))),)))
    assert not caplog.messages  # the field is there: nothing is x
    for _ in range(2):
        await made.get_snapshot(A, 3, Filters((Filter(fields=(("/off", "x"),)),)))
    (told,) = caplog.messages
    assert "prices-0 is empty" in told and "/off, which none of 3 records has" in told


async def test_equal_views_share_an_edition_and_no_other_is_read_for(kafka: FakePartition):
    write_owned(kafka, "x", "y")
    made = build_tables(kafka)
    first, second = await asyncio.gather(*(made.get_snapshot(A, 2, OF_X) for _ in range(2)))
    assert first is second
    reads = len(kafka.read_offsets)
    other = await made.get_snapshot(A, 2, Filters((Filter(fields=(("/of", "y"),)),)))
    assert other is not None and [entry.offset for entry in other.entries] == [1]
    assert len(kafka.read_offsets) == reads


async def test_a_table_does_not_wait_for_views_that_are_built(kafka: FakePartition):
    """Views of clients' filters were built under the lock of the partition, one after the other:
    some hundreds kept its snapshots and documents from everybody."""
    write_owned(kafka, *("y" for _ in range(20_000)))
    made, end = build_tables(kafka), 20_000
    await made.get_snapshot(A, end)
    await made.get_snapshot(A, end, OF_X)
    view = asyncio.create_task(
        made.get_snapshot(A, end, Filters((Filter(fields=(("/of", "y"),)),)))
    )
    await asyncio.sleep(0)
    assert await made.get_snapshot(A, end) is not None
    assert await made.get_latest(A, end, b"k") is not None
    assert not view.done()
    assert await view is not None


async def test_views_of_a_client_do_not_wait_for_all_of_another(kafka: FakePartition):
    """They were built first come first served, and then the cheapest first: one socket kept the
    views of all others waiting."""
    write_owned(kafka, "x", "y")
    made, built = build_tables(kafka), list[str]()

    async def build(client_key: str, *values: str) -> None:
        fields = tuple(Filter(fields=(("/of", value),)) for value in values)
        assert await made.get_snapshot(A, 2, Filters(fields), client_key) is not None
        built.append(client_key)

    await asyncio.gather(
        build("one", "a"), build("one", "b"), build("one", "c"), build("other", *"abcd")
    )
    assert built == ["one", "other", "one", "one"]


async def test_other_tasks_get_a_turn_between_the_partitions_of_a_view(kafka: FakePartition):
    """All partitions were looked through in one turn of the event loop: 0.4 s for 48."""
    write_owned(kafka, "x", "y")
    made, turn, judged = build_tables(kafka), 0, Counter[int]()
    tps = [A, *(TopicPartition("prices", n) for n in range(1, 4))]
    kafka.by_partition = dict.fromkeys(tps, kafka.by_partition[A])

    class CountedFilters(Filters):
        def matches(self, record: Record, value: LazyValue | None = None) -> bool:
            judged[turn] += 1
            return super().matches(record, value)

    building = asyncio.gather(
        *(made.get_snapshot(tp, 2, CountedFilters(OF_X.filters)) for tp in tps)
    )
    while not building.done():
        await asyncio.sleep(0)
        turn += 1
    assert sum(judged.values()) == 2 * len(tps)
    assert max(judged.values()) <= 2


async def test_other_tasks_get_a_turn_while_a_document_is_looked_for(
    kafka: FakePartition, monkeypatch: pytest.MonkeyPatch
):
    """All records of its key were looked through in one turn: 10 s for 100,000 of a slow filter."""
    write_owned(kafka, "x", *["y"] * 9)
    made, judged = build_tables(kafka), list[int]()
    assert await made.get_snapshot(A, 10, OF_X) is not None
    monkeypatch.setattr(slices, "SLICE_S", 0.0)

    class CountedFilters(Filters):
        def matches(self, record: Record, value: LazyValue | None = None) -> bool:
            judged.append(record.offset)
            return super().matches(record, value)

    finding = made.get_latest(A, 10, b"k", CountedFilters(OF_X.filters))
    counts = await count_by_turn(finding, lambda: len(judged))
    assert judged[-1] == 0
    assert max(counts) <= 2  # the latest of all is looked at first


async def count_by_turn(work: Awaitable[object], count: Callable[[], int]) -> list[int]:
    """Return how much was counted in each turn of the event loop until the work is done."""
    counts, task = [0], asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        counts.append(count())
    await task
    return [after - before for before, after in itertools.pairwise(counts)]


async def test_other_tasks_get_a_turn_between_the_tables_of_partitions(
    kafka: FakePartition, monkeypatch: pytest.MonkeyPatch
):
    """Those of 48 partitions were built in one turn, from what their logs had: 0.2 s."""
    for n in range(FEW_ENTRIES + 1):
        kafka.write_record(f"k{n}", "x", is_logged=True)
    applied, apply = list[int](), KeyTable.apply

    def count_applied(table: KeyTable, entries: Sequence[Entry]) -> bool:
        applied.append(len(entries))
        return apply(table, entries)

    monkeypatch.setattr(KeyTable, "apply", count_applied)
    tps = [A, *(TopicPartition("prices", n) for n in range(1, 4))]
    kafka.by_partition = dict.fromkeys(tps, kafka.by_partition[A])
    made = build_tables(kafka)
    building = asyncio.gather(*(made.get_snapshot(tp, len(kafka.records)) for tp in tps))
    counts = await count_by_turn(building, lambda: sum(applied))
    assert sum(counts) == len(tps) * len(kafka.records)
    assert max(counts) == len(kafka.records)


async def test_other_tasks_get_a_turn_between_the_blocks_of_partitions(kafka: FakePartition):
    """The first ones of all 48 partitions were encoded in one turn of the event loop: 0.1 s."""
    kafka.write_record("k", "x")
    made, fed = build_tables(kafka), list[TopicPartition]()
    table = await made.get_snapshot(A, 1)
    assert table is not None
    tps = [TopicPartition("prices", n) for n in range(4)]
    tables = {tp: TableSnapshot(tp, table.entries, table.end_position) for tp in tps}
    encoder = SseWire().create_encoder(create_format("value"))
    subscription: Any = SimpleNamespace(
        channel=Channel(KeyedTopic().tail, b"view", encoder),
        snapshot=SimpleNamespace(tables=tables, filters=Filters()),
        private_reader=SimpleNamespace(feed_snapshot=lambda tp, *_: fed.append(tp), is_full=False),
        client_key="",
        credit=None,
        remaining_records=None,
    )
    services: Any = SimpleNamespace(tables=made, encoding={})
    no_reads: Any = None
    read = SnapshotRead(services, no_reads, no_reads, subscription, lambda: None, 60.0)

    def count_encoded() -> int:
        blocks = (
            SnapshotBlocks.for_channel(each, subscription.channel) for each in tables.values()
        )
        return sum(each.bytes > 0 for each in blocks)

    async def read_five_times() -> list[int]:
        fed.clear()
        reads = (read.read_next(tp, PartitionPosition(0)) for tp in 5 * tps)
        counts = await count_by_turn(asyncio.gather(*reads), count_encoded)
        assert len(fed) == 5 * len(tps)
        return counts

    # One client encodes a block, and the four others wait for that, not each for a slice.
    counts = await read_five_times()
    assert (sum(counts), max(counts)) == (len(tps), 1)
    assert len(counts) < 4 * len(tps)
    assert len(await read_five_times()) < len(tps)
    read.close()


async def test_filters_of_keys_alone_need_no_more_than_the_table(kafka: FakePartition):
    write_owned(kafka, "x", "y")
    kafka.write_record("l", "1")
    made = build_tables(kafka)
    await made.get_snapshot(A, 3)
    reads = len(kafka.read_offsets)
    edition = await made.get_snapshot(A, 3, Filters((Filter(key=b"k"),)))
    assert edition is not None and [entry.offset for entry in edition.entries] == [1]
    assert len(kafka.read_offsets) == reads


async def test_tables_take_no_more_than_their_part_of_the_memory(kafka: FakePartition):
    """A table within its topic's cache could take all of `memory`, and more."""
    for n in range(30):
        kafka.write_record(f"k{n % 12}", "x" * 100)
    made = build_tables(kafka, limit=1024)
    assert await made.get_snapshot(A, 30) is None
    assert made.spilled == {"prices"}


async def test_what_a_filter_looks_at_costs_no_other_topic_its_table(kafka: FakePartition):
    """A guest's filter took the memory, and documents of other topics were refused for good."""
    for n in range(40):
        kafka.write_record(f"k{n % 20}", "x" * 1000)
    other = TopicPartition("stock", 0)
    kafka.by_partition = dict.fromkeys((A, other), kafka.by_partition[A])
    made = build_tables(kafka, limit=64 * 1024)
    assert await made.get_snapshot(A, 40, OF_X) is not None
    assert await made.get_latest(other, 40, b"k7") is not None
    assert (made.spilled, made.spilled_histories) == (set(), {"prices"})


async def test_what_was_spilled_for_memory_has_tables_again_once_there_is_room(
    kafka: FakePartition, monkeypatch: pytest.MonkeyPatch
):
    """Documents of a topic in use were refused for good, though memory was free again."""
    for n in range(20):
        kafka.write_record(f"k{n}", "x" * 1000)
    now, limit, served = 0.0, 16 * 1024, list[float]()
    monkeypatch.setattr(tables_module, "monotonic", lambda: now)
    made = Tables(kafka, kafka, lambda name: Topic(name=name), lambda: limit)  # type: ignore[arg-type]
    assert await made.get_snapshot(A, 20) is None
    for at, limit_then in ((60.0, 16), (59.0, 17), (61.0, 17), (182.0, 24)):
        now, limit = at, limit_then * 1024
        made.limit_snapshots()
        reads = len(kafka.read_offsets)
        if await made.get_snapshot(A, 20) is not None:
            served.append(now)
        # It is read again a minute later at first, if there is any more room than there was.
        assert (len(kafka.read_offsets) > reads) == (now > 60.0)
    assert served == [182.0]  # it has 22 KiB; and 2 minutes after it did not fit again


async def test_documents_do_not_wait_for_views(kafka: FakePartition, monkeypatch: Any):
    """Ten streams of one client had documents of another answered by 503 after 10 s."""
    write_owned(kafka, "x", "y")
    made = build_tables(kafka)
    monkeypatch.setattr(made, "_build_view_snapshot", lambda *_: asyncio.Event().wait())
    building = asyncio.create_task(made.get_snapshot(A, 2, OF_X))
    await asyncio.sleep(0)
    latest = await made.get_latest(A, 2, b"k", OF_X)
    assert latest is not None and latest.offset == 0
    assert not building.done()
    building.cancel()


async def test_a_view_waits_for_kafka_in_no_place_of_its_client(kafka: FakePartition):
    """Two partitions of a dead broker stopped all streams of a client with filters."""
    write_owned(kafka, "x", "y")
    made = build_tables(kafka)
    assert await made.get_snapshot(A, 2, OF_X, "a") is not None
    assert await made.get_latest(A, 2, b"k", OF_X, "a") is not None
    read, kafka.read = kafka.read, lambda *_: asyncio.Event().wait()  # type: ignore[assignment,method-assign]
    kafka.write_record("k", "1")
    waiting = [asyncio.create_task(made.get_snapshot(A, 3, OF_X, "a")) for _ in range(3)]
    await asyncio.sleep(0)
    assert await made.get_snapshot(A, 2, OF_X, "a") is not None
    assert await made.get_latest(A, 2, b"k", OF_X, "a") is not None
    for task in waiting:
        task.cancel()
    kafka.read = read  # type: ignore[method-assign]


async def test_a_table_that_was_spilled_while_it_was_read_is_not_read_on(kafka: FakePartition):
    """Once the spill was forgotten, it grew in no account."""
    for n in range(20):
        kafka.write_record(f"k{n}", "x")
    made, read = build_tables(kafka), kafka.read

    async def drop_at_the_third(tp: TopicPartition, place: PartitionPosition) -> list[Entry]:
        entries = await read(tp, place)
        if len(kafka.read_offsets) == 3:
            made.drop_topic("prices")
        return entries

    kafka.read = drop_at_the_third  # type: ignore[method-assign]
    assert await made.get_snapshot(A, 20) is not None
    assert made.limit_snapshots() > 0
    assert kafka.read_offsets.count(0) == 2


async def test_a_table_that_does_not_fit_takes_the_histories_of_others_only_for_a_moment(
    kafka: FakePartition,
):
    """One GET of a guest ended the documents of another topic that need its history."""
    for _ in range(4):
        kafka.write_record("k", '{"of": "x", "text": "%s"}' % ("x" * 1000))
    large = TopicPartition("stock", 0)
    stock = FakePartition()
    for n in range(20):
        stock.write_record(f"k{n}", "x" * 1000)
    kafka.by_partition |= {large: stock.by_partition[A]}
    reads = {A: kafka.read, large: stock.read}
    archive: Any = SimpleNamespace(
        read=lambda tp, place: reads[tp](tp, place), resolve_start=kafka.resolve_start
    )
    any_kafka: Any = kafka
    made = Tables(any_kafka, archive, lambda name: Topic(name=name), lambda: 16 * 1024)
    assert await made.get_snapshot(A, 4, OF_X) is not None
    assert await made.get_snapshot(large, 20) is None
    assert made.spilled_histories == {"prices"}
    made.limit_snapshots()
    assert (made.spilled, made.spilled_histories) == ({"stock"}, set())


def begin_snapshot(topic: KeyedTopic) -> tuple[SnapshotRead, Subscription, Snapshot, Tables]:
    """Begin the snapshot of a client, whose tables are read from what was written."""
    by_partition = {
        tp: SimpleNamespace(log=log, reader=SimpleNamespace(log_start_offset=0))
        for tp, log in topic.logs.items()
    }

    async def resolve_start(tp: TopicPartition, start: TimestampStart) -> PartitionPosition:
        return PartitionPosition(0)

    async def read(tp: TopicPartition, place: PartitionPosition) -> list[Record]:
        return topic.written_records[tp][place.offset : (place.offset or 0) + 3]

    async def find_end(tp: TopicPartition) -> int:
        return len(topic.written_records[tp])

    kafka: Any = SimpleNamespace(by_partition=by_partition, read=read, resolve_start=resolve_start)
    tables = Tables(kafka, kafka, lambda name: Topic(name=name), window_bytes=1000)
    lookups = SimpleNamespace(find_end=find_end)
    services: Any = SimpleNamespace(tables=tables, lookups=lookups, encoding={})
    snapshot = Snapshot(("prices",), set(PARTITIONS), set(PARTITIONS))
    begin, terms = PartitionPosition(0, 0, 0), SubscriptionTerms(snapshot=snapshot)
    subscription = Subscription(topic.channel, dict.fromkeys(PARTITIONS, begin), terms)
    no_tail: Any = None
    read_snapshot = SnapshotRead(services, kafka, no_tail, subscription, lambda: None, 60.0)
    return read_snapshot, subscription, snapshot, tables


async def bring_next(read: SnapshotRead, subscription: Subscription) -> list[TopicPartition]:
    """Bring what can be brought now, send it, and return the partitions that it is of."""
    assert subscription.private_reader is not None
    backfills = subscription.private_reader.list_backfills()
    for tp, position in backfills:
        await read.read_next(tp, position)
    subscription.take(1 << 20, 0.0)
    return [tp for tp, _ in backfills]


async def test_a_snapshot_that_began_with_windows_is_of_one_moment():
    """A client kept keys that were deleted between its windows and a table that came behind."""
    topic = KeyedTopic()
    for n in range(12):
        topic.write_record(0, b"k%d" % n, b"x" * 100)
    read, subscription, snapshot, tables = begin_snapshot(topic)
    tables.spilled.add("prices")
    assert await bring_next(read, subscription) == list(PARTITIONS)
    topic.write_record(0, b"k0", None)
    tables.spilled.clear()
    assert await bring_next(read, subscription) == [PARTITIONS[0]]
    assert snapshot.end_offsets == {PARTITIONS[0]: 12, PARTITIONS[1]: 0}
    read.close()


def create_topic_of_one_table(monkeypatch: pytest.MonkeyPatch) -> KeyedTopic:
    """Let a client have the table of one of two partitions at a time."""
    monkeypatch.setattr(private_reader, "MAX_OPEN_TABLES", 1)
    topic = KeyedTopic()
    for partition in (0, 1):
        topic.write_record(partition, b"k")
    return topic


async def test_a_client_that_does_not_read_keeps_the_tables_of_few_partitions(
    monkeypatch: pytest.MonkeyPatch,
):
    """400 idle streams of 200 partitions took 5 KB for each of both, and the sweep half a core."""
    topic = create_topic_of_one_table(monkeypatch)
    read, subscription, snapshot, _ = begin_snapshot(topic)
    assert subscription.private_reader is not None
    for tp, position in subscription.private_reader.list_backfills():
        await read.read_next(tp, position)
    assert (len(snapshot.end_offsets), len(snapshot.tables)) == (2, 1)
    assert subscription.private_reader.list_backfills() == []
    subscription.take(1 << 20, 0.0)
    assert await bring_next(read, subscription) == [PARTITIONS[1]]
    assert subscription.snapshot is None
    read.close()


async def test_partitions_that_cannot_be_read_keep_no_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
):
    """32 of a broker that died, and 16 of a topic that was deleted, held up all others for good."""
    topic = create_topic_of_one_table(monkeypatch)
    read, subscription, snapshot, tables = begin_snapshot(topic)
    begin, read_from = PartitionPosition(0, 0, 0), tables._read_from

    async def read_one(tp: TopicPartition, position: PartitionPosition) -> Sequence[Entry]:
        if tp == PARTITIONS[0]:
            await asyncio.Event().wait()
        return await read_from(tp, position)

    monkeypatch.setattr(tables, "_read_from", read_one)
    dead = asyncio.create_task(read.read_next(PARTITIONS[0], begin))
    await asyncio.sleep(0)
    await read.read_next(PARTITIONS[1], begin)
    assert snapshot.tables.keys() == {PARTITIONS[1]}
    dead.cancel()
    reader = subscription.private_reader
    assert reader is not None and not reader.may_open_table(snapshot)
    topic.logs[PARTITIONS[1]].lineage += 1
    assert reader.may_open_table(snapshot)
    read.close()


@pytest.mark.parametrize("filters", [Filters(), Filters((Filter(key=b"k"),)), OF_X])
async def test_editions_that_clients_still_read_take_no_more_than_tables_leave(
    kafka: FakePartition, filters: Filters
):
    """A client that stopped reading held the version of the table that it began with."""
    limit = 64 * 1024
    made, editions = build_tables(kafka, limit=limit), list[TableSnapshot]()
    for _ in range(20):
        kafka.write_record("k", None)
        kafka.write_record("k", '{"of": "x", "text": "%s"}' % ("x" * 10_000))
        edition = await made.get_snapshot(A, len(kafka.records), filters)
        assert edition is not None
        editions.append(edition)
        assert made.limit_snapshots() <= limit
    released = sum(edition.is_released for edition in editions)
    assert 0 < released < 20
    assert all(edition.is_released for edition in editions[:released])


async def test_views_of_a_topic_at_rest_take_no_more_than_tables_leave(kafka: FakePartition):
    """Only snapshots of earlier moments were released, and nothing was earlier."""
    for n in range(200):
        kafka.write_record(f"k{n}", '{"of": "x"}')
    made, limit = build_tables(kafka, limit=64 * 1024), 64 * 1024
    small = await made.get_snapshot(A, 200, Filters((Filter(b"k7", fields=(("/of", "x"),)),)))
    large = list[TableSnapshot | None]()
    for n in range(60):
        other = (f"/{n}", Condition(exists=False))
        large.append(await made.get_snapshot(A, 200, Filters((Filter(fields=(other,)),))))
        assert made.limit_snapshots() <= limit
    assert {None if each is None else each.is_released for each in large} == {True, False}
    assert small is not None and not small.is_released


async def test_a_sweep_looks_once_at_each_snapshot(
    kafka: FakePartition, monkeypatch: pytest.MonkeyPatch
):
    """It took 0.6 s for what 400 streams of 48 partitions held."""
    kafka.write_record("k", "x")
    made, looks, measure = build_tables(kafka), Counter[int](), TableSnapshot.own_bytes.fget
    held = [await made.get_snapshot(A, 1, Filters((Filter(key=b"k"),))) for _ in range(5)]

    def count_looks(snapshot: TableSnapshot) -> Any:
        looks[id(snapshot)] += 1
        return measure(snapshot)

    monkeypatch.setattr(TableSnapshot, "own_bytes", property(count_looks))
    made.limit_snapshots()
    assert looks == Counter(map(id, held))


async def test_what_is_encoded_of_tables_takes_no_more_than_they_leave(kafka: FakePartition):
    """Each view kept a whole encoded table for as long as one of its clients was connected."""
    topic, limit = KeyedTopic(), 16 * 1024
    for n in range(10):
        kafka.write_record(f"k{n}", "x" * 100)
    made = build_tables(kafka, limit=limit)
    table = await made.get_snapshot(A, 10)
    assert table is not None
    encoder = SseWire().create_encoder(create_format("value"))
    channels = [Channel(topic.tail, b"view", encoder) for _ in range(50)]
    for channel in channels:
        assert SnapshotBlocks.for_channel(table, channel).get_block(table, 0) is not None
        assert made.limit_snapshots() <= limit
    assert not table.is_released
    assert SnapshotBlocks.for_channel(table, channels[-1]).bytes > 0


async def test_a_history_is_spilled_before_the_table_and_read_by_windows(kafka: FakePartition):
    for n in range(40):
        write_owned(kafka, "xy"[n % 2])
    made = build_tables(kafka, "2KiB")
    assert await made.get_snapshot(A, 40) is not None
    assert await made.get_snapshot(A, 40, OF_X) is None
    assert (made.spilled, made.spilled_histories) == (set(), {"prices"})
    assert await made.get_snapshot(A, 40) is not None
    window = await made.read_window(A, PartitionPosition(0), 40, OF_X)
    assert [each.offset for each in window if isinstance(each, Record)] == [38]
    with pytest.raises(TableSpilled):
        await made.get_latest(A, 40, b"k", OF_X)
    made.drop_topic("prices")
    assert made.spilled_histories == set()
