"""How often a broker that cannot serve is asked, and how soon its return is noticed.

gone:  connections are accepted and closed at once; every attempt counts as a request.
sulks: each Fetch is answered with an error that is cured by new metadata.
Producers, and with them any independent client, reach the broker all the time: it is back at
the very moment that the proxy lets the gateway through.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.proxy import Api, KafkaProxy
from support.until import until

from .figure import Figure, times
from .gateways import gateway_of
from .kafka import Kafka
from .producer import Producer
from .stream import PATIENCE, Stream

NOT_LEADER = 6


@dataclass(frozen=True)
class Size:
    """seconds: that the broker is away. returns: how often it comes back after 1 s."""

    partitions: int = 12
    seconds: float = 10.0
    sulks: float = 5.0
    returns: int = 5
    away: float = 1.0
    rate: float = 500.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.topic(size.partitions), Producer(kafka.servers)
    async with (
        KafkaProxy.around(kafka.servers) as proxy,
        gateway_of(proxy.bootstrap, topic) as gateway,
        producer.steadily(topic, size.partitions, size.rate),
    ):
        stream = await Stream.connect(gateway, topic, listens=True)
        await stream.until(1)
        asked, back = await _gone(proxy, stream, size.seconds)
        backs = [(await _gone(proxy, stream, size.away))[1] for _ in range(size.returns)]
        sulked, healed = await _sulks(proxy, stream, size.sulks)
        stream.close()
    partitions = f"{size.partitions} partitions"
    return [
        Figure(f"gone {size.seconds:g} s: requests and connects a second, {partitions}",
               asked / size.seconds, "1/s", asked),
        Figure(f"gone {size.seconds:g} s: first record after its return", 1000 * back, "ms"),
        *times(f"gone {size.away:g} s: first record after its return", backs),
        Figure(f"error in each Fetch: requests a second, {partitions}",
               sulked / size.sulks, "1/s", sulked),
        Figure("error in each Fetch: first record after the last", 1000 * healed, "ms"),
    ]  # fmt: skip


async def _gone(proxy: KafkaProxy, stream: Stream, seconds: float) -> tuple[int, float]:
    began = time.monotonic()
    for broker in proxy.brokers:
        await broker.hang_up()
    await asyncio.sleep(seconds)
    asked = proxy.count(since=began) + proxy.connects(since=began)
    returned = time.monotonic()
    for broker in proxy.brokers:
        await broker.unhide()
    return asked, await _resumed(stream, returned)


async def _sulks(proxy: KafkaProxy, stream: Stream, seconds: float) -> tuple[int, float]:
    began = time.monotonic()
    injection = proxy.inject(Api.FETCH, NOT_LEADER)
    await asyncio.sleep(seconds)
    asked = proxy.count(since=began)
    healed = time.monotonic()
    proxy.heal(injection)
    return asked, await _resumed(stream, healed)


async def _resumed(stream: Stream, since: float) -> float:
    """Seconds to the first record that was produced since."""
    await until(lambda: (stream.heard[-1].sent or 0) >= since, "the stream", PATIENCE, 0.002)
    return next(h.at for h in stream.heard if (h.sent or 0) >= since) - since
