"""Clients that others wrote and people use, each with one contract: cut off twice, and once without
a gateway, it gets every record acknowledged since its first id once and in order.

Each stands behind a proxy of its own, which cuts its connection at any byte. By night all of them
are cut in the first bytes, and lose their gateway to `kill -9`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.clients.all_clients import ALL_CLIENTS
from support.clients.chromium import ChromiumClient
from support.clients.client import ReceivedEvent, SseClient
from support.clients.curl import CurlClient
from support.clients.raw import RawClient
from support.gateways import GatewayThread, running_gateway_process
from support.oracle import StreamOracle, parse_events
from support.requirements import is_installed
from support.topic_gateway import TopicNames, build_topic_config, run_gateway_sync
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS = 12

every_client = pytest.mark.parametrize("kind", ALL_CLIENTS)

CODING = b"content-encoding: gzip\r\n"  # in the heads of those who ask for it
CROSS_ORIGIN = {"access-control": {"policy": "cross-origin"}}


kafka = embedded_kafka()


@pytest.fixture(scope="module")
def config(kafka: EmbeddedKafka, names: TopicNames) -> dict[str, Any]:
    """Chromium's page is of another origin than the proxies."""
    return build_topic_config(",".join(kafka.bootstrap), names, listen=CROSS_ORIGIN)


@pytest.fixture(scope="module")
def gateway(config: dict[str, Any]) -> Iterator[GatewayThread]:
    with run_gateway_sync(config) as gateway:
        yield gateway


@pytest.fixture
async def oracle(kafka: EmbeddedKafka) -> AsyncIterator[StreamOracle]:
    async with StreamOracle(",".join(kafka.bootstrap)) as oracle:
        yield oracle


@pytest.fixture
def topic(kafka: EmbeddedKafka, names: TopicNames) -> str:
    return names.create_topic(kafka, PARTITIONS)


def on_this_machine() -> list[type[SseClient]]:
    """For tests of all at once; where one is missing, the test of each alone says so."""
    lacking = {
        each.id: [piece for mark in each.marks for piece in mark.args if not is_installed(piece)]
        for each in ALL_CLIENTS
    }
    return [each.values[0] for each in ALL_CLIENTS if not lacking[each.id]]


def messages(events: Sequence[ReceivedEvent]) -> int:
    return sum(each["event"] == "message" for each in events)


def has(count: int) -> Callable[[Sequence[ReceivedEvent]], bool]:
    return lambda events: messages(events) >= count


async def down(client: SseClient) -> None:
    """The cut has reached it. The raw one has no proxy; it is cut by what it reads."""
    await wait_until(
        lambda: client.is_ended or not client.proxy.connection_count, client.describe_state
    )


def start(topic: str) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}


@every_client
async def test_each_gets_what_was_written_while_it_was_cut_off_and_the_gateway_was_away(
    kind: type[SseClient], gateway: GatewayThread, topic: str, oracle: StreamOracle
):
    """Cut before its first record, within one, and between two; then the gateway drains."""
    async with kind(f"{gateway.base_url}/records/{topic}") as it:
        await it.wait_for_events(1)
        assert it.events[0]["event"] == "begin" and it.events[0]["id"]
        it.cut()
        await oracle.produce_records(topic, 20)
        await it.reconnect()
        await it.wait_for_events(has(20))

        it.cut_after(300)
        await oracle.produce_records(topic, 20)
        await down(it)
        await oracle.produce_records(topic, 20)
        await it.reconnect()
        await it.wait_for_events(has(60))

        await gateway.drain()
        await oracle.produce_records(topic, 20)
        await gateway.start()
        await it.reconnect()
        await it.wait_for_events(has(80))
        oracle.check_events(it.events, start=start(topic))
        ends = [json.loads(e["data"]) for e in it.events if e["event"] == "end"]
        assert ends == [{"reason": "drain"}]
        assert not it.is_closed


@pytest.mark.night
async def test_a_cut_anywhere_in_the_first_bytes_costs_nothing(
    gateway: GatewayThread, topic: str, oracle: StreamOracle
):
    """In the head, `retry`, the data and the id of `begin`, and in records; then whole, with
    records written meanwhile. In the head not for Chromium: without TLS it takes half a head
    for a whole one, misses the content type, and gives up for good."""
    url = f"{gateway.base_url}/records/{topic}?from=earliest"
    await oracle.produce_records(topic, 20)
    places = await interesting(url)
    assert len(places) >= 6
    clients = [kind(url) for kind in on_this_machine()]

    async def suffer(client: SseClient, places: Sequence[int]) -> None:
        if not isinstance(client, RawClient | CurlClient):
            places = [place + len(CODING) for place in places]
        client.cut_after(places[0])
        async with client:
            for place in places[1:]:
                await down_after_data(client)
                client.cut_after(place)
                await client.reconnect()
            await down_after_data(client)
            await oracle.produce_records(topic, 5)
            await client.reconnect()
            await client.wait_for_events(
                lambda events: not oracle.list_missing(parse_events(events))
            )
            oracle.check_events(client.events, start=start(topic))
            assert not client.is_closed, client.describe_state()

    await asyncio.gather(
        *(suffer(each, places[isinstance(each, ChromiumClient) :]) for each in clients)
    )


async def down_after_data(client: SseClient) -> None:
    """A connection was made and cut: the budget of the proxy, or of the raw client, is spent."""
    spent = client if isinstance(client, RawClient) else client.proxy
    await wait_until(
        lambda: not spent.is_cut_pending and (client.reconnects_itself or client.is_ended),
        client.describe_state,
    )


async def interesting(url: str) -> list[int]:
    """Offsets in the answer at which a cut hurts, as a first connection gets it."""
    async with RawClient(url) as client:
        await client.wait_for_events(has(20))
        head = client.received_bytes - len(client.body)
        wire = client.body
    begin = wire.index(b"\nid: ")
    record = wire.index(b"\ndata: ", begin)
    ends = wire.index(b"\nid: ", record)
    return [
        head // 2,
        head + 9,  # in retry
        head + begin // 2,
        head + begin + 20,  # in the first id
        head + record + 30,
        head + ends + 25,
    ]


@pytest.mark.night
async def test_a_gateway_that_is_killed_costs_no_client_a_record(
    config: dict[str, Any], topic: str, oracle: StreamOracle
):
    """Written to before, while it is away, and after."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway_process(config))
        url = f"{gateway.base_url}/records/{topic}"
        clients = [await stack.enter_async_context(kind(url)) for kind in on_this_machine()]
        await asyncio.gather(*(client.wait_for_events(1) for client in clients))
        await oracle.produce_records(topic, 30)
        await asyncio.gather(*(client.wait_for_events(has(10)) for client in clients))
        writing = asyncio.create_task(write_slowly(oracle, topic))
        await gateway.kill()
        await oracle.produce_records(topic, 30)
        await gateway.start()
        await asyncio.gather(*(client.reconnect() for client in clients))
        await writing
        for client in clients:
            await client.wait_for_events(
                lambda events: not oracle.list_missing(parse_events(events))
            )
            oracle.check_events(client.events, start=start(topic))
            assert not any(event["event"] == "end" for event in client.events), client.name


async def write_slowly(oracle: StreamOracle, topic: str) -> None:
    for _ in range(20):
        await oracle.produce_records(topic, 3)
        await asyncio.sleep(0.05)
