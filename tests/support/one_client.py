"""One client of a topic of one partition, on the core alone: no Kafka, and of the hub only what
a client asks of it while it follows the tail."""

from __future__ import annotations

from typing import Any

from gateway.core.channel.channel import Channel
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import Log
from gateway.core.log.record import Ready, Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.formats import format_for
from gateway.hub.fanout.broadcaster import Pace, Pump
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.shared_catch_up import Herds
from gateway.hub.fanout.shared_tail import SharedTail
from gateway.hub.wires.sse import Sse
from gateway.hub.wires.wire import Wire

TP = TopicPartition("orders", 0)


class Hub:
    name = ""

    def __init__(self) -> None:
        self.feeds = self
        self.pace = Pace()
        self.pump = Pump(self.pace)
        self.herds = Herds(1 << 27)
        self.left: list[Client] = []

    def refresh_readiness(self, shared: SharedTail) -> None: ...

    def resolving(self, shared: SharedTail, since: float) -> bool:
        return False

    def promise(self, pending: object) -> None: ...

    def leave(self, client: Client) -> None:
        self.left.append(client)


def client_of(
    wire: Wire | None = None,
    *,
    beside: Client | None = None,
    ring: int = 1 << 20,
    slow: SlowClient = SlowClient.CATCH_UP,
    credit: int | None = None,
    until: int | None = None,
    ready: bool = True,
    **options: float,
) -> Client:
    """ready: the partition can be read. beside: another of the same channel."""
    wire = wire or Sse()
    made: dict[str, Any] = {"heartbeat": 60.0, "deadline": 0.0, **options}
    if beside is not None:
        subscription = Subscription(beside.subscription.channel, credit=credit, slow=slow)
        return Client(beside._hub, beside._shared, subscription, wire, **made)
    log = Log(TP, 1 << 20, 60.0)
    log.open(0, 0)
    tail = Tail("cluster", [log], {"orders": "id"})
    if ready:
        tail.turn([Ready(TP, 0, 0, 0)], 0)
    channel = Channel(tail, b"view0", wire.encoder(format_for("value")), max_bytes=ring)
    ends = None if until is None else {TP: until}
    subscription = Subscription(channel, credit=credit, until=ends, slow=slow)
    return Client(Hub(), SharedTail(tail), subscription, wire, **made)  # type: ignore[arg-type]


def write(client: Client, *values: bytes) -> None:
    """In one turn."""
    channel = client.subscription.channel
    log = channel.tail.logs[TP]
    records = [Record(TP, (log.next or 0) + n, 0, 0, None, each) for n, each in enumerate(values)]
    for record in records:
        log.append(record, 0.0)
    if channel.publish(channel.tail.turn(records, 0)) is not None:
        channel.notify()
