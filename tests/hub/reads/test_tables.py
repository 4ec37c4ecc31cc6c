"""Tables as they are read and kept up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest

from gateway.config import Topic
from gateway.core.channel.filters import Filter, Filters
from gateway.core.log.partition_log import Log
from gateway.core.log.partition_reader import EARLIEST, Since
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Record, Skip, TopicPartition
from gateway.hub.reads import tables as module
from gateway.hub.reads.tables import Spilled, Tables

A = TopicPartition("prices", 0)


class Kafka:
    """One partition, as an archive and as a shared read with a short log see it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.reads: list[int] = []
        self.log = Log(A, 1 << 20, 60.0)
        self.start = 0
        reading = SimpleNamespace(log_start=0)
        self.by_partition = {A: SimpleNamespace(log=self.log, reading=reading)}

    def write(self, key: str, value: str | None, *, logged: bool = False) -> None:
        value_ = None if value is None else value.encode()
        record = Record(A, len(self.records), 0, 0, key.encode(), value_)
        self.records.append(record)
        if logged:
            if self.log.next is None:
                self.log.open(record.offset, 0)
            self.log.append(record, 0.0)

    async def read(self, tp: TopicPartition, place: Place) -> list[Entry]:
        assert place.offset is not None
        self.reads.append(place.offset)
        await asyncio.sleep(0)
        return list(self.records[place.offset : place.offset + 3])

    async def resolve(self, tp: TopicPartition, start: Since) -> Place:
        assert start == Since(EARLIEST)
        return Place(self.start)


@pytest.fixture
async def kafka() -> AsyncIterator[Kafka]:
    yield Kafka()


def tables(kafka: Kafka, cache: str = "64MiB", limit: int = 1 << 30) -> Tables:
    settings = Topic.model_validate({"name": "prices", "cache": {"bytes": cache}})
    topic: Callable[[str], Topic] = lambda name: settings  # noqa: E731
    return Tables(kafka, kafka, topic, lambda: limit)  # type: ignore[arg-type]


async def test_all_who_come_at_once_share_one_read_and_one_edition(kafka: Kafka):
    for n in range(6):
        kafka.write(f"k{n % 4}", str(n))
    made = tables(kafka)
    editions = await asyncio.gather(*(made.edition(A, 6) for _ in range(50)))
    assert kafka.reads == [0, 3]
    assert len({id(edition) for edition in editions}) == 1
    assert editions[0] is not None
    assert [entry.offset for entry in editions[0].entries] == [2, 3, 4, 5]


async def test_what_came_since_is_taken_from_the_log(kafka: Kafka):
    kafka.write("a", "1")
    made = tables(kafka)
    await made.edition(A, 1)
    kafka.write("b", "1", logged=True)
    kafka.write("a", None, logged=True)
    edition = await made.edition(A, 3)
    assert edition is not None
    assert [entry.offset for entry in edition.entries] == [1]
    assert kafka.reads == [0]


async def test_a_log_that_went_back_makes_it_anew(kafka: Kafka):
    kafka.write("a", "1")
    made = tables(kafka)
    first = await made.edition(A, 1)
    kafka.log.lineage = 1
    kafka.records.clear()
    kafka.write("b", "1")
    second = await made.edition(A, 1)
    assert first is not None and second is not None
    assert second.end == Place(1, 0, 1)
    assert [r.key for r in second.entries if isinstance(r, Record)] == [b"b"]


async def test_one_larger_than_its_cache_is_read_window_by_window(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
):
    """Each key once, as its latest; what is deleted is not there."""
    for n in range(30):
        kafka.write(f"k{n % 12}", "x" * 100)
    kafka.write("k1", None)
    made = tables(kafka, "1KiB")
    assert await made.edition(A, 31) is None
    assert (made.spilled, made.bytes) == ({"prices"}, 0)
    monkeypatch.setattr(module, "WINDOW", 1000)
    place, got, windows = Place(0), list[Entry](), 0
    while place.offset is not None and place.offset < 31:
        entries = await made.window(A, place, 31)
        place, windows = Place(entries[-1].next), windows + 1
        got += entries
    found = [entry.offset for entry in got if not isinstance(entry, Skip)]
    last = {record.key: record.offset for record in kafka.records}
    del last[b"k1"]
    assert found == sorted(last.values())
    assert windows > 1


async def test_what_nobody_looks_at_is_let_go(kafka: Kafka):
    kafka.write("a", "1")
    made = tables(kafka)
    await made.edition(A, 1)
    assert made.bytes
    made.drop("prices")
    assert made.bytes == 0


async def test_the_latest_of_one_key_is_of_the_table_as_it_is_at_an_offset(kafka: Kafka):
    for n in range(4):
        kafka.write("ab"[n % 2], str(n))
    made = tables(kafka)
    found = await made.latest(A, 4, b"a")
    assert found is not None and found.value == b"2"
    kafka.write("a", None)
    assert await made.latest(A, 5, b"a") is None
    assert kafka.reads == [0, 3, 4]


async def test_of_a_table_that_is_too_large_no_key_is_looked_up(kafka: Kafka):
    for n in range(12):
        kafka.write(str(n), "x" * 1024)
    made = tables(kafka, cache="8KiB")
    for _ in range(2):
        with pytest.raises(Spilled, match="prices"):
            await made.latest(A, 12, b"1")


OF_X = Filters((Filter(fields=(("/of", "x"),)),))


def owned(kafka: Kafka, *owners: str | None) -> None:
    """A record of key k for each, who is in its value; None is a tombstone."""
    for owner in owners:
        kafka.write("k", None if owner is None else f'{{"of": "{owner}"}}')


async def offsets(made: Tables, end: int) -> list[int]:
    edition = await made.edition(A, end, OF_X)
    assert edition is not None
    return [entry.offset for entry in edition.entries]


async def test_what_filters_do_not_let_through_replaces_nothing(kafka: Kafka):
    """A table was made of all records, and filtered then."""
    owned(kafka, "x", "x", "y")
    made = tables(kafka)
    assert await offsets(made, 3) == [1]
    found = await made.latest(A, 3, b"k", OF_X)
    assert found is not None and found.offset == 1
    owned(kafka, None, "y")
    assert await offsets(made, 5) == []
    assert await made.latest(A, 5, b"k", OF_X) is None


async def test_equal_views_share_an_edition_and_no_other_is_read_for(kafka: Kafka):
    owned(kafka, "x", "y")
    made = tables(kafka)
    first, second = await asyncio.gather(*(made.edition(A, 2, OF_X) for _ in range(2)))
    assert first is second
    reads = len(kafka.reads)
    other = await made.edition(A, 2, Filters((Filter(fields=(("/of", "y"),)),)))
    assert other is not None and [entry.offset for entry in other.entries] == [1]
    assert len(kafka.reads) == reads


async def test_filters_of_keys_alone_need_no_more_than_the_table(kafka: Kafka):
    owned(kafka, "x", "y")
    kafka.write("l", "1")
    made = tables(kafka)
    await made.edition(A, 3)
    reads = len(kafka.reads)
    edition = await made.edition(A, 3, Filters((Filter(key=b"k"),)))
    assert edition is not None and [entry.offset for entry in edition.entries] == [1]
    assert len(kafka.reads) == reads


async def test_tables_take_no_more_than_their_part_of_the_memory(kafka: Kafka):
    """A table within its topic's cache could take all of `memory`, and more."""
    for n in range(30):
        kafka.write(f"k{n % 12}", "x" * 100)
    made = tables(kafka, limit=1024)
    assert await made.edition(A, 30) is None
    assert (made.spilled, made.bytes) == ({"prices"}, 0)


async def test_a_history_is_spilled_before_the_table_and_read_by_windows(kafka: Kafka):
    for n in range(40):
        owned(kafka, "xy"[n % 2])
    made = tables(kafka, "2KiB")
    assert await made.edition(A, 40) is not None
    assert await made.edition(A, 40, OF_X) is None
    assert (made.spilled, made.spilled_histories) == (set(), {"prices"})
    assert await made.edition(A, 40) is not None
    window = await made.window(A, Place(0), 40, OF_X)
    assert [each.offset for each in window if isinstance(each, Record)] == [38]
    with pytest.raises(Spilled):
        await made.latest(A, 40, b"k", OF_X)
    made.drop("prices")
    assert made.spilled_histories == set()
