"""Private reads: who waits for the same place shares the answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Topic
from gateway.core.channel.tail import Tail
from gateway.core.client.read_buffer import EntryRun
from gateway.core.client.terms import ClientKey
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.partition_reader import (
    EARLIEST,
    LATEST,
    FetchResult,
    LiveStart,
    PartitionReader,
    TimestampStart,
)
from gateway.core.log.record import Entry, Gap, GapReason, PartitionPosition, Record, TopicPartition
from gateway.hub.reads.backfill_reader import BackfillReader
from gateway.hub.reads.position_resolver import fetch_ends
from gateway.kafka.client.offsets import OffsetAndTimestamp
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.fetch.fetcher import Deliver
from gateway.kafka.protocol.fetch_messages import FetchedPartition

TP = TopicPartition("orders", 0)
Fetches = list[dict[TopicPartition, int]]


@pytest.fixture
async def orders(embedded: EmbeddedKafka) -> EmbeddedKafka:
    """Ten records in each of two partitions."""
    embedded.create_topic("orders", 2)
    sent = [RecordToSend(b"%d" % number, b"k", number % 2) for number in range(20)]
    await produce_records(embedded.bootstrap, "orders", sent)
    return embedded


@asynccontextmanager
async def running_archive(
    kafka: EmbeddedKafka, **options: object
) -> AsyncIterator[tuple[BackfillReader, Fetches]]:
    """An archive, and the offsets of every fetch that it made."""
    settings = Topic.model_validate({"name": "orders", **options})
    fetches: Fetches = []
    async with open_cluster(kafka.bootstrap, "orders") as kafkas:
        fetch = kafkas.fetch

        async def record_fetch(
            node, role, session, limits
        ) -> dict[TopicPartition, FetchedPartition]:
            fetches.append({tp: want.offset for tp, want in session.targets.items()})
            return await fetch(node, role, session, limits)

        kafkas.fetch = record_fetch  # type: ignore[method-assign]
        made = BackfillReader(kafkas, lambda name: settings)
        try:
            async with asyncio.timeout(60):
                yield made, fetches
        finally:
            await made.close()


class HeldFetcher:
    """A fetcher whose answers are the test's. It has what readers are read now, by partition."""

    def __init__(self, cluster: object, deliver: Deliver, **options: object) -> None:
        self.deliver = deliver
        self.readers: dict[TopicPartition, PartitionReader] = {}

    def add_partition(self, reader: PartitionReader, *, read_committed: bool) -> None:
        self.readers[reader.tp] = reader

    def remove_partition(self, tp: TopicPartition) -> None:
        self.readers.pop(tp, None)

    async def close(self) -> None:
        self.readers.clear()

    def answer_fetch(self, records: list[Record]) -> None:
        """Answer the fetch that is under way with all of a log."""
        reader, end = self.readers[TP], len(records)
        found = records[reader.position.offset :]
        self.deliver(reader, reader.on_fetch(FetchResult(found, end, 0, end, end, 0), 0.0))


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[BackfillReader, Any]]:
    """A reader whose fetcher is held, and its cluster."""
    monkeypatch.setattr("gateway.hub.reads.backfill_reader.Fetcher", HeldFetcher)
    settings = Topic.model_validate({"name": "orders"})
    cluster: Any = SimpleNamespace(
        leader_for_partition=lambda tp: (1, 0),
        get_topic=lambda name: SimpleNamespace(topic_id=cluster.topic_id),
        fetch_epoch_ends=None,
        list_offsets=lambda specs, isolation_level: cluster.answer_offsets(specs),
        topic_id="old",
    )
    made = BackfillReader(cluster, lambda name: settings)
    yield made, cluster
    await made.close()


def build_records(count: int) -> list[Record]:
    return [Record(TP, offset, 0, 0, b"k", b"v" * 60) for offset in range(count)]


def get_offsets(entries: Iterable[Entry]) -> list[int]:
    return [entry.offset for entry in entries if isinstance(entry, Record)]


async def test_twenty_clients_at_one_place_cost_one_fetch(orders: EmbeddedKafka):
    async with running_archive(orders) as (made, fetches):
        answers = await asyncio.gather(*(made.read(TP, PartitionPosition(4, 0)) for _ in range(20)))
        assert len({id(answer) for answer in answers}) == 1
        assert get_offsets(answers[0])[0] == 4
        assert fetches == [{TP: 4}]


async def test_an_answer_goes_to_all_whose_place_it_covers(orders: EmbeddedKafka):
    """Each of 480 clients had a read of each partition, one after the other, when their worker was
    killed: some had nothing for 30 s."""
    async with running_archive(orders) as (made, fetches):
        places = [2, *range(10)]
        answers = await asyncio.gather(*(made.read(TP, PartitionPosition(at, 0)) for at in places))
        assert [get_offsets(answer) for answer in answers] == [list(range(at, 10)) for at in places]
        assert [asked[TP] for asked in fetches] == [2, 0]
        assert made.read_counts == {("orders", "kafka"): 2, ("orders", "joined"): 9}


async def test_an_answer_is_not_for_who_is_at_another_log(orders: EmbeddedKafka):
    async with running_archive(orders) as (made, fetches):
        positions = [PartitionPosition(2, 0), PartitionPosition(4, 0, lineage=1)]
        await asyncio.gather(*(made.read(TP, position) for position in positions))
        assert [asked[TP] for asked in fetches] == [2, 4]


async def test_what_one_client_skipped_is_not_skipped_for_others(orders: EmbeddedKafka):
    """With `offsetOutOfRange: latest`, the gap of a client whose offset was gone went to all whose
    offset it spanned, though Kafka had their records."""
    orders.delete_records("orders", {0: 4})
    async with running_archive(orders, offsetOutOfRange="latest") as (made, _):
        positions = [PartitionPosition(at, 0) for at in (2, 2, 6)]
        *stale, current = await asyncio.gather(*(made.read(TP, each) for each in positions))
        for answer in stale:
            gap = next(iter(answer))
            assert gap == Gap(TP, 2, 10, gap.epoch, GapReason.SKIPPED)
        assert get_offsets(current) == list(range(6, 10))
        assert get_offsets(await made.read(TP, PartitionPosition(5, 0))) == list(range(5, 10))


async def test_records_of_a_recreated_topic_come_only_after_its_gap(held):
    """The answer to another client, which had the gap, was given without it: the new topic's
    records passed for those of the old one, and came again behind the gap."""
    made, cluster = held
    fetcher: Any = made.fetcher
    first, second = (
        asyncio.create_task(made.read(TP, PartitionPosition(at, 0))) for at in (100, 110)
    )
    await asyncio.sleep(0)
    cluster.topic_id = "new"
    for reading, offset in ((first, 100), (second, 110)):
        await wait_until(lambda: fetcher.readers)
        fetcher.readers[TP].on_topic_id("new")
        fetcher.answer_fetch(build_records(150))
        gap, *records = await reading
        assert gap == Gap(TP, offset, 0, gap.epoch, GapReason.RECREATED)
        assert get_offsets(records) == list(range(150))
    # Nor is the answer kept for others.
    third = asyncio.create_task(made.read(TP, PartitionPosition(120, 0)))
    await wait_until(lambda: fetcher.readers)
    third.cancel()


async def test_other_places_are_read_one_after_the_other_and_each_gets_its_own(orders):
    async with running_archive(orders) as (made, fetches):
        answers = await asyncio.gather(
            *(made.read(TP, PartitionPosition(at, 0)) for at in (7, 2, 7, 5))
        )
        assert [get_offsets(answer)[0] for answer in answers] == [7, 2, 7, 5]
        assert [asked[TP] for asked in fetches] == [7, 2]


async def test_clients_take_turns_however_many_streams_they_have(held):
    """One client with 500 streams, each from a position that it made up, kept all others who catch
    up on the partition waiting for 50 s: reads were first come, first served."""
    made, _ = held
    fetcher, order = made.fetcher, list[int]()
    asked = [(50, "dan"), (40, "ada"), (30, "ada"), (20, "ada"), (7, "bob"), (6, "bob"), (3, "eve")]
    reads = [
        asyncio.create_task(made.read(TP, PartitionPosition(at, 0), client)) for at, client in asked
    ]
    await asyncio.sleep(0)
    for _ in reads:
        await wait_until(lambda: fetcher.readers)
        order.append(fetcher.readers[TP].position.offset)
        fetcher.answer_fetch(build_records(order[-1] + 1))  # of use to this one only
    await asyncio.wait(reads)
    assert order == [50, 40, 7, 3, 30, 6, 20]


async def test_who_reads_for_several_waits_for_the_others_of_none(held):
    """A crowd that one client with many streams had joined waited in that client's turn."""
    made, _ = held
    fetcher, order = made.fetcher, list[int]()
    asked = [(50, "dan"), (40, "ada"), (30, "ada"), (7, frozenset({"ada", "bob"}))]
    reads = [asyncio.create_task(made.read(TP, PartitionPosition(at, 0), key)) for at, key in asked]
    await asyncio.sleep(0)
    for _ in reads:
        await wait_until(lambda: fetcher.readers)
        order.append(fetcher.readers[TP].position.offset)
        fetcher.answer_fetch(build_records(order[-1] + 1))  # of use to this one only
    await asyncio.wait(reads)
    assert order == [50, 40, 7, 30]


async def test_crowds_that_go_on_reading_postpone_no_stream_of_their_member_for_ever(held):
    """Each turn of one of three crowds that a client was in, too, put that client's own stream
    behind the others, which had asked again by then."""
    made, _ = held
    fetcher = made.fetcher

    async def keep_reading(offset: int, client_key: ClientKey) -> None:
        while True:
            await made.read(TP, PartitionPosition(offset, 0), client_key)
            offset += 10

    crowds = [
        asyncio.create_task(keep_reading(offset, frozenset({name, "bob"})))
        for offset, name in enumerate(("ada", "dan", "eve"))
    ]
    await asyncio.sleep(0)
    reading = asyncio.create_task(made.read(TP, PartitionPosition(5, 0), "bob"))
    order = list[int]()
    while 5 not in order and len(order) < 20:
        await wait_until(lambda: fetcher.readers)
        order.append(fetcher.readers[TP].position.offset)
        fetcher.answer_fetch(build_records(order[-1] + 1))  # of use to this one only
    for task in (*crowds, reading):
        task.cancel()
    assert order[-1] == 5


async def test_a_partition_that_is_slow_holds_up_no_other(orders: EmbeddedKafka):
    other = TopicPartition("orders", 1)
    orders_ends = PartitionPosition(10, 0)  # nothing there yet: that read waits
    async with running_archive(orders) as (made, _):
        waiting = asyncio.create_task(made.read(TP, orders_ends))
        assert get_offsets(await made.read(other, PartitionPosition(0, 0)))[0] == 0
        assert not waiting.done()
        await produce_records(orders.bootstrap, "orders", [RecordToSend(b"late", b"k", 0)])
        assert get_offsets(await waiting) == [10]


async def test_who_gives_up_takes_nothing_from_those_who_want_the_same(orders: EmbeddedKafka):
    async with running_archive(orders) as (made, _):
        first = asyncio.create_task(made.read(TP, PartitionPosition(10, 0)))
        second = asyncio.create_task(made.read(TP, PartitionPosition(10, 0)))
        await asyncio.sleep(0)
        first.cancel()
        await produce_records(orders.bootstrap, "orders", [RecordToSend(b"late", b"k", 0)])
        assert get_offsets(await second) == [10]
        assert first.cancelled()


async def test_who_gives_up_lets_the_next_have_its_turn(orders: EmbeddedKafka):
    async with running_archive(orders) as (made, _):
        first = asyncio.create_task(made.read(TP, PartitionPosition(10, 0)))
        second = asyncio.create_task(made.read(TP, PartitionPosition(3, 0)))
        await asyncio.sleep(0)
        first.cancel()
        assert get_offsets(await second)[0] == 3


async def test_what_retention_took_is_a_gap_here_too(orders: EmbeddedKafka):
    orders.delete_records("orders", {0: 6})
    async with running_archive(orders) as (made, _):
        gap, *records = await made.read(TP, PartitionPosition(2, 0))
        assert gap == Gap(TP, 2, 6, gap.epoch, GapReason.RETENTION)
        assert get_offsets(records)[:1] in ([6], [])


async def test_the_start_of_a_log_is_found(orders: EmbeddedKafka):
    orders.delete_records("orders", {0: 6})
    async with running_archive(orders) as (made, _):
        assert (await made.resolve_start(TP, TimestampStart(EARLIEST))).offset == 6


async def test_a_start_by_time_does_not_wait_for_the_reads_of_its_partition(held):
    """It had its turn among them: streams that were opened with `?from=` again and again, or with
    tokens without offsets, held up all others of the partition, as each start took its turn alone.
    """
    made, cluster = held
    answers = {LATEST: 9, 5: 7, 6: -1}

    async def answer_offsets(specs) -> dict[TopicPartition, OffsetAndTimestamp]:
        return {tp: OffsetAndTimestamp(answers[time], time, 3) for tp, time in specs.items()}

    cluster.answer_offsets = answer_offsets
    reading = asyncio.create_task(made.read(TP, PartitionPosition(0, 0)))
    await asyncio.sleep(0)
    assert await made.resolve_start(TP, TimestampStart(5)) == PartitionPosition(7, 3)
    assert await made.resolve_start(TP, TimestampStart(6)) == PartitionPosition(9, 3)
    live = LiveStart(connected_at_ms=5, connected_at=0.0, clock_skew_ms=0)
    assert await made.resolve_start(TP, live) == PartitionPosition(7, 3)
    assert not reading.done()
    reading.cancel()


async def test_ends_by_time_are_looked_up_a_few_at_once_and_hold_up_no_others(held):
    """Each was a request of its own, however many clients asked at once."""
    made, cluster = held
    may_answer, sizes = asyncio.Event(), list[int]()

    async def answer_offsets(specs) -> dict[TopicPartition, OffsetAndTimestamp]:
        if max(specs.values()) >= 0:
            sizes.append(len(specs))
            await may_answer.wait()
        return {
            tp: OffsetAndTimestamp(9 if time < 0 else time if time < 9 else -1, time, 3)
            for tp, time in specs.items()
        }

    cluster.answer_offsets = answer_offsets
    tps = [TopicPartition("orders", partition) for partition in range(20)]
    tail = Tail("cluster", [PartitionLog(tp, 1 << 20, 60.0) for tp in tps], {"orders": "id"})
    by_time = [asyncio.create_task(fetch_ends(made.lookups, tail, time)) for time in range(100)]
    await wait_until(lambda: sizes)
    assert await fetch_ends(made.lookups, tail, "latest") == dict.fromkeys(tps, 9)
    assert sizes == [20, 20]
    may_answer.set()
    ends = await asyncio.gather(*by_time)
    assert [set(each.values()) for each in ends] == [{min(time, 9)} for time in range(100)]


async def test_full_hands_are_given_nothing_more_until_they_are_emptied(orders: EmbeddedKafka):
    async with running_archive(orders) as (made, fetches):
        made.limit_reads(True)
        reading = asyncio.create_task(made.read(TP, PartitionPosition(0, 0)))
        await asyncio.sleep(0)  # it has asked, and would be first
        await made.resolve_start(TP, TimestampStart(EARLIEST))
        assert fetches == []
        made.limit_reads(False)
        assert get_offsets(await reading)[0] == 0


async def test_records_are_transformed_as_those_of_the_tail_are(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 1)
    await produce_records(embedded.bootstrap, "orders", [RecordToSend(b'{"id": 7}', b"k", 0)])
    options = {"transforms": [{"extract-key": "${message.value.id}"}]}
    async with running_archive(embedded, **options) as (made, _):
        (record,) = await made.read(TP, PartitionPosition(0, 0))
        assert isinstance(record, Record)
        assert record.key == b"7"


async def test_one_answer_for_many_clients_does_not_block_the_loop(held):
    """When 500 clients waited for an answer of 10,000 records, nothing else ran for a second."""
    made, _ = held
    fetcher: Any = made.fetcher
    clients = [
        asyncio.create_task(made.read(TP, PartitionPosition(offset, 0))) for offset in range(500)
    ]
    await asyncio.sleep(0)
    fetcher.answer_fetch(build_records(20_000))
    answered = [0]
    while not all(client.done() for client in clients):
        await asyncio.sleep(0)
        answered.append(sum(client.done() for client in clients))
    grown = [after - before for before, after in pairwise(answered)]
    assert max(grown) <= 64
    runs = [client.result() for client in clients]
    assert {run.answer for run in runs} == {runs[0].answer}
    assert [run.first.offset for run in runs] == list(range(500))
    assert made.read_counts == {("orders", "kafka"): 1, ("orders", "joined"): 499}


async def test_who_comes_and_goes_while_an_answer_is_handed_out_holds_up_nobody(held):
    made, cluster = held
    fetcher: Any = made.fetcher

    def start_read(offset: int) -> asyncio.Task[EntryRun]:
        return asyncio.create_task(made.read(TP, PartitionPosition(offset, 0)))

    clients = [start_read(1) for _ in range(300)]
    before = start_read(0)  # the answer does not reach back to it
    await asyncio.sleep(0)
    fetcher.answer_fetch(build_records(10))
    await clients[0]
    leaving, staying = clients[200:250], [*clients[:200], *clients[250:]]
    assert not any(client.done() for client in leaving)
    for client in leaving:
        client.cancel()
    covered = start_read(5)
    await asyncio.sleep(0)
    cluster.topic_id = "new"  # the topic was created again, and is opened again
    other = start_read(5)
    await asyncio.wait([*clients, covered])
    assert all(client.cancelled() for client in leaving)
    assert all(client.result().first.offset == 1 for client in staying)
    for reading, offset in ((before, 0), (other, 5)):
        await wait_until(lambda: fetcher.readers)
        assert not reading.done() and fetcher.readers[TP].position.offset == offset
        fetcher.answer_fetch(build_records(10))
        assert (await reading).first.offset == offset
    assert not fetcher.readers


async def test_clients_that_wait_for_a_read_keep_no_answer_of_another_place(held):
    """Each kept the answer that was cached when it came, for as long as it waited: 339 MiB for 500
    streams of one client, which no part of `memory` counted."""
    made, _ = held
    reading = asyncio.create_task(made.read(TP, PartitionPosition(50, 0)))
    await asyncio.sleep(0)
    made.fetcher.answer_fetch(build_records(100))
    answer = (await reading).answer
    reference_count = sys.getrefcount(answer)
    others = [asyncio.create_task(made.read(TP, PartitionPosition(at, 0))) for at in range(20)]
    await asyncio.sleep(0)
    made.fetcher.answer_fetch(build_records(1))
    await others[0]
    assert not others[1].done()
    assert sys.getrefcount(answer) == reference_count - 1, "it is not cached any more"
    for other in others:
        other.cancel()


async def test_closing_ends_those_who_wait_while_an_answer_is_handed_out(held):
    made, _ = held
    fetcher: Any = made.fetcher
    clients = [asyncio.create_task(made.read(TP, PartitionPosition(0, 0))) for _ in range(200)]
    await asyncio.sleep(0)
    fetcher.answer_fetch(build_records(10))
    await clients[0]
    await made.close()
    await asyncio.wait(clients)
    assert not clients[0].cancelled() and clients[-1].cancelled()
    assert not fetcher.readers
