from __future__ import annotations

import weakref

from gateway.core.channel.channel import Channel
from gateway.core.channel.filters import Filter, Filters
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.formats import create_format
from gateway.hub.fanout.shared_tail import ANNOUNCE_INTERVAL_S, SharedTail
from gateway.hub.fanout.view import View
from gateway.hub.wires.sse import SseWire

TP = TopicPartition("orders", 0)


def publish_record(shared: SharedTail, key: bytes, offset: int) -> None:
    record = Record(TP, offset, 0, 0, key, b"{}")
    shared.tail.logs[TP].append(record, 0.0)
    shared.publish([record], 1)


async def test_a_position_is_sent_where_no_event_brought_an_id_for_a_while():
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    shared = SharedTail(Tail("cluster", [log], {"orders": "id"}))
    filters = Filters((Filter(key=b"mine"),))
    channel = Channel(
        shared.tail, b"view-", SseWire().create_encoder(create_format("value")), filters.matches
    )
    view = View(("orders",), filters, "value", "error")
    shared.add_channel((view, SseWire()), channel, filters)
    Subscription(channel).begin()
    shared.announce_positions(0.0)
    assert channel.next_seq == 0  # nothing moved

    publish_record(shared, b"mine", 0)
    publish_record(shared, b"another's", 1)
    shared.announce_positions(ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 1  # its event had an id, and not long ago

    shared.announce_positions(2 * ANNOUNCE_INTERVAL_S)
    assert channel.next_seq == 2
    assert channel.join_chunks(1).startswith(b"event: position\n")
    publish_record(shared, b"another's", 2)
    shared.announce_positions(3 * ANNOUNCE_INTERVAL_S)  # an announcement does not put off the next
    assert channel.next_seq == 3


async def test_channels_without_clients_are_not_kept_by_a_topic_that_is_read_on():
    """They stayed until the topic was closed, a minute later."""
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    shared = SharedTail(Tail("cluster", [log], {"orders": "id"}))
    encoder, gone = SseWire().create_encoder(create_format("value")), list[weakref.ref[Channel]]()
    for key in (b"a", b"b"):
        filters = Filters((Filter(key=key),))
        channel = Channel(shared.tail, b"view-", encoder, filters.matches)
        shared.add_channel(
            (View(("orders",), filters, "value", "error"), SseWire()), channel, filters
        )
        subscription = Subscription(channel)
        subscription.begin()
        publish_record(shared, key, len(gone))
        shared.announce_positions(0.0)
        channel.remove_follower(subscription)
        shared.on_client_left(channel)
        gone.append(weakref.ref(channel))
    assert len(shared.remove_left_channels(10)) == 2
    del channel, subscription
    assert [each() for each in gone] == [None, None]
