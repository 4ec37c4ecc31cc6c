"""More clients and records than a gateway takes: the refused are told, the others lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from support.admission import (
    build_client_headers,
    check_admitted,
    check_refused,
    connect_event_sources,
    fetch_response,
)
from support.brokers import embedded_kafka
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.waiting import wait_until

from bench.client_pool import ClientPool
from bench.peers.peer import build_sse_request
from bench.records import build_value
from gateway.kafka.embedded import EmbeddedKafka

MIB = 1 << 20
MEMORY_MIB = 24
SLACK_MIB = 64  # connections, what each is being written, and what the allocator keeps
CLIENTS, REFUSED_CLIENTS = 200, 40
RECORDS, RECORD_BYTES = 3000, 1000  # 600 MB for all clients: seconds of a core
GREETING = b"event: begin\n"
RECOVERY_S = 60.0

kafka = embedded_kafka({"orders": 1})


@asynccontextmanager
async def running_limited_gateway(kafka: EmbeddedKafka) -> AsyncIterator[GatewayProcess]:
    """A gateway that takes exactly the clients of a test."""
    config = build_config(
        kafka.bootstrap,
        ["orders"],
        memory=f"{MEMORY_MIB}MiB",
        listen={"forwarded": ["127.0.0.1"], "limits": {"connections": CLIENTS}},
    )
    async with running_gateway_process(config) as gateway:
        yield gateway


async def open_clients(pool: ClientPool, gateway: GatewayProcess, count: int) -> None:
    """Open streams of all records."""
    request = build_sse_request("/events/orders")
    await pool.open_clients(gateway.port, count, lambda n: request, GREETING)


def send_records(kafka: EmbeddedKafka, count: int) -> None:
    """Send records as fast as it goes."""
    producer = Producer({"bootstrap.servers": ",".join(kafka.bootstrap)})
    for number in range(count):
        producer.produce("orders", build_value(number, RECORD_BYTES))
    assert producer.flush(60) == 0


async def fetch_readiness(gateway: GatewayProcess) -> dict[str, Any]:
    """Return what /health/ready says; it is 200."""
    response = await fetch_response(gateway, "/health/ready")
    assert response.status_code == 200
    return dict(response.json())


async def come_again_and_again(gateway: GatewayProcess) -> None:
    """Have programs and browsers come that are one too many, and check what each is told."""
    async with AsyncExitStack() as stack:
        headers = [
            build_client_headers(f"10.0.{n // 250}.{n % 250}") for n in range(REFUSED_CLIENTS)
        ]
        browsers, _ = await asyncio.gather(
            connect_event_sources(stack, gateway, "/events/orders", headers),
            asyncio.gather(
                *(check_refused(gateway, "/events/orders", 503) for _ in range(REFUSED_CLIENTS))
            ),
        )
        assert not check_admitted(browsers)


@pytest.mark.night
async def test_the_refused_are_told_and_the_admitted_lose_nothing(kafka: EmbeddedKafka) -> None:
    async with running_limited_gateway(kafka) as gateway, ClientPool() as pool:
        await open_clients(pool, gateway, CLIENTS)
        assert (await fetch_readiness(gateway))["warnings"] == []
        idle_bytes, most_bytes = gateway.memory_bytes, 0

        async def watch_memory() -> None:
            nonlocal most_bytes
            while True:
                most_bytes = max(most_bytes, gateway.memory_bytes)
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch_memory())
        sending = asyncio.create_task(asyncio.to_thread(send_records, kafka, RECORDS))
        await come_again_and_again(gateway)
        (warning,) = (await fetch_readiness(gateway))["warnings"]
        assert warning.startswith("new clients are refused: as many are connected")
        await sending
        assert await pool.wait_for_records(CLIENTS * RECORDS)
        watching.cancel()
        assert {client.record_count for client in pool.clients} == {RECORDS}
        assert most_bytes - idle_bytes < (MEMORY_MIB + SLACK_MIB) * MIB


@pytest.mark.night
async def test_it_is_as_before_after_an_overload(kafka: EmbeddedKafka) -> None:
    async with running_limited_gateway(kafka) as gateway:
        async with ClientPool() as pool:
            await open_clients(pool, gateway, CLIENTS)
            await come_again_and_again(gateway)

        async def has_recovered() -> bool:
            return (await fetch_readiness(gateway))["warnings"] == []

        async with asyncio.timeout(RECOVERY_S):
            while not await has_recovered():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        async with ClientPool() as pool:
            await open_clients(pool, gateway, CLIENTS)
            send_records(kafka, 1)
            await wait_until(lambda: pool.record_count >= CLIENTS)
            assert {client.record_count for client in pool.clients} == {1}
