"""One client of a topic of one partition, on the core alone: no Kafka, and of the hub only what
a client asks of it while it follows the tail."""

from __future__ import annotations

from typing import Any

from gateway.core.channel.channel import Channel
from gateway.core.client.slow_client import SlowClientPolicy
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Ready, Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.formats import create_format
from gateway.hub.fanout.broadcaster import BatchPacing, Broadcaster
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.shared_catch_up import SharedCatchUps
from gateway.hub.fanout.shared_tail import SharedTail
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Wire

TP = TopicPartition("orders", 0)


class FakeHub:
    name = ""

    def __init__(self) -> None:
        self.shared_reads = self
        self.read_services = self
        self.pace = BatchPacing()
        self.broadcaster = Broadcaster(self.pace)
        self.shared_catch_ups = SharedCatchUps(1 << 27)
        self.removed_clients: list[Client] = []

    def refresh_readiness(self, shared_tail: SharedTail) -> None: ...

    def is_resolving(self, shared: SharedTail, since: float) -> bool:
        return False

    def pin_starts(self, pending: object) -> None: ...

    def remove_client(self, client: Client) -> None:
        self.removed_clients.append(client)


def create_client(
    wire: Wire | None = None,
    *,
    sibling: Client | None = None,
    max_ring_bytes: int = 1 << 20,
    slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
    credit: int | None = None,
    end_offset: int | None = None,
    ready: bool = True,
    **options: float,
) -> Client:
    """ready: the partition can be read. beside: another of the same channel."""
    wire = wire or SseWire()
    made: dict[str, Any] = {"heartbeat": 60.0, "deadline": 0.0, **options}
    if sibling is not None:
        terms = SubscriptionTerms(credit=credit, slow_policy=slow_policy)
        subscription = Subscription(sibling.subscription.channel, terms=terms)
        return Client(sibling._owner, sibling._shared_tail, subscription, wire, **made)
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    tail = Tail("cluster", [log], {"orders": "id"})
    if ready:
        tail.apply_entries([Ready(TP, 0, 0, 0)], 0)
    channel = Channel(
        tail, b"view0", wire.create_encoder(create_format("value")), max_bytes=max_ring_bytes
    )
    ends = None if end_offset is None else {TP: end_offset}
    terms = SubscriptionTerms(slow_policy, ends, credit=credit)
    subscription = Subscription(channel, terms=terms)
    return Client(FakeHub(), SharedTail(tail), subscription, wire, **made)  # type: ignore[arg-type]


def write_records(client: Client, *values: bytes) -> None:
    """In one turn."""
    channel = client.subscription.channel
    log = channel.tail.logs[TP]
    records = [
        Record(TP, (log.next_offset or 0) + n, 0, 0, None, each) for n, each in enumerate(values)
    ]
    for record in records:
        log.append(record, 0.0)
    if channel.publish(channel.tail.apply_entries(records, 0)) is not None:
        channel.notify_followers()
