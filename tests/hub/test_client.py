"""When a client that has nothing to say says something."""

from __future__ import annotations

import asyncio

from gateway.core.channel import Channel
from gateway.core.log import Log
from gateway.core.record import Ready, Record, TopicPartition
from gateway.core.subscription import Subscription
from gateway.core.tail import Tail
from gateway.formats import format_for
from gateway.hub.client import Client
from gateway.hub.encoder import Sse
from gateway.hub.feeds import SharedTail

TP = TopicPartition("orders", 0)


class Hub:
    """Of a hub, what a client asks while it only follows the tail."""

    def __init__(self) -> None:
        self.feeds = self
        self.left: list[Client] = []

    def refresh_readiness(self, shared: SharedTail) -> None: ...

    def promise(self, pending: object) -> None: ...

    def leave(self, client: Client) -> None:
        self.left.append(client)


def client_of(**options: float) -> Client:
    log = Log(TP, 1 << 20, 60.0)
    log.open(0, 0)
    tail = Tail("cluster", [log], {"orders": "id"})
    tail.turn([Ready(TP, 0, 0, 0)], 0)
    channel = Channel(tail, b"view0", Sse().encoder(format_for("value")))
    made = {"heartbeat": 60.0, "deadline": 0.0, **options}
    return Client(Hub(), SharedTail(tail), Subscription(channel), Sse(), **made)  # type: ignore[arg-type]


def write(client: Client, offset: int) -> None:
    channel = client.subscription.channel
    record = Record(TP, offset, 0, 0, None, b"%d" % offset)
    channel.tail.logs[TP].append(record, 0.0)
    channel.publish(channel.tail.turn([record], 0))
    client.subscription.wake()


async def test_an_idle_client_gets_a_comment_every_heartbeat():
    stream = client_of(heartbeat=0.01).stream()
    await anext(stream)
    assert [await anext(stream) for _ in range(3)] == [b":\n"] * 3
    await stream.aclose()


async def test_a_record_is_sent_at_once_and_puts_the_heartbeat_off():
    client = client_of()
    stream = client.stream()
    await anext(stream)
    for offset in range(2):
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        write(client, offset)
        async with asyncio.timeout(30):
            assert b"data: %d\n" % offset in await waiting
    await stream.aclose()


async def test_a_lifetime_that_is_over_ends_an_idle_stream_without_a_last_comment():
    client = client_of(lifetime=0.01)
    async with asyncio.timeout(30):
        pieces = [piece async for piece in client.stream()]
    assert len(pieces) == 2 and b'event: end\ndata: {"reason":"lifetime"}' in pieces[1]
    assert client._hub.left == [client]
