"""The shared reads: what one turn of the loop brings is applied in one go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.log_lines import collect_lines
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.config import Topic
from gateway.core.channel.channel import Channel
from gateway.core.channel.filters import Filters
from gateway.core.channel.tail import Tail
from gateway.core.client.subscription import Subscription
from gateway.core.log.record import Fault, Gap, GapReason, Ready, Record, TopicPartition
from gateway.errors import Busy
from gateway.formats import create_format
from gateway.hub.reads.pacing import BatchPacing
from gateway.hub.reads.shared_reads import MAX_UNKNOWN_TOPICS, SharedReads
from gateway.hub.reads.shared_tail import SharedTail
from gateway.hub.reads.view import View
from gateway.hub.wires.sse import SseEncoder, SseWire
from gateway.kafka.embedded import EmbeddedKafka

VIEW = View(("orders",), Filters(), "value", "error")
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class RecordingSubscription(Subscription):
    """A client that notes, whenever it is woken, where the logs and its tail stand."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.wake_positions: list[tuple[int | None, ...]] = []

    def wake(self) -> None:
        tail = self.channel.tail
        logs = (tail.logs[tp].next_offset for tp in (ZERO, ONE))
        self.wake_positions.append((*logs, *(tail.position[tp].offset for tp in (ZERO, ONE))))


@asynccontextmanager
async def running_feeds(
    kafka: EmbeddedKafka,
    pacing: BatchPacing | None = None,
    max_flush_s: float = 60.0,
    **options: object,
) -> AsyncIterator[tuple[SharedReads, SharedTail, RecordingSubscription]]:
    """Feeds of `orders`, one tail of it, and one client that is there from the start.

    Without a rest, a turn of the loop is all that one of the feeds takes.
    """
    pacing = pacing or BatchPacing(rest_factor=0.0)
    settings = Topic.model_validate({"name": "orders", **options})
    async with open_cluster(kafka.bootstrap, "orders") as kafkas:
        feeds = SharedReads(kafkas, lambda name: settings, pacing, max_flush_s=max_flush_s)
        try:
            logs = [feed.log for feed in feeds.open_topic("orders")]
            shared = SharedTail(Tail("c", logs, {"orders": "id"}))
            channel = Channel(shared.tail, b"view-", SseEncoder(create_format("value")))
            shared.add_channel((VIEW, SseWire()), channel, Filters())
            client = RecordingSubscription(channel)
            feeds.attach_tail(shared)
            await wait_until(
                lambda: all(log.next_offset is not None for log in logs), "both are read"
            )
            client.wake_positions.clear()
            yield feeds, shared, client
        finally:
            await feeds.close()


def record(tp: TopicPartition, offset: int, value: bytes = b"x") -> Record:
    return Record(tp, offset, 0, 0, b"k", value)


def deliver_records(feeds: SharedReads, *records: Record) -> None:
    """As a lane does when an answer came."""
    for each in records:
        feeds.on_entries(feeds.by_partition[each.tp].reader, [each])


async def test_what_several_brokers_bring_in_one_turn_is_one_chunk(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, client):
        head, seq = client.channel.next_seq, shared.tail.seq
        deliver_records(feeds, record(ZERO, 0), record(ONE, 0), record(ZERO, 1))
        assert (client.channel.next_seq, shared.tail.logs[ZERO].next_offset) == (head, 0)
        await asyncio.sleep(0)
        assert (client.channel.next_seq, shared.tail.seq) == (head + 1, seq + 1)
        assert client.channel.get_chunk(head).data.count(b"data: x\n") == 3


async def test_a_client_is_woken_only_when_every_log_and_the_tail_are_there(embedded):
    """It joins from a log what it then rides on: a log ahead of the tail would be a record
    twice, a log behind it one that never comes."""
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, _, client):
        deliver_records(feeds, record(ZERO, 0), record(ONE, 0), record(ONE, 1))
        await asyncio.sleep(0)
        assert client.wake_positions == [(1, 2, 1, 2)]


async def test_every_tail_of_a_partition_gets_what_it_brings(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, _):
        other = SharedTail(Tail("c", shared.tail.logs.values(), {"orders": "id"}))
        feeds.attach_tail(other)
        deliver_records(feeds, record(ZERO, 0))
        await asyncio.sleep(0)
        feeds.detach_tail(other)
        deliver_records(feeds, record(ZERO, 1))
        await asyncio.sleep(0)
        assert (shared.tail.position[ZERO].offset, other.tail.position[ZERO].offset) == (2, 1)


async def test_what_comes_of_a_topic_that_was_closed_meanwhile_is_dropped(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, client):
        deliver_records(feeds, record(ZERO, 0))
        feeds.close_topic("orders")
        await asyncio.sleep(0)
        assert shared.tail.position[ZERO].offset == 0
        assert client.wake_positions == []
        assert feeds.topics == set()


async def test_what_came_before_a_topic_was_opened_again_is_dropped(embedded: EmbeddedKafka):
    """It was transformed as the topic said then."""
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, client):
        deliver_records(feeds, record(ZERO, 0))
        known = feeds.cluster.get_topic("orders")
        assert known is not None
        feeds.close_topic("orders")
        feeds.cluster.metadata.watch("orders", known)
        feeds.open_topic("orders")
        feeds.attach_tail(shared)
        await asyncio.sleep(0)
        assert client.wake_positions == []


async def test_only_so_many_topics_that_do_not_exist_are_waited_for(embedded: EmbeddedKafka):
    """Clients may name any, and each refresh of metadata asked for all of them."""
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, _, _):
        names = [f"missing-{n}" for n in range(MAX_UNKNOWN_TOPICS + 1)]
        for some in (names[1:], names[5:], ["orders"]):
            feeds.attach_tail(SharedTail(Tail("c", [], dict.fromkeys(some, ""))))
        with pytest.raises(Busy, match="too many topics"):
            feeds.attach_tail(SharedTail(Tail("c", [], dict.fromkeys(names[:2], ""))))
        assert names[0] not in feeds.watched_topics


async def measure_record_cost(feeds: SharedReads, client: RecordingSubscription) -> None:
    """Let one record tell what the next ones cost."""
    deliver_records(feeds, record(ZERO, 0))
    await asyncio.sleep(0)
    client.wake_positions.clear()


async def test_what_takes_long_is_applied_in_slices_and_in_order(embedded: EmbeddedKafka):
    """Others have their turns between, and a lane asks for more only behind the last."""
    pacing = BatchPacing(rest_factor=0.0)
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded, pacing, 0.0) as (feeds, _, client):
        records = [record(ZERO, n) for n in range(5)], [record(ONE, n) for n in range(2)]
        await measure_record_cost(feeds, client)
        feeds.on_entries(feeds.by_partition[ZERO].reader, records[0][1:])
        feeds.on_entries(feeds.by_partition[ONE].reader, records[1])
        await pacing.pause()
        assert client.wake_positions == [
            (2, 0, 2, 0), (3, 0, 3, 0), (4, 0, 4, 0), (5, 0, 5, 0), (5, 1, 5, 1), (5, 2, 5, 2)
        ]  # fmt: skip


async def test_that_a_partition_is_ready_waits_for_no_slice(embedded: EmbeddedKafka):
    """Its reading goes on: a client that began meanwhile missed what came first."""
    pacing = BatchPacing(rest_factor=0.0)
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded, pacing, 0.0) as (feeds, _, client):
        await measure_record_cost(feeds, client)
        reading = feeds.by_partition[ZERO].reader
        feeds.on_entries(reading, [record(ZERO, n) for n in range(1, 4)])
        feeds.on_entries(reading, [Ready(ZERO, 4, 4, 0)])
        await asyncio.sleep(0)
        assert client.wake_positions == [(4, 0, 4, 0)]


async def test_records_of_other_partitions_wait_where_one_becomes_ready(embedded: EmbeddedKafka):
    """A flush with one control entry used to apply all that was pending, 50 ms of it at once."""
    pacing = BatchPacing(rest_factor=0.0)
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded, pacing, 0.0) as (feeds, _, client):
        await measure_record_cost(feeds, client)
        zero, one = (feeds.by_partition[tp].reader for tp in (ZERO, ONE))
        feeds.on_entries(zero, [record(ZERO, n) for n in range(1, 3)])
        feeds.on_entries(one, [record(ONE, 0), Ready(ONE, 1, 1, 0), record(ONE, 1)])
        await pacing.pause()
        assert client.wake_positions == [(1, 1, 1, 1), (2, 1, 2, 1), (3, 1, 3, 1), (3, 2, 3, 2)]


async def test_a_slice_goes_by_what_the_entries_of_each_partition_cost(embedded: EmbeddedKafka):
    """One that took microseconds was the measure for one that took a millisecond: a first burst
    for 600 views was applied at once, in 90 ms."""
    pacing = BatchPacing(rest_factor=0.0)
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded, pacing, 0.001) as (feeds, _, client):
        feeds.by_partition[ZERO].set_entry_s(1e-6)
        feeds.by_partition[ONE].set_entry_s(4e-4)
        client.wake_positions.clear()
        feeds.on_entries(feeds.by_partition[ZERO].reader, [record(ZERO, n) for n in range(100)])
        feeds.on_entries(feeds.by_partition[ONE].reader, [record(ONE, n) for n in range(100)])
        await asyncio.sleep(0)
        assert client.wake_positions == [(100, 2, 100, 2)]


async def test_channels_that_came_since_the_last_entry_count(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, client):
        feed = feeds.by_partition[ZERO]
        feed.set_entry_s(1e-6)
        before = feed.estimate_entry_s()
        for n in range(9):
            channel = Channel(shared.tail, b"%d" % n, SseEncoder(create_format("value")))
            view = View(("orders",), Filters(), "value", "error", (f"/{n}",))
            shared.add_channel((view, SseWire()), channel, Filters())
        assert feed.estimate_entry_s() == pytest.approx(10 * before)
    assert client.wake_positions == []


async def test_a_topic_is_read_once_however_often_it_is_opened(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, _):
        again = feeds.open_topic("orders")
        assert [feed.log for feed in again] == list(shared.tail.logs.values())
        assert len(feeds.fetcher.partition_fetches) == 2


async def test_records_come_from_kafka_transformed(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    options = {"transforms": [{"extract-key": "${message.value.id}"}]}
    async with running_feeds(embedded, **options) as (_, shared, _):
        await produce_records(embedded.bootstrap, "orders", [RecordToSend(b'{"id": 7}', b"k", 1)])
        log = shared.tail.logs[ONE]
        await wait_until(lambda: log.next_offset == 1, "the record")
        (held,) = log.iter_entries(0)
        assert isinstance(held, Record)
        assert held.key == b"7"


async def test_a_partition_not_heard_of_for_a_while_counts_as_pending(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    async with running_feeds(embedded) as (feeds, shared, _):
        feeds.refresh_readiness(shared)
        assert shared.tail.readiness.list_pending() == []
        feeds.by_partition[ONE].reader.last_response_at -= 60
        shared.refreshed_at -= 60
        feeds.refresh_readiness(shared)
        assert shared.tail.readiness.list_pending() == [ONE]


async def test_each_change_that_clients_see_of_a_partition_is_a_line(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    with collect_lines("gateway.hub.reads") as lines:
        async with running_feeds(embedded) as (feeds, shared, _):
            feeds.fetcher.remove_partition(ONE)  # only the test delivers entries from here on
            reader = feeds.by_partition[ONE].reader
            gap = Gap(ONE, 1, 5, 0, GapReason.RETENTION)
            feeds.on_entries(reader, [record(ONE, 0), gap, Fault(ONE, 5, 5, 0, "unknown-topic")])
            await asyncio.sleep(0)
            reader.last_response_at -= 60
            shared.refreshed_at -= 60
            feeds.refresh_readiness(shared)
            feeds.on_entries(reader, [Ready(ONE, 5, 5, 0), record(ONE, 5)])
            await asyncio.sleep(0)
            feeds.close_topic("orders")
    texts = [line.text for line in lines if "partition=0" not in line.text]
    assert texts == [
        "partition ready offset=0 start=exact topic=orders partition=1",
        "partition gap reason=retention from=1 to=5 topic=orders partition=1",
        "partition pending cause=unknown-topic topic=orders partition=1",
        "partition pending cause=silent leader=1 topic=orders partition=1",
        "partition ready offset=5 start=exact topic=orders partition=1",
        "topic closed topic=orders",
    ]
