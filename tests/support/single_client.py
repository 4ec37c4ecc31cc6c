"""One client of a topic of one partition, on the core alone: no Kafka, and of the hub only what
a client asks of it while it follows the tail."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.client_memory import ClientMemory
from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.channel.tail import Tail
from gateway.core.client.shared_cursor import UNREPORTED_TRAFFIC
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SlowClientPolicy, SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Ready, Record, TopicPartition
from gateway.formats import create_format
from gateway.hub.fanout.broadcaster import Broadcaster
from gateway.hub.fanout.client import Client, ClientOptions
from gateway.hub.fanout.shared_catch_up import SharedCatchUps
from gateway.hub.reads.pacing import BatchPacing, RateLimiter
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.shared_tail import SharedTail
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Wire
from gateway.telemetry.traffic import StreamCounts

TP = TopicPartition("orders", 0)


class FakeHub:
    name = ""

    def __init__(
        self,
        pace: BatchPacing | None = None,
        *,
        max_take_bytes: int = 64 * 1024,
        max_piece_bytes: int = 1 << 23,
        **options: Any,
    ) -> None:
        """options: of `Broadcaster`."""
        self.shared_reads = self
        self.read_services = self
        self.max_take_bytes = max_take_bytes
        self.pace = pace or BatchPacing()
        self.broadcaster = Broadcaster(self.pace, **options)
        self.shared_catch_ups = SharedCatchUps(self.broadcaster, 1 << 27, max_piece_bytes)
        self.removed_clients: list[Client] = []
        self.client_memory = ClientMemory()
        self.own_clients: set[Client] = set()
        self.by_partition: dict[TopicPartition, Any] = {}

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
    hub: FakeHub | None = None,
    subscription: Subscription | None = None,
    max_ring_bytes: int = 1 << 20,
    slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
    credit: int | None = None,
    end_offset: int | None = None,
    ready: bool = True,
    deadline: float = 0.0,
    rate_limiter: RateLimiter | None = None,
    traffic: StreamCounts = UNREPORTED_TRAFFIC,
    start: StreamStart = StreamStart(),  # noqa: B008
    **options: Any,
) -> Client:
    """ready: the partition can be read. sibling: another of the same hub, whatever `hub` is, and
    the same channel but for a subscription to another. options: of `ClientOptions`."""
    wire = wire or SseWire()
    if sibling is not None:
        hub, shared_tail = get_hub(sibling), sibling.shared_tail
        channel = sibling.subscription.channel
    else:
        hub, shared_tail = hub or FakeHub(), _create_tail(ready=ready)
        encoder = wire.create_encoder(create_format("value"))
        budget = RingBudget(max_ring_bytes=max_ring_bytes)
        channel = Channel(shared_tail.tail, b"view0", encoder, ring_budget=budget)
    if subscription is None:
        ends = None if end_offset is None else {TP: end_offset}
        terms = SubscriptionTerms(slow_policy, ends, credit=credit)
        subscription = Subscription(channel, None, terms, traffic)
    made = ClientOptions(**{"heartbeat": 60.0, **options})
    client = Client(hub, shared_tail, subscription, wire, start, made, number=0, deadline=deadline)
    if rate_limiter is not None:
        client.limit_rate(rate_limiter)
    return client


def get_hub(client: Client) -> FakeHub:
    hub = client.hub
    assert isinstance(hub, FakeHub)
    return hub


def leave_audience(client: Client) -> None:
    """As if its outlet had been full in a round."""
    assert client.audience is not None
    client.audience.remove_client(client)


def drain_outlet(client: Client) -> None:
    """Its outlet has room again, unless the client has ended."""
    client.wake()


async def run_loop_turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _create_tail(*, ready: bool) -> SharedTail:
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    tail = Tail("cluster", [log], {"orders": "id"})
    if ready:
        tail.apply_entries([Ready(TP, 0, 0, 0)], 0)
    return SharedTail(tail)


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
