"""Clients that others wrote, on every wire but curl's: npm `ws`, PyPI `websockets`, and pages in
Chromium and Firefox with WebSocket, EventSource and fetch.

Each stream stands behind a proxy of its own. What must hold is the oracle's: every record since
the first position once and in order, and what Kafka no longer has told as a gap. That is the
contract of each by day; why sockets are closed, and who does not read, is for the night.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from support.clients.browser_page import STREAM_KINDS, BrowserPage, open_page
from support.clients.client import ReceivedEvent
from support.clients.websocket_clients import (
    NpmWebSocketClient,
    NpmWebSocketMultiplexClient,
    SocketClient,
    WebsocketsClient,
    WebsocketsMultiplexClient,
)
from support.gateways import GatewayThread, build_config, running_gateway
from support.grouped import ERROR_NAMES
from support.head_recorder import HeadRecorder
from support.oracle import AckedRecord, StreamOracle
from support.received import parse_events
from support.records import RecordToSend, produce_records
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.hub.wires.sse import RETRY_RANGE_S
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = 3
MANY = 500  # partitions; positions are longer than 512 characters
OPEN = {"access-control": {"policy": "cross-origin"}, "websocket": {"compression": True}}
PROGRAMS = (
    WebsocketsClient,
    WebsocketsMultiplexClient,
    NpmWebSocketClient,
    NpmWebSocketMultiplexClient,
)
BROWSERS = (
    pytest.param("chromium", marks=pytest.mark.needs("chromium")),
    pytest.param("firefox", marks=pytest.mark.needs("firefox")),
)
GROUPS = (pytest.param("programs", marks=pytest.mark.needs("node", "npm")), *BROWSERS)
TOPICS = [
    f"{test}-{each.values[0]}" for test in ("story", "codes", "end", "slow") for each in GROUPS
]


class Group(NamedTuple):
    """Clients of one make. page: theirs, if it is a browser."""

    name: str
    page: BrowserPage | None = None

    def clients(self, url: str) -> list[SocketClient]:
        """One of each kind, of the stream at the url."""
        if self.page is None:
            return [kind(url) for kind in PROGRAMS]
        return [self.page.create_client(kind, url) for kind in STREAM_KINDS]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(dict.fromkeys(TOPICS, PARTITIONS) | {"many": MANY}) as kafka:
        yield kafka


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateways(kafka: EmbeddedKafka) -> AsyncIterator[Sequence[GatewayThread]]:
    """Two, alike."""
    config = build_config(kafka.bootstrap, [*TOPICS, "many"], listen=OPEN)
    async with running_gateway(config) as one, running_gateway(config) as other:
        yield one, other


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=GROUPS)
async def group(request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """A browser is started once for all tests."""
    if request.param == "programs":
        yield Group(request.param)
        return
    async with open_page(request.param) as page:
        yield Group(request.param, page)


@asynccontextmanager
async def streaming(clients: Sequence[SocketClient]) -> AsyncIterator[None]:
    """All of them, from their begin on."""
    async with AsyncExitStack() as stack:
        for client in clients:
            await stack.enter_async_context(client)
        await everybody(clients, lambda events: named(events, "begin"))
        yield


async def everybody(
    clients: Iterable[SocketClient], met: Callable[[Sequence[ReceivedEvent]], object]
) -> None:
    await asyncio.gather(*(client.wait_for_events(met) for client in clients))


def named(events: Iterable[ReceivedEvent], name: str) -> list[Any]:
    return [json.loads(event["data"]) for event in events if event["event"] == name]


def has(records: Iterable[AckedRecord]) -> Callable[[Sequence[ReceivedEvent]], bool]:
    values = {each.value for each in records}
    return lambda events: values <= {getattr(each, "value", None) for each in parse_events(events)}


def start(topic: str, partitions: int = PARTITIONS) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): 0 for number in range(partitions)}


async def test_each_gets_what_was_written_while_it_was_cut_off_at_whichever_gateway(
    group: Group, gateways: Sequence[GatewayThread], kafka: EmbeddedKafka
):
    """Cut within a message; then away while Kafka loses some of what is written, and back at the
    other gateway, which has heard of none of it; then that one ends."""
    first, second = gateways
    topic, servers = f"story-{group.name}", ",".join(kafka.bootstrap)
    clients = group.clients(f"{first.base_url}/records/{topic}")
    proxies = [HeadRecorder() for _ in clients]
    for client, proxy in zip(clients, proxies, strict=True):
        client.proxy = proxy
    async with StreamOracle(servers) as oracle, streaming(clients):
        ((partition, offset),) = await produce_records(
            kafka.bootstrap, topic, [RecordToSend(None, b"key", 0)]
        )
        oracle.add_acked([AckedRecord(TopicPartition(topic, partition), offset, b"key", None)])
        await everybody(clients, lambda events: named(events, "delete"))
        for client in clients:
            client.cut_after(300)
        records = await oracle.produce_records(topic, 20)
        await everybody(clients, has(records))
        for client in clients:
            await client.proxy.refuse()
            client.set_server(second.base_url)
        await oracle.produce_records(topic, 20)
        kept = oracle.get_end_offsets()
        kafka.delete_records(topic, {tp.partition: end for tp, end in kept.items()})
        records = await oracle.produce_records(topic, 20)
        await have_tried_in_vain(clients)
        for client in clients:
            await client.proxy.restore()
        await everybody(clients, has(records))
        for client in clients:
            oracle.check_events(client.events, start=start(topic), log_start=kept)
            assert {gap["reason"] for gap in named(client.events, "gap")} == {"retention"}
            assert all(event["id"] for event in client.events if event["event"] == "begin")
            assert client.open_count >= 3, client.describe_state()
            client.set_server(first.base_url)
        async with restarting(second):
            records = await oracle.produce_records(topic, 20)
            await everybody(sockets(clients), has(records))
        for client in sockets(clients):
            oracle.check_events(client.events, start=start(topic), log_start=kept)
            assert [end["reason"] for end in named(client.events, "end")] == ["drain"]
            assert set(client.close_codes) == {1006, 1012}, client.describe_state()
        assert all(proxy.are_all_compressed for proxy in proxies)


async def have_tried_in_vain(clients: Sequence[SocketClient]) -> None:
    """Each EventSource lost its connection and met a closed port. Chromium's tries again; Firefox's
    gives up for good, and its page makes another one with the id that it had."""
    for client in clients:
        if client.stream_kind == "eventsource":  # an error for each of two cuts, and one for this
            await wait_until(lambda it=client: len(it.errors) >= 3, client.describe_state)


@asynccontextmanager
async def restarting(gateway: GatewayThread) -> AsyncIterator[None]:
    """It is told to end, and started again after the block."""
    try:
        await gateway.drain()
        yield
    finally:
        await gateway.start()


@pytest.mark.night
async def test_a_socket_that_is_closed_is_told_why_by_its_code_and_comes_back(
    group: Group, gateways: Sequence[GatewayThread], kafka: EmbeddedKafka
):
    """For a binary message, for sixteen bad ones, for a huge one."""
    topic, servers = f"codes-{group.name}", ",".join(kafka.bootstrap)
    clients = sockets(group.clients(f"{gateways[0].base_url}/records/{topic}"))
    async with StreamOracle(servers) as oracle, streaming(clients):
        for client in clients:
            await client.send_text("binary", binary=True)
        await are_back(clients, 1003, 1, oracle)
        for client in clients:
            for _ in range(16):
                await client.send_text("this is not JSON")
        await are_back(clients, 1008, 2, oracle)
        for client in clients:
            await client.send_text("x", times=(1 << 20) + 1)
        await are_back(clients, 1009, 3, oracle)
        for client in clients:
            oracle.check_events(without_errors(client.events), start=start(topic))
            codes = [error["code"] for error in named(client.events, "error")]
            assert codes == ["bad-message"] * 16


async def are_back(
    clients: Sequence[SocketClient], code: int, times: int, oracle: StreamOracle
) -> None:
    """All were closed with this code, the so manieth close, and hear of what is written."""

    def back() -> bool:
        return all(
            (len(each.close_codes), each.open_count) == (times, times + 1) for each in clients
        )

    await wait_until(back, lambda: "; ".join(each.describe_state() for each in clients))
    assert {each.close_codes[-1] for each in clients} == {code}
    records = await oracle.produce_records(f"codes-{clients[0].url.rpartition('-')[2]}", 10)
    await everybody(clients, lambda events: has(records)(without_errors(events)))


def sockets(clients: Iterable[SocketClient]) -> list[SocketClient]:
    return [client for client in clients if client.stream_kind in ("path", "multiplex")]


def without_errors(events: Iterable[ReceivedEvent]) -> list[ReceivedEvent]:
    """What was said of bad messages the oracle would take for the end."""
    return [event for event in events if event["event"] not in ERROR_NAMES]


@pytest.mark.night
async def test_a_stream_that_was_asked_to_end_is_closed_with_1000(
    group: Group, gateways: Sequence[GatewayThread], kafka: EmbeddedKafka
):
    topic, servers = f"end-{group.name}", ",".join(kafka.bootstrap)
    url = f"{gateways[0].base_url}/records/{topic}?from=earliest&until=latest"
    clients = [each for each in group.clients(url) if each.stream_kind == "path"]
    async with StreamOracle(servers) as oracle:
        await oracle.produce_records(topic, 10)
        async with streaming(clients):
            for client in clients:
                await wait_until(lambda client=client: client.is_closed, client.describe_state)
                oracle.check_events(client.events, start=start(topic))
                assert [end["reason"] for end in named(client.events, "end")] == ["until"]
                assert (client.close_codes, client.open_count) == ([1000], 1)


@pytest.mark.night
async def test_a_program_that_pauses_and_a_page_that_is_busy_lose_nothing(
    group: Group, gateways: Sequence[GatewayThread], kafka: EmbeddedKafka
):
    """More is written meanwhile than they, the network and the ring of the gateway hold."""
    topic, servers = f"slow-{group.name}", ",".join(kafka.bootstrap)
    clients = group.clients(f"{gateways[0].base_url}/records/{topic}")
    for client in clients:
        client.proxy = TcpProxy(receive_buffer=32_768)
    async with StreamOracle(servers) as oracle, streaming(clients):
        for client in clients:
            await client.stop_reading()
        for _ in range(50):
            await oracle.produce_records(topic, 10, fields={"pad": secrets.token_urlsafe(12_000)})
        for client in clients:
            assert len(client.events) < 100, "what was being read when it stopped may still come"
            assert client.proxy.bytes_to_client < 7_000_000, "it read on"
            client.resume_reading()
        await everybody(clients, has(oracle.list_acked()))
        for client in clients:
            oracle.check_events(client.events, start=start(topic))
            assert client.open_count == 1, client.describe_state()


@pytest.mark.night
@pytest.mark.parametrize("group", BROWSERS, indirect=True)
async def test_the_event_source_of_a_browser_brings_back_long_ids_after_the_time_it_was_told(
    group: Group, gateways: Sequence[GatewayThread], kafka: EmbeddedKafka
):
    """Long ids come in batches: after a cut, what came since the last one comes again."""
    assert group.page is not None
    client = group.page.create_client("eventsource", f"{gateways[0].base_url}/records/many")
    client.proxy = network = HeadRecorder()
    async with StreamOracle(",".join(kafka.bootstrap)) as oracle, streaming([client]):
        await client.wait_for_events(has(await oracle.produce_records("many", MANY, key=unique)))
        at = time.monotonic()
        client.cut()
        await client.wait_for_events(has(await oracle.produce_records("many", MANY, key=unique)))
        assert client.proxy.accepted_at[1] - at > 0.9 * RETRY_RANGE_S[0]
        # What it had read of the first connection is known to the page alone, until it says so.
        known = brought(network.request_heads[1])
        assert len(known) > 512
        cut = [n for n, event in enumerate(client.events) if event["event"] == "begin"][1]
        until_id = next(n for n, event in enumerate(client.events) if event["id"] == known)
        kept = [*client.events[: until_id + 1], *client.events[cut:]]
        oracle.check_events(kept, start=start("many", MANY))
        assert [begin["resume"] for begin in named(client.events, "begin")] == ["batch"] * 2


def brought(request: bytes) -> str:
    """Its last event id."""
    found = re.search(rb"\r\nlast-event-id: ([^\r]*)", request, re.IGNORECASE)
    assert found, request
    return found[1].decode()


def unique(serial: int) -> bytes:
    return str(serial).encode()
