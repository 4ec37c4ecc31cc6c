"""The application under other ASGI servers than its own: the same stream, byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from io import StringIO
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from starlette.applications import Starlette
from support.asgi_servers import running_hypercorn, running_uvicorn
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import build_config
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.received import parse_events
from support.waiting import wait_until
from websockets.exceptions import InvalidStatus

from gateway.config import loads
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app
from gateway.web.http.transport import GatewayProtocol

QUERY = "?from=earliest&until=latest"
Running = Callable[[Starlette], Any]


kafka = embedded_kafka()
of_hypercorn = pytest.mark.needs("hypercorn")


@pytest.fixture
async def oracle(kafka: EmbeddedKafka) -> AsyncIterator[StreamOracle]:
    async with StreamOracle(",".join(kafka.bootstrap)) as oracle:
        yield oracle


@pytest.fixture
async def topic(kafka: EmbeddedKafka, oracle: StreamOracle) -> str:
    """One partition, for what has one order only; 50 records."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(name, 1)
    await oracle.produce_records(name, 50)
    return name


def app_for(kafka: EmbeddedKafka, topic: str) -> Starlette:
    text = StringIO()
    YAML().dump(build_config(kafka.bootstrap, [topic]), text)
    return create_app(loads(text.getvalue(), name="test"))


def own(app: Starlette) -> Any:
    return running_uvicorn(app, http=GatewayProtocol)


def h11(app: Starlette) -> Any:
    return running_uvicorn(app, http="h11")


def same(body: bytes) -> bytes:
    """Without what is drawn by lot, and the ids, which hold the time."""
    body = re.sub(rb"retry: \d+", b"retry: ?", body)
    return re.sub(rb"\nid: [\w.-]+\n", b"\nid: ?\n", body)


async def fetched(running: Running, app: Starlette, path: str) -> httpx.Response:
    async with running(app) as url, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.get(url + path)


async def test_every_server_sends_the_same_bytes(kafka: EmbeddedKafka, topic: str):
    path = f"/records/{topic}{QUERY}"
    expected = await fetched(own, app_for(kafka, topic), path)
    assert expected.content.count(b"\ndata: ") == 52
    answer = await fetched(h11, app_for(kafka, topic), path)
    alike(answer, expected)

    app = app_for(kafka, topic)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        alike(await http.get(path, timeout=60), expected)
        assert (await http.get("/nowhere")).headers["content-type"] == "application/problem+json"


@of_hypercorn
async def test_hypercorn_sends_the_same_bytes(kafka: EmbeddedKafka, topic: str):
    path = f"/records/{topic}{QUERY}"
    expected = await fetched(own, app_for(kafka, topic), path)
    alike(await fetched(running_hypercorn, app_for(kafka, topic), path), expected)


def alike(answer: httpx.Response, expected: httpx.Response) -> None:
    assert answer.status_code == 200
    assert same(answer.content) == same(expected.content)
    for name in ("content-type", "cache-control", "x-accel-buffering", "vary"):
        assert answer.headers[name] == expected.headers[name]


@pytest.mark.parametrize("running", [own, h11, pytest.param(running_hypercorn, marks=of_hypercorn)])
async def test_a_live_stream_has_no_delay_and_ends_with_its_client(
    running: Running, kafka: EmbeddedKafka, topic: str, oracle: StreamOracle
):
    app = app_for(kafka, topic)
    hub = app.gateway.hub
    async with running(app) as url:
        async with RawClient(f"{url}/records/{topic}") as client:
            await client.wait_for_events(1)
            assert len(hub.clients) == 1
            (acked,) = await oracle.produce_records(topic, 1)
            await client.wait_for_events(2)
            value = json.loads(client.events[1]["data"])["value"]
            assert value.encode() == acked.value
        await wait_until(lambda: not hub.clients, "the end of the subscription")


@pytest.mark.parametrize("running", [h11, pytest.param(running_hypercorn, marks=of_hypercorn)])
async def test_a_websocket_session_is_the_same_on_servers_that_frame_messages_themselves(
    running: Running, kafka: EmbeddedKafka, topic: str, oracle: StreamOracle
):
    app, path = app_for(kafka, topic), f"/records/{topic}"
    async with running(app) as url:
        with pytest.raises(InvalidStatus) as refused:
            await MultiplexClient(url, "/nowhere").__aenter__()
        assert refused.value.response.status_code == 404
        async with (
            MultiplexClient(url, compression="deflate") as socket,
            MultiplexClient(url, path) as own,
        ):
            await own.wait_for_message(None, "begin")
            await socket.subscribe("a", path, **{"from": "earliest"})
            await socket.subscribe("slow", path, credit=2)
            await oracle.produce_records(topic, 10)
            await socket.wait_until(
                lambda: socket.record_counts["a"] == 60 and socket.record_counts["slow"] == 2
            )
            await socket.send_message("credit", id="slow", n=3)
            begin = await socket.change("a", path=f"/events/{topic}")
            assert begin["changed"] and begin["position"]
            await socket.send("{}")
            assert (await socket.wait_for_message(None, "error"))["code"] == "unknown-type"
            await socket.wait_until(lambda: socket.record_counts["slow"] == 5)
            position = (await socket.unsubscribe("slow"))["position"]
            await socket.subscribe("again", path, lastEventId=position)
            await socket.wait_until(lambda: socket.record_counts["again"] == 5)
            await own.wait_until(lambda: own.record_counts[None] == 10)
            slow = [each for each in socket.get_events("slow") if each["event"] != "end"]
            for events in ([*slow, *socket.get_events("again")], own.get_events()):
                assert len(parse_events(events)) == 10
                oracle.check_events(events)
            app.state.hubs.drain()
            assert await own.wait_closed() == await socket.wait_closed() == 1012
            for label in ("a", "again"):
                assert (await socket.wait_for_message(label, "end"))["reason"] == "drain"
        await wait_until(lambda: not app.gateway.hub.clients, "the end of the subscriptions")


@pytest.mark.needs("curl", "hypercorn")
async def test_http2_carries_a_stream_where_the_server_speaks_it(kafka: EmbeddedKafka, topic: str):
    """Which lifts the browsers' limit of six connections to a site."""
    async with running_hypercorn(app_for(kafka, topic)) as url:
        process = await asyncio.create_subprocess_exec(
            *("curl", "-q", "-sS", "--noproxy", "*", "--http2-prior-knowledge", "-w"),
            *("%{http_version}", f"{url}/events/{topic}{QUERY}"),
            stdout=PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert out.endswith(b"\n\n2")
    assert out.count(b"\ndata: ") == 52
