from __future__ import annotations

from gateway.core.channel.channel import Channel
from gateway.core.channel.filters import Filter, Filters
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import Log
from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.formats import format_for
from gateway.hub.fanout.shared_tail import ANNOUNCE, SharedTail
from gateway.hub.wires.sse import Sse

TP = TopicPartition("orders", 0)


def publish(shared: SharedTail, key: bytes, offset: int) -> None:
    record = Record(TP, offset, 0, 0, key, b"{}")
    shared.tail.logs[TP].append(record, 0.0)
    shared.publish([record], 1)


async def test_a_position_is_sent_where_no_event_brought_an_id_for_a_while():
    log = Log(TP, 1 << 20, 60.0)
    log.open(0, 0)
    shared = SharedTail(Tail("cluster", [log], {"orders": "id"}))
    filters = Filters((Filter(key=b"mine"),))
    channel = Channel(shared.tail, b"view-", Sse().encoder(format_for("value")), filters.matches)
    shared.add((b"view-", Sse()), channel, filters)
    Subscription(channel).begin()
    shared.announce(0.0)
    assert channel.head == 0  # nothing moved

    publish(shared, b"mine", 0)
    publish(shared, b"another's", 1)
    shared.announce(ANNOUNCE)
    assert channel.head == 1  # its event had an id, and not long ago

    shared.announce(2 * ANNOUNCE)
    assert channel.head == 2
    assert channel.joined(1).startswith(b"event: position\n")
    publish(shared, b"another's", 2)
    shared.announce(3 * ANNOUNCE)  # an announcement does not put off the next
    assert channel.head == 3
