"""A broker that is back makes many partitions ready, which is few events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.js_module import ModuleClient
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    create_http_client,
    running_gateway,
)
from support.grouped import iter_single_events
from support.multiplex import MultiplexClient
from support.records import produce_records
from support.scrape import fetch_metrics
from support.sse import SseParser
from support.tasks import running_task
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS = 300
PATH = "/events/orders"

kafka = embedded_kafka({"orders": PARTITIONS}, scope="function")

Told = list[tuple[str, dict[str, Any]]]


@asynccontextmanager
async def running(kafka: EmbeddedKafka) -> AsyncIterator[GatewayThread]:
    await produce_records(kafka.bootstrap, "orders", [b"{}"])
    async with running_gateway(build_config(kafka.bootstrap, ["orders"])) as gateway:
        yield gateway


async def outage(kafka: EmbeddedKafka, gateway: GatewayThread | GatewayProcess) -> None:
    """The broker is back once the gateway knows that it was away."""
    kafka.down(1)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (await fetch_metrics(gateway.base_url)).sum_series("gateway_partition_ready"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    kafka.up(1)


@asynccontextmanager
async def reading(gateway: GatewayThread, query: str, accept: str) -> AsyncIterator[Told]:
    """Control events of a stream over HTTP, as they come."""
    told: Told = []

    async def read(http: httpx.AsyncClient) -> None:
        parser, rest = SseParser(), b""
        async with http.stream("GET", PATH + query, headers={"Accept": accept}) as answer:
            async for piece in answer.aiter_bytes():
                if accept == "text/event-stream":
                    told.extend(
                        (each.event_type, json.loads(each.data))
                        for each in parser.feed(piece)
                        if each.event_type != "message"
                    )
                    continue
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    told.extend((name[1:], data) for name, data in json.loads(line).items())

    async with create_http_client(gateway) as http, running_task(read(http)):
        await wait_until(lambda: any(name == "begin" for name, _ in told), "begin")
        yield told


@asynccontextmanager
async def listening(gateway: GatewayThread, path: str) -> AsyncIterator[Callable[[], Told]]:
    """Control events of a subscription of a socket."""
    async with MultiplexClient(gateway.base_url) as socket:
        await socket.subscribe("a", path)
        await socket.wait_for_message("a", "begin")
        yield lambda: [(each["type"], each) for each in socket.messages]


def ready_partitions(told: Told) -> list[int]:
    return [
        data["partition"]
        for event in told
        for name, data in iter_single_events(*event)
        if name == "ready"
    ]


def ready_events(told: Told) -> int:
    return sum(name in ("ready", "partitions-ready") for name, _ in told)


async def test_a_broker_that_is_back_is_few_events_on_every_wire(kafka: EmbeddedKafka):
    """It was one event a partition: 3,000 to each client of as many partitions."""
    async with running(kafka) as gateway, AsyncExitStack() as stack:
        sse = await stack.enter_async_context(reading(gateway, "", "text/event-stream"))
        asked = "?positions"
        lines = await stack.enter_async_context(reading(gateway, asked, "application/x-ndjson"))
        said = await stack.enter_async_context(listening(gateway, PATH))
        every: list[Callable[[], Told]] = [lambda: sse, lambda: lines, said]
        before = [(ready_events(each()), len(ready_partitions(each()))) for each in every]
        await outage(kafka, gateway)

        def are_back() -> bool:
            news = [
                len(ready_partitions(each())) - told
                for each, (_, told) in zip(every, before, strict=True)
            ]
            return min(news) >= PARTITIONS

        await wait_until(are_back, lambda: str([len(each()) for each in every]))
        for each, (events, _) in zip(every, before, strict=True):
            assert set(ready_partitions(each())) == set(range(PARTITIONS))
            assert ready_events(each()) - events <= PARTITIONS // 10


@pytest.mark.needs("node", "npm")
@pytest.mark.parametrize("transport", ["websocket", "eventsource"])
async def test_the_javascript_module_tells_each_partition(kafka: EmbeddedKafka, transport: str):
    options = {"transport": transport, "readiness": True}
    config = build_config(kafka.bootstrap, ["orders"])
    async with (
        running_gateway(config) as gateway,
        ModuleClient(gateway.base_url + PATH, options) as client,
    ):
        await client.wait_until_live()
        await outage(kafka, gateway)

        def heard() -> list[dict[str, Any]]:
            return [json.loads(each["data"]) for each in client.events if each["event"] == "ready"]

        await wait_until(
            lambda: {each["partition"] for each in heard()} == set(range(PARTITIONS)),
            client.describe_state,
        )
        assert all(
            each.keys() == {"topic", "partition", "offset", "resolved"}
            and (each["topic"], each["resolved"]) == ("orders", "exact")
            for each in heard()
        )
        assert not client.errors
