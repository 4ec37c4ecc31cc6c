from __future__ import annotations

import asyncio
import weakref

import pytest

from gateway.core.channel.channel import Channel
from gateway.core.channel.exact_json import parse_json
from gateway.core.channel.filters import Filter, Filters
from gateway.core.channel.tail import Tail
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Record, TopicPartition
from gateway.formats import create_format, projection
from gateway.hub.reads.shared_tail import (
    ANNOUNCE_INTERVAL_S,
    MAX_ANNOUNCED_AT_ONCE,
    MAX_ANNOUNCED_PER_SWEEP,
    SharedTail,
)
from gateway.hub.reads.view import View
from gateway.hub.wires.sse import SseWire

TP = TopicPartition("orders", 0)


def publish_record(shared: SharedTail, key: bytes, offset: int) -> None:
    record = Record(TP, offset, 0, 0, key, b"{}")
    shared.tail.logs[TP].append(record, 0.0)
    shared.publish([record], 1)


def create_tail(*, is_conflated: bool = False) -> SharedTail:
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    return SharedTail(Tail("cluster", [log], {"orders": "id"}, is_conflated=is_conflated))


def follow_key(shared: SharedTail, key: bytes) -> Channel:
    """Return the channel of a client that sees one key."""
    filters = Filters((Filter(key=key),))
    channel = Channel(
        shared.tail, b"view-", SseWire().create_encoder(create_format("value")), filters.matches
    )
    view = View(("orders",), filters, "value", "error")
    shared.add_channel((view, SseWire()), channel, filters)
    Subscription(channel).begin()
    return channel


@pytest.mark.parametrize("is_conflated", [False, True])
async def test_a_value_is_parsed_once_for_all_views_of_its_fields(monkeypatch, is_conflated):
    """One socket with 100 of them had each record parsed 100 times: others waited for seconds."""
    shared, parsed = create_tail(is_conflated=is_conflated), list[bytes]()

    def parse(value: bytes) -> object:
        parsed.append(value)
        return parse_json(value)

    monkeypatch.setattr(projection, "parse_json", parse)
    channels = []
    for field in ("/a", "/b", "/c"):
        format = create_format("value", fields=[field])
        view = View(("orders",), Filters(), "value", "error", (field,))
        channels.append(Channel(shared.tail, b"view-", SseWire().create_encoder(format)))
        shared.add_channel((view, SseWire()), channels[-1], view.filters)
        Subscription(channels[-1]).begin()
    values = [b'{"a": %d, "b": 2, "c": 3}' % n for n in range(3)]
    records = [Record(TP, n, 0, 0, b"%d" % n, value) for n, value in enumerate(values)]
    for record in records:
        shared.tail.logs[TP].append(record, 0.0)
    shared.publish(records, 1)
    assert [len(channel.get_chunk(0).events) for channel in channels] == [3, 3, 3]
    assert parsed == values


async def test_a_position_is_sent_where_no_event_brought_an_id_for_a_while():
    shared = create_tail()
    channel = follow_key(shared, b"mine")
    start = asyncio.get_running_loop().time()
    shared.announce_positions(start + ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 0  # nothing moved

    publish_record(shared, b"mine", 0)
    publish_record(shared, b"another's", 1)
    shared.announce_positions(start + 2 * ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 1  # its event had an id, and not long ago

    shared.announce_positions(start + 3 * ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 2
    assert channel.join_chunks(1).startswith(b"event: position\n")
    publish_record(shared, b"another's", 2)
    # An announcement does not put off the next.
    shared.announce_positions(start + 4 * ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 3


async def test_a_client_that_has_just_begun_is_sent_its_position_after_the_interval():
    shared = create_tail()
    channel = follow_key(shared, b"mine")
    publish_record(shared, b"another's", 0)
    shared.announce_positions(asyncio.get_running_loop().time())
    assert channel.next_seq == 0


async def test_each_sweep_announces_so_many_positions_and_later_ones_the_rest():
    shared = create_tail()
    count = MAX_ANNOUNCED_PER_SWEEP + 10
    channels = [follow_key(shared, b"%d" % n) for n in range(count)]
    publish_record(shared, b"another's", 0)
    due = asyncio.get_running_loop().time() + ANNOUNCE_INTERVAL_S
    for announced in (MAX_ANNOUNCED_PER_SWEEP, count, count):
        shared.announce_positions(due)
        for _ in range(count):  # turns of the loop, more than the slices
            await asyncio.sleep(0)
        assert sum(channel.next_seq for channel in channels) == announced


async def test_a_sweep_during_the_announcements_of_the_last_one_makes_no_turn_longer():
    shared = create_tail()
    channels = [follow_key(shared, b"%d" % n) for n in range(4 * MAX_ANNOUNCED_AT_ONCE)]
    publish_record(shared, b"another's", 0)
    due = asyncio.get_running_loop().time() + ANNOUNCE_INTERVAL_S
    shared.announce_positions(due)
    shared.announce_positions(due)
    await asyncio.sleep(0)
    assert sum(channel.next_seq for channel in channels) == 2 * MAX_ANNOUNCED_AT_ONCE


async def test_a_channel_that_was_empty_for_a_moment_is_announced_to_the_next_client():
    """It was announced nothing any more, however long that client stayed."""
    shared = create_tail()
    channel = follow_key(shared, b"mine")
    (first,) = channel.followers
    channel.remove_follower(first)
    due = asyncio.get_running_loop().time() + ANNOUNCE_INTERVAL_S
    shared.announce_positions(due)
    Subscription(channel).begin()
    publish_record(shared, b"another's", 0)
    shared.announce_positions(due + ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 1


async def test_channels_without_clients_are_not_kept_by_a_topic_that_is_read_on():
    """They stayed until the topic was closed, a minute later; beside others, until they were due to
    announce their positions: 4,500 clients with keys of 60 KB, one after the other, took 260 MiB.
    """
    shared = create_tail()
    follow_key(shared, b"stays")
    encoder, gone = SseWire().create_encoder(create_format("value")), list[weakref.ref[Channel]]()
    for key in (b"%d" % n for n in range(200)):
        filters = Filters((Filter(key=key),))
        channel = Channel(shared.tail, b"view-", encoder, filters.matches)
        shared.add_channel(
            (View(("orders",), filters, "value", "error"), SseWire()), channel, filters
        )
        subscription = Subscription(channel)
        subscription.begin()
        publish_record(shared, key, len(gone))
        shared.announce_positions(asyncio.get_running_loop().time() + ANNOUNCE_INTERVAL_S)
        channel.remove_follower(subscription)
        shared.on_client_left(channel)
        gone.append(weakref.ref(channel))
    assert len(shared.remove_left_channels(200)) == 200
    del channel, subscription
    assert sum(each() is not None for each in gone) < 100
