"""What is compressed is handed on by every decoder as it comes: one small event at a time, while
the stream stays open.

A record is written once the client has told the one before, and nothing else is sent: a decoder
that waits for more gets none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.brokers import embedded_kafka
from support.clients.browser_page import STREAM_KINDS, open_page
from support.clients.client import ReceivedEvent
from support.clients.decoders import (
    ALL_DECODERS,
    BUILD_TIMEOUT_MARK,
    DecodingClient,
    GoSocketClient,
)
from support.gateways import GatewayThread
from support.head_recorder import HeadRecorder
from support.records import RecordToSend, produce_records
from support.topic_gateway import TopicNames, build_topic_config, run_gateway_sync, topic_fixture
from support.waiting import wait_until

from gateway.hub.wires.sse import SseWire
from gateway.kafka.embedded import EmbeddedKafka

STARTS_WITHIN_S = 600.0  # programs may have to be built
RECORDS = 8
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
SILENT = "10m"
LISTEN = {"access-control": {"policy": "cross-origin"}, "websocket": {"compression": True}}
ROUTES = {
    "value": {"format": "value", "heartbeat": SILENT},
    "beating": {"format": "value", "heartbeat": "100ms"},
}

Topic = Callable[..., str]

kafka = embedded_kafka()
topic = topic_fixture()
every_decoder = pytest.mark.parametrize("kind", ALL_DECODERS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka, names: TopicNames) -> Iterator[GatewayThread]:
    with run_gateway_sync(
        build_topic_config(",".join(kafka.bootstrap), names, ROUTES, listen=LISTEN)
    ) as gateway:
        yield gateway


@asynccontextmanager
async def streaming(client: DecodingClient, first: bytes) -> AsyncIterator[None]:
    """From when it has printed this on."""
    async with client:
        await wait_until(lambda: first in client.output, client.describe_state, STARTS_WITHIN_S)
        yield
        assert client.proxy.are_all_compressed


async def prints(client: DecodingClient, text: bytes, count: int = 1) -> None:
    await wait_until(lambda: client.output.count(text) >= count, client.describe_state)


@every_decoder
@pytest.mark.parametrize("accept", [EVENTS, LINES], ids=["events", "lines"])
async def test_each_small_record_is_handed_on_before_the_next_is_written(
    kind: type[DecodingClient],
    accept: str,
    kafka: EmbeddedKafka,
    gateway: GatewayThread,
    topic: Topic,
):
    """Events below 256 bytes were blocks without a flush behind them: programs in Go got none of
    a stream until there were 32 KiB of it."""
    name = topic()
    await produce_records(kafka.bootstrap, name, [b'{"order":0}'])
    client = kind(f"{gateway.base_url}/value/{name}?from=earliest")
    client.media_type = accept
    async with streaming(client, b'{"order":0}'):
        for n in range(1, RECORDS):
            await produce_records(kafka.bootstrap, name, [b'{"order":%d}' % n])
            await prints(client, b'{"order":%d}' % n)
        await produce_records(kafka.bootstrap, name, [b'{"order":"large%b"}' % (b"x" * 1000)])
        await prints(client, b'{"order":"large')
        await produce_records(kafka.bootstrap, name, [RecordToSend(None, b"tombstone")])
        await prints(client, b"tombstone")
    assert client.output.count(b'"order":') == RECORDS + 1


@every_decoder
async def test_begin_and_heartbeats_of_an_idle_stream_are_handed_on(
    kind: type[DecodingClient], gateway: GatewayThread, topic: Topic
):
    """They were held back as small records were, so that a client took its stream for dead."""
    client = kind(f"{gateway.base_url}/beating/{topic()}")
    async with streaming(client, b"event: begin"):
        await prints(client, SseWire().encode_heartbeat(), count=3)


@pytest.mark.needs("go")
@BUILD_TIMEOUT_MARK
async def test_each_compressed_message_of_a_websocket_is_handed_on_in_go(
    kafka: EmbeddedKafka, gateway: GatewayThread, topic: Topic
):
    name = topic()
    client = GoSocketClient(f"{gateway.base_url}/value/{name}")
    async with streaming(client, b'"type":"begin"'):
        for n in range(RECORDS):
            value = b'{"order":%d,"note":"%b"}' % (n, b"x" * 1000 * (n % 2))
            await produce_records(kafka.bootstrap, name, [value])
            await prints(client, value)


@pytest.mark.parametrize(
    "browser",
    [
        pytest.param("chromium", marks=pytest.mark.needs("chromium")),
        pytest.param("firefox", marks=[pytest.mark.needs("firefox"), pytest.mark.night]),
    ],
)
async def test_a_page_is_handed_each_small_record_before_the_next_is_written(
    browser: str, kafka: EmbeddedKafka, gateway: GatewayThread, topic: Topic
):
    name = topic()
    async with AsyncExitStack() as stack:
        page = await stack.enter_async_context(open_page(browser))
        clients = [
            page.create_client(kind, f"{gateway.base_url}/value/{name}") for kind in STREAM_KINDS
        ]
        for client in clients:
            client.proxy = HeadRecorder()
            await stack.enter_async_context(client)
        for client in clients:
            await client.wait_for_events(lambda events: events)  # its begin
        for n in range(RECORDS):
            await produce_records(kafka.bootstrap, name, [b'{"order":%d}' % n])
            for client in clients:
                await client.wait_for_events(lambda events, n=n: n in orders(events))
        assert all(client.proxy.are_all_compressed for client in clients)
        assert [orders(client.events) for client in clients] == [list(range(RECORDS))] * len(
            STREAM_KINDS
        )


def orders(events: Sequence[ReceivedEvent]) -> list[int]:
    return [json.loads(each["data"])["order"] for each in events if each["event"] == "message"]
