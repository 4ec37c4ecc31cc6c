"""Measure how many clients resume at the same time, each a thousand records behind.

from memory: the gateway kept running and has the records in its cache. after a restart: only Kafka
has them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from support.gateways import GatewayProcess
from support.kafka_proxy import ApiKey, KafkaProxy

from .figure import Figure, summarize_times
from .gateways import measure_cost, running_bench_gateway
from .kafka import Kafka
from .producer import Producer
from .stream import Stream


@dataclass(frozen=True)
class Size:
    clients: int = 100
    missed_records: int = 1000
    partitions: int = 12
    value_bytes: int = 200


async def measure(kafka: Kafka, size: Size = Size()) -> list[Figure]:
    topic, producer = kafka.create_topic(size.partitions), Producer(kafka.bootstrap_servers)
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_bench_gateway(proxy.bootstrap, topic) as gateway,
    ):
        first = await Stream.connect(gateway, topic)  # one stays: the gateway reads on
        await producer.produce_burst(topic, size.partitions, size.partitions, size.value_bytes)
        await first.wait_for_records(size.partitions)
        token = await _get_token(gateway, topic)
        await producer.produce_burst(topic, size.partitions, size.missed_records, size.value_bytes)
        await first.wait_for_records(size.missed_records)
        figures = await _measure_resume(gateway, proxy, topic, token, size, "from memory")
        first.close()
        await gateway.restart()
        figures += await _measure_resume(gateway, proxy, topic, token, size, "after a restart")
    return figures


async def _get_token(gateway: GatewayProcess, topic: str) -> bytes:
    stream = await Stream.connect(gateway, topic)
    stream.close()
    return stream.token


async def _measure_resume(
    gateway: GatewayProcess, proxy: KafkaProxy, topic: str, token: bytes, size: Size, condition: str
) -> list[Figure]:
    since = time.monotonic()
    with measure_cost(gateway) as cost:
        opening = [Stream.connect(gateway, topic, token=token) for _ in range(size.clients)]
        clients = await asyncio.gather(*opening)
        for client in clients:
            await client.wait_for_records(size.missed_records)
    fetches = proxy.count_requests(ApiKey.FETCH, since=since)
    asked = min(client.requested_at for client in clients)
    last = max(client.last_record_at for client in clients) - asked
    got = sum(client.record_count for client in clients)
    for client in clients:
        client.close()
    of = f"{condition}, {size.clients} x {size.missed_records} records"
    return [
        Figure(f"{of}: all have all after", last, "s", got),
        *summarize_times(
            f"{of}: each after its connect", [c.last_record_at - c.requested_at for c in clients]
        ),
        Figure(f"{of}: gateway CPU", cost.cpu_s, "s"),
        Figure(f"{of}: fetches from Kafka", fetches, "requests"),
    ]
