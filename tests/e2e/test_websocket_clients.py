"""Clients that others wrote, on every wire but curl's: npm `ws`, PyPI `websockets`, and pages in
Chromium and Firefox with WebSocket, EventSource and fetch.

Each stream stands behind a proxy of its own. What must hold is the oracle's: every record since
the first position once and in order, and what Kafka no longer has told as a gap.
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
from support.clients.client import Event
from support.clients.page import KINDS, Page, page_in
from support.clients.sockets import (
    NpmWebSocketClient,
    NpmWebSocketMultiplexClient,
    SocketClient,
    WebsocketsClient,
    WebsocketsMultiplexClient,
)
from support.gateways import Gateway, config_for, running_gateway
from support.heads import Heads
from support.heard import heard
from support.oracle import Acked, Oracle
from support.records import Sent, produce
from support.tcp_proxy import TcpProxy
from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.hub.wires.sse import RETRY
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN = 60.0  # s; browsers and whatever else runs share two cores
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
    page: Page | None = None

    def clients(self, url: str) -> list[SocketClient]:
        """One of each kind, of the stream at the url."""
        if self.page is None:
            return [kind(url) for kind in PROGRAMS]
        return [self.page.client(kind, url) for kind in KINDS]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(dict.fromkeys(TOPICS, PARTITIONS) | {"many": MANY}) as kafka:
        yield kafka


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateways(kafka: EmbeddedKafka) -> AsyncIterator[Sequence[Gateway]]:
    """Two, alike."""
    config = config_for(kafka.bootstrap, [*TOPICS, "many"], listen=OPEN)
    async with running_gateway(config) as one, running_gateway(config) as other:
        yield one, other


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=GROUPS)
async def group(request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """A browser is started once for all tests."""
    if request.param == "programs":
        yield Group(request.param)
        return
    async with page_in(request.param) as page:
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
    clients: Iterable[SocketClient], met: Callable[[Sequence[Event]], object]
) -> None:
    await asyncio.gather(*(client.wait(met, WITHIN) for client in clients))


def named(events: Iterable[Event], name: str) -> list[Any]:
    return [json.loads(event["data"]) for event in events if event["event"] == name]


def has(records: Iterable[Acked]) -> Callable[[Sequence[Event]], bool]:
    values = {each.value for each in records}
    return lambda events: values <= {getattr(each, "value", None) for each in heard(events)}


def start(topic: str, partitions: int = PARTITIONS) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): 0 for number in range(partitions)}


async def test_each_gets_what_was_written_while_it_was_cut_off_at_whichever_gateway(
    group: Group, gateways: Sequence[Gateway], kafka: EmbeddedKafka
):
    """Cut within a message; then away while Kafka loses some of what is written, and back at the
    other gateway, which has heard of none of it; then that one ends."""
    first, second = gateways
    topic, servers = f"story-{group.name}", ",".join(kafka.bootstrap)
    clients = group.clients(f"{first.base_url}/records/{topic}")
    proxies = [Heads() for _ in clients]
    for client, proxy in zip(clients, proxies, strict=True):
        client.network = proxy
    async with Oracle(servers) as oracle, streaming(clients):
        ((partition, offset),) = await produce(kafka.bootstrap, topic, [Sent(None, b"key", 0)])
        oracle.adopt([Acked(TopicPartition(topic, partition), offset, b"key", None)])
        await everybody(clients, lambda events: named(events, "delete"))
        for client in clients:
            client.cut_after(300)
        records = await oracle.produce(topic, 20)
        await everybody(clients, has(records))
        for client in clients:
            await client.network.refuse()
            client.lead_to(second.base_url)
        await oracle.produce(topic, 20)
        kept = oracle.end()
        kafka.delete_records(topic, {tp.partition: end for tp, end in kept.items()})
        records = await oracle.produce(topic, 20)
        await have_tried_in_vain(clients)
        for client in clients:
            await client.network.restore()
        await everybody(clients, has(records))
        for client in clients:
            oracle.check_events(client.events, start=start(topic), log_start=kept)
            assert {gap["reason"] for gap in named(client.events, "gap")} == {"retention"}
            assert all(event["id"] for event in client.events if event["event"] == "begin")
            assert client.opened >= 3, client.state()
            client.lead_to(first.base_url)
        async with restarting(second):
            records = await oracle.produce(topic, 20)
            await everybody(sockets(clients), has(records))
        for client in sockets(clients):
            oracle.check_events(client.events, start=start(topic), log_start=kept)
            assert [end["reason"] for end in named(client.events, "end")] == ["drain"]
            assert set(client.closes) == {1006, 1012}, client.state()
        assert all(proxy.all_compressed for proxy in proxies)


async def have_tried_in_vain(clients: Sequence[SocketClient]) -> None:
    """Each EventSource lost its connection and met a closed port. Chromium's tries again; Firefox's
    gives up for good, and its page makes another one with the id that it had."""
    for client in clients:
        if client.kind == "eventsource":  # an error for each of two cuts, and one for this
            await until(lambda it=client: len(it.errors) >= 3, client.state, WITHIN)


@asynccontextmanager
async def restarting(gateway: Gateway) -> AsyncIterator[None]:
    """It is told to end, and started again after the block."""
    try:
        await gateway.stop()
        yield
    finally:
        await gateway.start()


async def test_a_socket_that_is_closed_is_told_why_by_its_code_and_comes_back(
    group: Group, gateways: Sequence[Gateway], kafka: EmbeddedKafka
):
    """For a binary message, for sixteen bad ones, for a huge one."""
    topic, servers = f"codes-{group.name}", ",".join(kafka.bootstrap)
    clients = sockets(group.clients(f"{gateways[0].base_url}/records/{topic}"))
    async with Oracle(servers) as oracle, streaming(clients):
        for client in clients:
            await client.say("binary", binary=True)
        await are_back(clients, 1003, 1, oracle)
        for client in clients:
            for _ in range(16):
                await client.say("this is not JSON")
        await are_back(clients, 1008, 2, oracle)
        for client in clients:
            await client.say("x", times=(1 << 20) + 1)
        await are_back(clients, 1009, 3, oracle)
        for client in clients:
            oracle.check_events(without_errors(client.events), start=start(topic))
            codes = [error["code"] for error in named(client.events, "error")]
            assert codes == ["bad-message"] * 16


async def are_back(clients: Sequence[SocketClient], code: int, times: int, oracle: Oracle) -> None:
    """All were closed with this code, the so manieth close, and hear of what is written."""

    def back() -> bool:
        return all((len(each.closes), each.opened) == (times, times + 1) for each in clients)

    await until(back, lambda: "; ".join(each.state() for each in clients), WITHIN)
    assert {each.closes[-1] for each in clients} == {code}
    records = await oracle.produce(f"codes-{clients[0].url.rpartition('-')[2]}", 10)
    await everybody(clients, lambda events: has(records)(without_errors(events)))


def sockets(clients: Iterable[SocketClient]) -> list[SocketClient]:
    return [client for client in clients if client.kind in ("path", "multiplex")]


def without_errors(events: Iterable[Event]) -> list[Event]:
    """What was said of bad messages the oracle would take for the end."""
    return [event for event in events if event["event"] != "error"]


async def test_a_stream_that_was_asked_to_end_is_closed_with_1000(
    group: Group, gateways: Sequence[Gateway], kafka: EmbeddedKafka
):
    topic, servers = f"end-{group.name}", ",".join(kafka.bootstrap)
    url = f"{gateways[0].base_url}/records/{topic}?from=earliest&until=latest"
    clients = [each for each in group.clients(url) if each.kind == "path"]
    async with Oracle(servers) as oracle:
        await oracle.produce(topic, 10)
        async with streaming(clients):
            for client in clients:
                await until(lambda client=client: client.closed, client.state, WITHIN)
                oracle.check_events(client.events, start=start(topic))
                assert [end["reason"] for end in named(client.events, "end")] == ["until"]
                assert (client.closes, client.opened) == ([1000], 1)


async def test_a_program_that_pauses_and_a_page_that_is_busy_lose_nothing(
    group: Group, gateways: Sequence[Gateway], kafka: EmbeddedKafka
):
    """More is written meanwhile than they, the network and the ring of the gateway hold."""
    topic, servers = f"slow-{group.name}", ",".join(kafka.bootstrap)
    clients = group.clients(f"{gateways[0].base_url}/records/{topic}")
    for client in clients:
        client.network = TcpProxy(receive_buffer=32_768)
    async with Oracle(servers) as oracle, streaming(clients):
        for client in clients:
            await client.hold()
        for _ in range(50):
            await oracle.produce(topic, 10, fields={"pad": secrets.token_urlsafe(12_000)})
        for client in clients:
            assert len(client.events) < 100, "what was being read when it stopped may still come"
            assert client.network.to_client < 7_000_000, "it read on"
            client.release()
        await everybody(clients, has(oracle.acknowledged()))
        for client in clients:
            oracle.check_events(client.events, start=start(topic))
            assert client.opened == 1, client.state()


@pytest.mark.parametrize("group", BROWSERS, indirect=True)
async def test_the_event_source_of_a_browser_brings_back_long_ids_after_the_time_it_was_told(
    group: Group, gateways: Sequence[Gateway], kafka: EmbeddedKafka
):
    """Long ids come in batches: after a cut, what came since the last one comes again."""
    assert group.page is not None
    client = group.page.client("eventsource", f"{gateways[0].base_url}/records/many")
    client.network = network = Heads()
    async with Oracle(",".join(kafka.bootstrap)) as oracle, streaming([client]):
        await client.wait(has(await oracle.produce("many", MANY, key=unique)), WITHIN)
        at = time.monotonic()
        client.cut()
        await client.wait(has(await oracle.produce("many", MANY, key=unique)), WITHIN)
        assert client.network.connects[1] - at > 0.9 * RETRY[0]
        # What it had read of the first connection is known to the page alone, until it says so.
        known = brought(network.asked[1])
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
