"""Clients that come back at once, and records that come at once: shared reads, shared writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

import httpx
import pytest
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process
from support.kafka_proxy import KafkaProxy
from support.records import RecordToSend, produce_records
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")

CLIENTS = 30
BEFORE, MISSED, LATER = 30, 900, 30
PARTITIONS = 3
PAD = b" " * 480


def numbered(numbers: Iterable[int]) -> list[RecordToSend]:
    return [RecordToSend(b"%d" % n + PAD, None, n % PARTITIONS) for n in numbers]


def values(client: RawClient) -> list[int]:
    return [int(event["data"]) for event in client.events if event["event"] == "message"]


def have(clients: list[RawClient], wanted: range) -> Callable[[], bool]:
    return lambda: all(len(values(client)) >= len(wanted) for client in clients)


async def position(gateway: GatewayProcess, topic: str) -> str:
    """Of a stream that has had everything up to now."""
    url = f"{gateway.base_url}/events/{topic}?from=earliest&until=latest"
    async with httpx.AsyncClient() as http:
        answer = await http.get(url, headers={"Accept": "application/x-ndjson"})
    *lines, last = answer.text.splitlines()
    assert len(lines) == BEFORE
    end: str = json.loads(last)["@end"]["position"]
    return end


@pytest.mark.parametrize("restarted", [False, True], ids=["from memory", "after a restart"])
async def test_who_comes_back_together_gets_everything_once_and_kafka_is_read_for_all(
    kafka, topic, restarted: bool
):
    name = topic(PARTITIONS)
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy, AsyncExitStack() as stack:
        config = build_config(proxy.bootstrap, [name], [build_route(name, "value")])
        gateway = await stack.enter_async_context(running_gateway_process(config))
        await produce_records(kafka.bootstrap, name, numbered(range(BEFORE)))
        token = await position(gateway, name)
        await produce_records(kafka.bootstrap, name, numbered(range(BEFORE, BEFORE + MISSED)))
        if restarted:
            await gateway.restart()
        else:
            async with RawClient(f"{gateway.base_url}/events/{name}", last_event_id=token) as one:
                await wait_until(have([one], range(MISSED)), "the cache is warm")
        before = sum(broker.bytes_to_client for broker in proxy.brokers)
        opening = (
            stack.enter_async_context(
                RawClient(f"{gateway.base_url}/events/{name}", last_event_id=token)
            )
            for _ in range(CLIENTS)
        )
        clients = await asyncio.gather(*opening)
        await wait_until(have(clients, range(MISSED)), "all that was missed")
        read = sum(broker.bytes_to_client for broker in proxy.brokers) - before
        payload = MISSED * len(PAD)
        assert read < (3 if restarted else 0.5) * payload, f"{read} bytes for {payload}"

        end = BEFORE + MISSED + LATER
        await produce_records(kafka.bootstrap, name, numbered(range(BEFORE + MISSED, end)))
        await wait_until(have(clients, range(MISSED + LATER)), "what came later")
        for client in clients:
            got = values(client)
            assert sorted(got) == list(range(BEFORE, end))
            for p in range(PARTITIONS):
                of_one = [n for n in got if n % PARTITIONS == p]
                assert of_one == sorted(of_one)


async def test_records_that_come_together_go_out_in_a_few_chunks_to_every_client(
    embedded: EmbeddedKafka,
):
    """Each event has its id all the same. A chunk of HTTP is what was written at once."""
    embedded.create_topic("orders", PARTITIONS)
    config = build_config(
        ",".join(embedded.bootstrap), ["orders"], [build_route("orders", "value")]
    )
    async with running_gateway_process(config) as gateway, AsyncExitStack() as stack:
        streams = [await _stream(stack, gateway) for _ in range(3)]
        await produce_records(embedded.bootstrap, "orders", numbered(range(MISSED)))
        for reader in streams:
            chunks: list[bytes] = []
            while sum(chunk.count(PAD) for chunk in chunks) < MISSED:
                size = int(await reader.readline(), 16)
                chunks.append((await reader.readexactly(size + 2))[:-2])
            events = b"".join(chunks).split(b"\n\n")
            assert sum(PAD in event and b"\nid: " in event for event in events) == MISSED
            assert len(chunks) < MISSED / 3


async def _stream(stack: AsyncExitStack, gateway: GatewayProcess) -> asyncio.StreamReader:
    """Behind the head and the first chunk, which is the first block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    stack.callback(writer.close)
    writer.write(
        b"GET /events/orders HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    first = await reader.readexactly(int(await reader.readline(), 16) + 2)
    assert first.startswith(b"retry:") and b"event: begin" in first
    return reader
