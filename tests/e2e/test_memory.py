"""The option `memory` holds, whatever clients ask for and do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.multiplex import MultiplexClient
from support.scrape import fetch_metrics
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.night

MIB = 1 << 20
MEMORY = 16
SLACK = 48  # MiB: connections, what each is being written, and what the allocator keeps
SOCKETS, STREAMS = 3, 100
RECORDS, SIZE = 1200, 1000
BURST = 600  # in few turns: each is written to all streams of a socket, or to none once it is full

kafka = embedded_kafka({"orders": 1})


@asynccontextmanager
async def serving(kafka: EmbeddedKafka, **more: Any) -> AsyncIterator[GatewayProcess]:
    """more: routes besides these, what stands in their `with` by their paths."""
    routes = [
        {"when": [{"path": "/orders"}], "with": {"topic": "orders", "clientFilters": True}},
        {
            "when": [{"path": "/own/{who}"}],
            "with": {"topic": "orders", "filters": [{"key": "${params.who}"}]},
        },
        *({"when": [{"path": f"/{path}"}], "with": each} for path, each in more.items()),
    ]
    topics = sorted({"orders", *(each["topic"] for each in more.values())})
    config = build_config(kafka.bootstrap, topics, routes, memory=f"{MEMORY}MiB")
    async with running_gateway_process(config) as gateway:
        yield gateway


def write(kafka: EmbeddedKafka, count: int, topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": ",".join(kafka.bootstrap)})
    for n in range(count):
        producer.produce(topic, b"%d " % n + b"v" * SIZE, key=b"a")
    producer.flush()


async def fetch_view_bytes(gateway: GatewayProcess) -> float:
    """What clients asked for, as the gateway counted it last."""
    scrape = await fetch_metrics(gateway)
    return scrape["gateway_memory_bytes", {"part": "views"}]


@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda n: {}, id="ids"),
        pytest.param(lambda n: {"filter": {"key": {"in": ["a", f"x{n}"]}}}, id="filters"),
    ],
)
async def test_subscriptions_that_nobody_reads_stay_within_the_memory(
    kafka: EmbeddedKafka, choose: Any
):
    """Each subscription had a ring of 1 MiB to itself, by its id or by its filter: 300 of them
    held hundreds of megabytes whatever `memory` said."""
    async with serving(kafka) as gateway, AsyncExitStack() as stack:
        idle = gateway.memory_bytes
        sockets = [
            await stack.enter_async_context(MultiplexClient(gateway.base_url, max_queue=1))
            for _ in range(SOCKETS)
        ]
        for s, socket in enumerate(sockets):
            for n in range(STREAMS):
                await socket.send_message(
                    "subscribe", id=f"{s}-{n}", path="/orders", **choose(1000 * s + n)
                )
            await socket.wait_until(lambda socket=socket: len(socket.messages) >= STREAMS)
            socket.is_reading.clear()
        live = await stack.enter_async_context(RawClient(f"{gateway.base_url}/own/a"))
        await wait_until(lambda: live.events, "live begins")
        most = 0
        for batch in range(0, RECORDS, BURST):
            write(kafka, BURST)
            await wait_until(lambda batch=batch: len(live.events) > batch + BURST, timeout_s=180.0)
            most = max(most, gateway.memory_bytes)
        assert len(live.events) == 1 + RECORDS  # a client that reads has lost nothing
        assert most - idle < (MEMORY + SLACK) * MIB

        socket = sockets[0]
        socket.is_reading.set()
        labels = [f"0-{n}" for n in range(STREAMS)]
        await socket.wait_until(
            lambda: (
                min(socket.record_counts[label] for label in labels) >= RECORDS
                or socket.close_code is not None
            )
        )
        received = {label: socket.get_records(label) for label in labels}
        if socket.close_code is not None:  # it took nothing for a minute, on a busy machine
            socket = await stack.enter_async_context(MultiplexClient(gateway.base_url))
            for n, label in enumerate(labels):
                position = sockets[0].get_last_position(label)
                await socket.subscribe(label, "/orders", lastEventId=position, **choose(n))
            await socket.wait_until(
                lambda: all(
                    len(received[label]) + socket.record_counts[label] >= RECORDS
                    for label in labels
                )
            )
            received = {label: received[label] + socket.get_records(label) for label in labels}
        for label in labels:  # and nor has one that reads again
            said = [int(value.split()[0]) for value in received[label]]
            assert said == [n % BURST for n in range(RECORDS)]


async def test_clients_who_come_when_the_memory_is_used_up_are_told_to_come_back(
    kafka: EmbeddedKafka,
):
    """What clients ask for is held for them, and was not counted.

    How many came until the gateway had counted the first ones depended on how busy the machine was:
    each ten are answered and counted now before more come.
    """
    async with serving(kafka) as gateway, AsyncExitStack() as stack:
        accepted, statuses = 0, set[int]()
        while 503 not in statuses:
            assert accepted < 200
            clients = [
                await stack.enter_async_context(RawClient(gateway.base_url + path))
                for path in (f"/own/{accepted + n}-{'x' * 50_000}" for n in range(10))
            ]
            await wait_until(lambda clients=clients: all(client.responses for client in clients))
            answers = [client.responses[0].status for client in clients]
            accepted += answers.count(200)
            statuses |= {*answers}
            while await fetch_view_bytes(gateway) < accepted * 50_000:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert statuses == {200, 503}
        async with create_http_client(gateway) as client:
            answer = await client.get("/orders")
            assert answer.status_code == 503
            assert answer.json()["title"] == "Busy"
            assert int(answer.headers["retry-after"]) >= 1
        async with MultiplexClient(gateway.base_url) as socket:
            await socket.send_message("subscribe", id="a", path="/orders")
            error = await socket.wait_for_message("a", "error")
            assert error["code"] == "busy"
        await stack.aclose()
        event_source = {"accept": "text/event-stream", "sec-fetch-mode": "cors"}
        # One that comes as a browser does tries again by itself.
        async with RawClient(f"{gateway.base_url}/orders", headers=event_source) as client:
            await wait_until(lambda: client.events and client.events[-1]["event"] == "begin")


@pytest.mark.parametrize("slow", ["skip", "disconnect"])
async def test_a_client_that_reads_is_not_slow_because_others_use_the_memory(
    kafka: EmbeddedKafka, slow: str
):
    """Chunks were dropped within the turn that brought them, and clients that had no chance to
    take them skipped records or were disconnected."""
    route = {"topic": "orders", "slowClient": slow, "filters": [{"key": {"exists": True}}]}
    async with serving(kafka, victim=route) as gateway, AsyncExitStack() as stack:
        socket = await stack.enter_async_context(MultiplexClient(gateway.base_url))
        for n in range(STREAMS):
            choice = {"filter": {"key": {"in": ["a", f"x{n}"]}}}
            await socket.send_message("subscribe", id=f"{n}", path="/orders", **choice)
        await socket.wait_until(lambda: len(socket.messages) >= STREAMS)
        client = await stack.enter_async_context(RawClient(f"{gateway.base_url}/victim"))
        await wait_until(lambda: client.events)
        for burst in range(3):
            write(kafka, 60)
            await wait_until(lambda burst=burst: len(client.events) > 60 * (burst + 1))
        assert {each["event"] for each in client.events} == {"begin", "message"}
        assert len(client.events) == 181


async def count_records(gateway: GatewayProcess, path: str) -> int:
    """Those that another client reads of a topic."""
    async with create_http_client(gateway) as client:
        answer = await client.get(
            path,
            params={"from": "earliest", "until": "latest"},
            headers={"accept": "application/x-ndjson"},
        )
    return answer.text.count(" v")


async def test_clients_that_read_nothing_keep_nobody_from_reading(kafka: EmbeddedKafka):
    """Records that had been read for them filled their share of the memory, and nobody else was
    read anything from Kafka until they left."""
    kafka.create_topic("others", 1)
    for topic in ("orders", "others"):
        write(kafka, 3000, topic)
    other = {"topic": "others"}
    async with serving(kafka, other=other) as gateway, AsyncExitStack() as stack:
        for n in range(16):
            held = RawClient(f"{gateway.base_url}/orders?from=earliest&_n={n}", receive_buffer=4096)
            await stack.enter_async_context(held)
            held.stop_reading()
        for _ in range(3):
            assert await count_records(gateway, "/other") == 3000


async def test_clients_that_grant_no_more_credit_keep_nobody_from_reading(kafka: EmbeddedKafka):
    """The same as for those that read nothing, but from one socket, and without end: a client that
    answers pings is not disconnected."""
    # The embedded broker keeps 5 MB of a partition; a quarter of the memory is for what was read.
    for topic in ("held", "free"):
        kafka.create_topic(topic, 1)
        write(kafka, 4900, topic)
    async with (
        serving(kafka, held={"topic": "held"}, free={"topic": "free"}) as gateway,
        MultiplexClient(gateway.base_url) as socket,
    ):
        # Each stops in another part of the topic.
        credits = {f"{n}": 1 + 250 * n for n in range(20)}
        for label, credit in credits.items():
            await socket.send_message(
                "subscribe", id=label, path="/held?from=earliest", credit=credit
            )
        await socket.wait_until(lambda: sum(socket.record_counts.values()) == sum(credits.values()))
        assert await count_records(gateway, "/free") == 4900
        await socket.send_message("credit", id="3", n=5)
        await socket.wait_until(lambda: socket.record_counts["3"] == credits["3"] + 5)
