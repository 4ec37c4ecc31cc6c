"""Clients that others wrote and people use, on the real gateway and a real Kafka.

Each stands behind a proxy of its own, which cuts its connection at any byte. What must hold is
the oracle's: every record acknowledged since the client's first id once and in order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

import pytest
from support.brokers import KafkaCluster
from support.clients.all_clients import ALL_CLIENTS
from support.clients.chromium import ChromiumClient
from support.clients.client import ReceivedEvent, SseClient
from support.clients.curl import CurlClient
from support.clients.raw import RawClient
from support.gateways import GatewayProcess
from support.oracle import StreamOracle, parse_events
from support.requirements import is_installed
from support.topic_gateway import TopicNames, build_topic_config, run_gateway_process_sync
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition

PARTITIONS = 12
WITHIN = 60.0  # s; several browsers and a broker share two cores here

every_client = pytest.mark.parametrize("kind", ALL_CLIENTS)

CODING = b"content-encoding: gzip\r\n"  # in the heads of those who ask for it
CROSS_ORIGIN = {"access-control": {"policy": "cross-origin"}}


@pytest.fixture(scope="module")
def gateway(session_kafka: KafkaCluster, names: TopicNames) -> Iterator[GatewayProcess]:
    """Chromium's page is of another origin than the proxies."""
    with run_gateway_process_sync(
        build_topic_config(session_kafka.bootstrap_servers, names, listen=CROSS_ORIGIN)
    ) as gateway:
        yield gateway


@pytest.fixture
def topic(kafka: KafkaCluster, names: TopicNames) -> str:
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
        lambda: client.is_ended or not client.proxy.connection_count, client.describe_state, WITHIN
    )


def start(topic: str) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}


@every_client
async def test_each_gets_what_was_written_while_it_was_cut_off(
    kind: type[SseClient], gateway: GatewayProcess, topic: str, kafka: KafkaCluster
):
    """Before its first record, within one, and between two."""
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        kind(f"{gateway.base_url}/records/{topic}") as it,
    ):
        await it.wait_for_events(1, WITHIN)
        assert it.events[0]["event"] == "begin" and it.events[0]["id"]
        it.cut()
        await oracle.produce_records(topic, 20)
        await it.reconnect()
        await it.wait_for_events(has(20), WITHIN)

        it.cut_after(300)
        await oracle.produce_records(topic, 20)
        await down(it)
        await oracle.produce_records(topic, 20)
        await it.reconnect()
        await it.wait_for_events(has(60), WITHIN)
        oracle.check_events(it.events, start=start(topic))
        assert not it.is_closed


async def test_a_cut_anywhere_in_the_first_bytes_costs_nothing(
    gateway: GatewayProcess, topic: str, kafka: KafkaCluster
):
    """In the head, `retry`, the data and the id of `begin`, and in records; then whole, with
    records written meanwhile. In the head not for Chromium: without TLS it takes half a head
    for a whole one, misses the content type, and gives up for good."""
    url = f"{gateway.base_url}/records/{topic}?from=earliest"
    async with StreamOracle(kafka.bootstrap_servers) as oracle:
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
                    lambda events: not oracle.list_missing(parse_events(events)), WITHIN
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
        await client.wait_for_events(has(20), WITHIN)
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


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_a_restart_of_the_gateway_costs_no_client_a_record(
    way: str, gateway: GatewayProcess, topic: str, kafka: KafkaCluster
):
    """kill -9, and told to end; written to before, while it is away, and after."""
    url = f"{gateway.base_url}/records/{topic}"
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        clients = [await stack.enter_async_context(kind(url)) for kind in on_this_machine()]
        await asyncio.gather(*(client.wait_for_events(1, WITHIN) for client in clients))
        await oracle.produce_records(topic, 30)
        await asyncio.gather(*(client.wait_for_events(has(10), WITHIN) for client in clients))
        writing = asyncio.create_task(write_slowly(oracle, topic))
        await (gateway.kill() if way == "kill" else gateway.stop())
        await oracle.produce_records(topic, 30)
        await gateway.start()
        await asyncio.gather(*(client.reconnect() for client in clients))
        await writing
        for client in clients:
            await client.wait_for_events(
                lambda events: not oracle.list_missing(parse_events(events)), WITHIN
            )
            oracle.check_events(client.events, start=start(topic))
            ends = [json.loads(e["data"]) for e in client.events if e["event"] == "end"]
            assert ends == ([] if way == "kill" else [{"reason": "drain"}]), client.name


async def write_slowly(oracle: StreamOracle, topic: str) -> None:
    for _ in range(20):
        await oracle.produce_records(topic, 3)
        await asyncio.sleep(0.05)
