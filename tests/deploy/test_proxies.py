"""Every file of deploy/proxies, run by its real proxy in front of a real gateway."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from support.clients.secure import SecureEventSource
from support.gateways import build_config, running_gateway_process
from support.proxies import ALL_PROXIES, Nginx, Proxy, running_proxy
from support.waiting import WAIT_TIMEOUT_S, wait_until
from websockets import Origin
from websockets.asyncio.client import connect

from gateway.core.token.resume_token import TokenWriter, TopicPositions, parse_token, seal_token
from gateway.kafka.embedded import EmbeddedKafka

EVENTS = {"Accept": "text/event-stream"}
TRUSTING = {"forwarded": ["127.0.0.1"]}

KINDS = [
    pytest.param(each, id=each.NAME, marks=pytest.mark.needs(each.NAME)) for each in ALL_PROXIES
]
every_proxy = pytest.mark.parametrize("kind", KINDS)
every_version = pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
in_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"orders": 1, "many": 2000}) as kafka:
        yield kafka


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def proxy(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Proxy]:
    """One for all tests that break nothing.

    As everywhere here its gateway is a process: proxies ask for its health, and on a busy machine
    take one for gone that shares an interpreter with the test.
    """
    config = build_config(kafka.bootstrap, ["orders", "many"], listen=TRUSTING)
    folder = tmp_path_factory.mktemp("proxy") / "proxy"
    async with (
        running_gateway_process(config) as gateway,
        running_proxy(request.param, folder, gateway.port) as proxy,
    ):
        yield proxy


@in_module_loop
@every_version
async def test_an_event_arrives_before_the_next_is_produced(kafka, proxy, http2):
    """Also what is compressed, which the gateway does once for all: a proxy that holds the first
    event back would wait for ever here."""
    async with (
        AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer,
        proxy.create_http_client(http2=http2) as http,
    ):
        for coding in ("identity", "gzip"):
            headers = {"Accept-Encoding": coding}
            async with SecureEventSource(http, "/events/orders", headers=headers) as client:
                await client.wait_for_events(1)
                for number in range(3):
                    await producer.send_and_wait("orders", b"%d" % number, partition=0)
                    expected = [str(each) for each in range(number + 1)]
                    await wait_until(lambda e=expected: client.records == e, client.describe_state)
                (response,) = client.responses
                assert response.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
                assert response.headers.get("content-encoding", "identity") == coding


@every_proxy
async def test_a_stream_resumes_across_a_reload_of_the_proxy_and_a_restart_of_the_gateway(
    embedded, tmp_path, kind
):
    embedded.create_topic("orders", 2)
    async with (
        running_gateway_process(
            build_config(embedded.bootstrap, ["orders"], listen=TRUSTING)
        ) as gateway,
        running_proxy(kind, tmp_path / "proxy", gateway.port) as proxy,
        AIOKafkaProducer(bootstrap_servers=embedded.bootstrap) as producer,
        proxy.create_http_client() as http,
        SecureEventSource(http, "/events/orders") as client,
    ):
        await client.wait_for_events(1)
        await producer.send_and_wait("orders", b"first", partition=0)
        await wait_until(lambda: client.records == ["first"], client.describe_state)
        await proxy.reload()
        await producer.send_and_wait("orders", b"after reload", partition=0)
        await wait_until(lambda: client.records == ["first", "after reload"], client.describe_state)

        await gateway.kill()
        await producer.send_and_wait("orders", b"meanwhile", partition=1)
        await gateway.start()
        await producer.send_and_wait("orders", b"after", partition=0)
        await client.wait_for_events(lambda _: len(client.records) >= 4)
        assert sorted(client.records) == ["after", "after reload", "first", "meanwhile"]
        assert not client.is_closed


@every_proxy
async def test_while_no_gateway_is_there_an_event_source_is_told_to_come_back(
    embedded, tmp_path, kind
):
    """A 502 or 503 would end it for good; a program gets one."""
    async with (
        running_gateway_process(build_config(embedded.bootstrap)) as gateway,
        running_proxy(
            kind, tmp_path / "proxy", gateway.port, changes=SHORT_WAITS.get(kind.NAME)
        ) as proxy,
        proxy.create_http_client() as http,
    ):
        await gateway.kill()
        answer = await http.get("/events/orders", headers=EVENTS)
        while answer.status_code != 200:  # until it is noticed by the checks of health
            answer = await http.get("/events/orders", headers=EVENTS)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text == "retry: 2000\n\n"
        assert (await http.get("/events/orders")).status_code in (502, 503)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            each,
            id=each.NAME,
            marks=[pytest.mark.needs(each.NAME)] + [pytest.mark.night] * (each is not Nginx),
        )
        for each in ALL_PROXIES
    ],
)
async def test_after_all_gateways_were_away_each_stream_is_let_through_at_once(
    embedded, tmp_path, kind
):
    """nginx let one request in every 2 s through to a replica that had failed once, until a request
    to it ended, which streams never do: clients got 503 for minutes."""
    embedded.create_topic("orders", 1)
    config = build_config(embedded.bootstrap, ["orders"], listen=TRUSTING)
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(running_gateway_process(config)) for _ in range(2)
        ]
        ports = [gateway.port for gateway in gateways]
        changes = SHORT_WAITS.get(kind.NAME)
        running = running_proxy(kind, tmp_path / "proxy", *ports, changes=changes)
        proxy = await stack.enter_async_context(running)
        http = await stack.enter_async_context(proxy.create_http_client())
        for gateway in gateways:
            await gateway.kill()
        while (await http.get("/events/orders", headers=EVENTS)).text != "retry: 2000\n\n":
            pass
        for gateway in gateways:
            await gateway.start()
        first, *others = [SecureEventSource(http, "/events/orders") for _ in range(9)]
        await stack.enter_async_context(first)
        await first.wait_for_events(1)  # one of the gateways is known to be back
        for client in others:
            await stack.enter_async_context(client)
        for client in others:
            await client.wait_for_events(1)
        assert [len(client.responses) for client in others] == [1] * 8


SHORT_WAITS = {"caddy": {"lb_try_duration 10s": "lb_try_duration 100ms"}}


@in_module_loop
async def test_a_page_of_the_proxys_own_origin_has_a_websocket(proxy: Proxy):
    """Its Origin has the port that the browser knows; a Host without one was another site."""
    async with (
        connect(
            f"wss://localhost:{proxy.port}/events/orders",
            origin=Origin(proxy.url),
            ssl=proxy.create_client_context(),
            proxy=None,
        ) as socket,
        asyncio.timeout(WAIT_TIMEOUT_S),
    ):
        assert json.loads(await socket.recv())["type"] == "begin"


@in_module_loop
@every_version
async def test_the_id_of_2000_partitions_comes_through(proxy: Proxy, http2: bool):
    async with proxy.create_http_client(http2=http2) as http:
        async with SecureEventSource(http, "/events/many") as client:
            await client.wait_for_events(1)
            mine = parse_token(client.last_event_id)
        # Offsets as those of a log that has run for long, which do not repeat.
        offsets = [10**10 + zlib.crc32(b"%d" % each) for each in range(2000)]
        places = TopicPositions("many", "", offsets, [0] * 2000)
        writer = TokenWriter("", [places], mine.issued)
        token = seal_token(writer.to_text(), mine.view_digest).decode()
        assert len(token) > 12_000
        for path, headers in (
            ("/events/many", {"Last-Event-ID": token}),
            (f"/events/many?lastEventId={token}", {}),
        ):
            async with SecureEventSource(http, path, headers=headers) as client:
                await client.wait_for_events(1)
                assert not client.is_closed
                assert parse_token(client.last_event_id).topics[0].offsets[0] == offsets[0]


@every_proxy
async def test_limits_are_by_the_clients_own_addresses(embedded, tmp_path, kind):
    """A client may claim to be somebody else; the proxy's word, its own address, decides."""
    embedded.create_topic("orders", 1)
    listen = {"limits": {"perAddress": 1}, **TRUSTING}

    def ask_from(address: str) -> httpx.AsyncClient:
        return proxy.create_http_client(local_address=address)

    async with (
        running_gateway_process(
            build_config(embedded.bootstrap, ["orders"], listen=listen)
        ) as gateway,
        running_proxy(kind, tmp_path / "proxy", gateway.port) as proxy,
        ask_from("127.0.0.2") as http,
        ask_from("127.0.0.3") as other_http,
        SecureEventSource(http, "/events/orders", headers={"X-Forwarded-For": "192.0.2.1"}) as one,
    ):
        await one.wait_for_events(1)
        again = await http.get("/events/orders", headers={"X-Forwarded-For": "192.0.2.2"})
        assert again.status_code == 429
        async with SecureEventSource(other_http, "/events/orders") as other:
            await other.wait_for_events(1)
