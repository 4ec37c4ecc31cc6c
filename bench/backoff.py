"""Measure how often a failing broker is asked, and how soon its recovery is noticed.

gone:  connections are accepted and closed at once; every attempt counts as a request.
sulks: each Fetch is answered with an error that new metadata ends.
Producers, like any independent client, reach the broker all the time: it is available at the very
moment that the proxy lets the gateway through.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.kafka_proxy import ApiKey, KafkaProxy
from support.waiting import wait_until

from gateway.core.error_code import ErrorCode

from .figure import Figure, summarize_times
from .gateways import running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import STREAM_TIMEOUT_S, Stream


@dataclass(frozen=True)
class Size:
    """seconds: that the broker is away. returns: how often it comes back after 1 s."""

    partitions: int = 12
    outage_s: float = 10.0
    error_s: float = 5.0
    return_count: int = 5
    short_outage_s: float = 1.0
    rate: float = 500.0


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.create_topic(size.partitions), Producer(kafka.bootstrap_servers)
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_bench_gateway(proxy.bootstrap, topic) as gateway,
        producer.produce_steadily(topic, size.partitions, size.rate),
    ):
        stream = await Stream.connect(gateway, topic, keeps_arrivals=True)
        await stream.wait_for_records(1)
        asked, back = await _measure_outage(proxy, stream, size.outage_s)
        backs = [
            (await _measure_outage(proxy, stream, size.short_outage_s))[1]
            for _ in range(size.return_count)
        ]
        sulked, healed = await _measure_fetch_errors(proxy, stream, size.error_s)
        stream.close()
    partitions = f"{size.partitions} partitions"
    return [
        Figure(f"gone {size.outage_s:g} s: requests and connects a second, {partitions}",
               asked / size.outage_s, "1/s", asked),
        Figure(f"gone {size.outage_s:g} s: first record after its return", 1000 * back, "ms"),
        *summarize_times(f"gone {size.short_outage_s:g} s: first record after its return", backs),
        Figure(f"error in each Fetch: requests a second, {partitions}",
               sulked / size.error_s, "1/s", sulked),
        Figure("error in each Fetch: first record after the last", 1000 * healed, "ms"),
    ]  # fmt: skip


async def _measure_outage(proxy: KafkaProxy, stream: Stream, outage_s: float) -> tuple[int, float]:
    began = time.monotonic()
    for broker in proxy.brokers:
        await broker.hang_up()
    await asyncio.sleep(outage_s)
    asked = proxy.count_requests(since=began) + proxy.count_connects(since=began)
    returned = time.monotonic()
    for broker in proxy.brokers:
        await broker.unhide()
    return asked, await _measure_recovery(stream, returned)


async def _measure_fetch_errors(
    proxy: KafkaProxy, stream: Stream, error_s: float
) -> tuple[int, float]:
    began = time.monotonic()
    injection = proxy.inject_error(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await asyncio.sleep(error_s)
    asked = proxy.count_requests(since=began)
    healed = time.monotonic()
    proxy.remove_injection(injection)
    return asked, await _measure_recovery(stream, healed)


async def _measure_recovery(stream: Stream, since: float) -> float:
    """Seconds to the first record that was produced since."""
    await wait_until(
        lambda: (stream.arrivals[-1].sent_at or 0) >= since, "the stream", STREAM_TIMEOUT_S, 0.002
    )
    return next(h.received_at for h in stream.arrivals if (h.sent_at or 0) >= since) - since
