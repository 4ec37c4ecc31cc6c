"""The gateway within an application that has routes of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from support.asgi_servers import running_hypercorn, running_uvicorn
from support.clients.raw import RawClient
from support.gateways import build_config
from support.leaks import collect_resources
from support.records import produce_records
from support.sse import parse_stream
from support.waiting import wait_until
from websockets.asyncio.client import connect

from gateway import (
    Application,
    Begin,
    Gateway,
    Record,
    RequestError,
    Settings,
    StreamEnded,
    create_app,
)
from gateway.kafka.embedded import EmbeddedKafka

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
QUERY = "?from=earliest&until=latest"
ROUNDS = 5


@pytest.fixture
def orders(embedded: EmbeddedKafka) -> EmbeddedKafka:
    """With the topic `orders`, of two partitions."""
    embedded.create_topic("orders", 2)
    return embedded


def application(kafka: EmbeddedKafka, **sections: Any) -> Application:
    config = build_config(kafka.bootstrap, ["orders"], **sections)
    return create_app(Settings.model_validate(config))


def host(gateway: Application) -> Starlette:
    """An application with a route of its own, and the gateway below /kafka."""

    async def own(request: Request) -> JSONResponse:
        return JSONResponse({"n": request.path_params["n"]})

    routes = [Route("/own/{n:int}", own), Mount("/kafka", gateway)]
    return Starlette(lifespan=gateway.lifespan, routes=routes)


def asking(url: str = "http://test", app: Any = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False) if app else None
    return httpx.AsyncClient(transport=transport, base_url=url, trust_env=False, timeout=30)


@pytest.mark.needs("fastapi")
async def test_beside_the_hosts_own_routes_nothing_of_the_host_changes(orders: EmbeddedKafka):
    from fastapi import FastAPI

    gateway = application(orders)
    app, alone = FastAPI(lifespan=gateway.lifespan), FastAPI()

    async def own(n: int) -> dict[str, int]:
        return {"n": n}

    app.get("/own/{n}")(own)
    app.mount("/kafka", gateway)
    async with app.router.lifespan_context(app), asking(app=app) as http, asking(app=alone) as bare:
        assert (await http.get("/own/7")).json() == {"n": 7}
        assert (await http.get("/own/x")).status_code == 422
        for path in ("/nowhere", "/events/orders", "/health/ready"):
            here, there = await http.get(path), await bare.get(path)
            assert (here.status_code, here.content) == (there.status_code, there.content)
        assert "/own/{n}" in (await http.get("/openapi.json")).json()["paths"]

        problem = await http.get("/kafka/nowhere")
        assert problem.status_code == 404
        assert problem.headers["content-type"] == "application/problem+json"
        assert problem.json()["instance"] == "/kafka/nowhere"
        redirect = await http.get("/kafka")
        assert redirect.headers["location"] == "http://test/kafka/"  # Starlette's way with mounts


@pytest.mark.parametrize(
    "server",
    [running_uvicorn, pytest.param(running_hypercorn, marks=pytest.mark.needs("hypercorn"))],
)
async def test_streams_of_every_wire_flow_below_the_mount(orders: EmbeddedKafka, server: Any):
    app = host(application(orders))
    async with server(app) as url, asking(url) as http:
        async with RawClient(f"{url}/kafka/records/orders") as client:
            await client.wait_for_events(1)
            await produce_records(orders.bootstrap, "orders", [b'{"n": 1}'])
            await client.wait_for_events(2)
            assert json.loads(client.events[1]["data"])["value"] == '{"n": 1}'
        lines = await http.get(
            f"/kafka/events/orders{QUERY}", headers={"Accept": "application/x-ndjson"}
        )
        assert lines.text.splitlines()[0] == '{"n": 1}'
        async with connect(
            f"{url.replace('http', 'ws')}/kafka/events/orders{QUERY}", proxy=None
        ) as ws:
            told = [json.loads(message) async for message in ws]
        assert told[0]["type"] == "begin"
        assert [r for each in told for r in each.get("records", ())] == [{"n": 1}]
        ready = await http.get("/kafka/health/ready")
        assert ready.json()["status"] == "ready"


async def test_links_lead_below_the_mount(orders: EmbeddedKafka):
    app = Starlette(routes=[Mount("/a", routes=[Mount("/b c", host(application(orders)))])])
    async with asking(app=app) as http:
        told = await http.get("/a/b%20c/kafka/")
        assert told.status_code == 200
        assert "http://test/a/b%20c/kafka/events/orders" in told.text


async def test_a_stream_below_a_mount_with_letters_that_are_encoded_is_found(orders: EmbeddedKafka):
    gateway = application(orders)
    app = Starlette(routes=[Mount("/käfka", gateway)], lifespan=gateway.lifespan)
    async with app.router.lifespan_context(app), asking(app=app) as http:
        answer = await http.get(f"/k%C3%A4fka/events/orders{QUERY}")
        assert answer.status_code == 200
        assert "event: begin" in answer.text


async def test_the_hosts_cors_is_the_gateways_too(orders: EmbeddedKafka):
    app = host(application(orders))
    app.add_middleware(CORSMiddleware, allow_origins=["https://shop.example"])
    origin = {"Origin": "https://shop.example"}
    async with app.router.lifespan_context(app), asking(app=app) as http:
        answer = await http.get(f"/kafka/events/orders{QUERY}", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        asked = origin | {"Access-Control-Request-Method": "GET"}
        assert (await http.options("/kafka/events/orders", headers=asked)).status_code == 200


async def test_the_host_says_who_may_have_a_stream(orders: EmbeddedKafka):
    async def access(route: Any, params: Any, connection: Any, token: str | None) -> None:
        assert params == {}
        if token != "sesame":
            raise RequestError(401, "Unauthorized", "log in first")

    config = Settings.model_validate(build_config(orders.bootstrap, ["orders"]))
    app = host(create_app(config, access=access))
    async with app.router.lifespan_context(app), asking(app=app) as http:
        path = f"/kafka/events/orders{QUERY}"
        assert (await http.get(path)).json()["detail"] == "log in first"
        answer = await http.get(path, headers={"Authorization": "Bearer sesame"})
        assert answer.status_code == 200


async def test_the_host_reads_with_the_clients(orders: EmbeddedKafka):
    gateway = application(orders)
    app = host(gateway)
    async with running_uvicorn(app) as url, RawClient(f"{url}/kafka/events/orders") as client:
        await client.wait_for_events(1)
        async with gateway.gateway.subscribe("orders") as stream:
            await produce_records(orders.bootstrap, "orders", [b"1"])
            assert (await anext(stream)).value == b"1"
            await client.wait_for_events(2)
            assert len(gateway.gateway.hub.shared_reads.fetcher.partition_fetches) == 2


async def test_a_position_of_a_program_is_an_id_of_a_browser_and_the_other_way_round(
    orders: EmbeddedKafka,
):
    gateway = application(orders)
    app = host(gateway)
    numbers = [b"%d" % n for n in range(10)]
    async with app.router.lifespan_context(app), asking(app=app) as http:
        await produce_records(orders.bootstrap, "orders", numbers)
        stream = gateway.gateway.subscribe("orders", start="earliest")
        records = [await anext(stream) for _ in range(4)]
        read = [record.value for record in records]
        query = {"lastEventId": records[-1].position, "until": "3"}
        answer = await http.get("/kafka/records/orders", params=query)
        events = parse_stream(answer.content)
        assert "view" not in events[0].parse_json()
        read += [
            event.parse_json()["value"].encode()
            for event in events
            if event.event_type == "message"
        ]
        last = [event.last_event_id for event in events if event.event_type == "message"][-1]
        stream = gateway.gateway.subscribe("orders", position=last, until="latest")
        begin, *rest = [event async for event in stream.events()]
        assert isinstance(begin, Begin) and not begin.changed
        read += [each.value for each in rest if isinstance(each, Record)]
        assert sorted(value or b"" for value in read) == numbers


# A lifespan that somebody forgot


async def test_a_mount_without_its_lifespan_says_what_to_do(
    orders: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    app = Starlette(routes=[Mount("/kafka", application(orders))])
    async with asking(app=app) as http:
        for path in ("/kafka/events/orders", "/kafka/records/orders"):
            answer = await http.get(path)
            assert answer.status_code == 503
            assert "FastAPI(lifespan=gateway.lifespan)" in answer.json()["detail"]
        ready = await http.get("/kafka/health/ready")
        assert ready.status_code == 503
        assert "lifespan" in ready.json()["reasons"][0]
        assert (await http.get("/kafka/health/live")).status_code == 200
        assert (await http.get("/kafka/asyncapi.json")).status_code == 200
    said = [each for each in caplog.records if "lifespan" in each.getMessage()]
    assert len(said) == 1  # once, however many ask


async def test_a_websocket_of_a_mount_without_its_lifespan_is_refused(orders: EmbeddedKafka):
    app = Starlette(routes=[Mount("/kafka", application(orders))])
    async with running_uvicorn(app) as url:
        with pytest.raises(Exception, match=r"HTTP (403|503)") as refused:
            async with connect(
                f"{url.replace('http', 'ws')}/kafka/events/orders", proxy=None
            ) as ws:
                await ws.recv()
        assert refused


async def test_a_lifespan_of_the_hosts_own_runs_it_inside(orders: EmbeddedKafka):
    gateway = application(orders)
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        order.append("own")
        async with gateway.lifespan():
            order.append(f"started {gateway.gateway.hub.started}")
            yield {"of": "the host"}
        order.append(f"started {gateway.gateway.hub.started}")

    app = Starlette(lifespan=lifespan, routes=[Mount("/kafka", gateway)])
    async with running_uvicorn(app) as url, asking(url) as http:
        assert (await http.get(f"/kafka/events/orders{QUERY}")).status_code == 200
    assert order == ["own", "started True", "started False"]


def test_the_same_application_starts_again_in_another_event_loop(orders: EmbeddedKafka):
    """As in a host's own tests, whose clients have a loop each."""
    app = host(application(orders))

    async def once() -> None:
        async with app.router.lifespan_context(app), asking(app=app) as http:
            assert (await http.get("/own/1")).json() == {"n": 1}
            answer = await http.get(f"/kafka/events/orders{QUERY}")
            assert answer.text.startswith("retry: ")

    for _ in range(3):
        asyncio.run(once())


@pytest.mark.needs("fastapi")
async def test_the_application_of_the_documentation_is_one(
    orders: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with (tmp_path / "gateway.yaml").open("w") as file:
        YAML().dump(build_config(orders.bootstrap, ["orders"]), file)
    monkeypatch.chdir(tmp_path)
    (code,) = (each for each in python_blocks() if "FastAPI(" in each)
    made: dict[str, Any] = {}
    exec(code, made)
    app = made["app"]
    async with app.router.lifespan_context(app), asking(app=app) as http:
        assert (await http.get(f"/kafka/events/orders{QUERY}")).status_code == 200


def python_blocks() -> Iterator[str]:
    return iter(re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.M | re.S))


# Stopping and starting


async def test_it_is_stopped_and_started_again_with_streams_open_and_leaves_nothing(
    orders: EmbeddedKafka,
):
    app = host(application(orders))
    await with_open_streams(app)
    await wait_until(lambda: not requests(), "the end of the first round's requests")
    before = collect_resources()
    for round in range(ROUNDS):
        await with_open_streams(app if round % 2 else host(application(orders)))
    await wait_until(
        lambda: not collect_resources() - before,
        lambda: f"left behind: {collect_resources() - before}",
        30,
    )


async def with_open_streams(app: Starlette) -> None:
    """The server ends, and cuts five streams off at once: three of SSE, a WebSocket, and one of
    the host itself."""
    gateway = gateway_of(app)
    async with AsyncExitStack() as clients, AsyncExitStack() as server:
        url = await server.enter_async_context(running_uvicorn(app, timeout_graceful_shutdown=0))
        for _ in range(3):
            client = RawClient(f"{url}/kafka/events/orders", retry=600)
            await clients.enter_async_context(client)
            await client.wait_for_events(1)
        address = f"{url.replace('http', 'ws')}/kafka/events/orders"
        ws = await clients.enter_async_context(connect(address, proxy=None))
        assert json.loads(await ws.recv())["type"] == "begin"
        waiting = asyncio.create_task(anext(gateway.subscribe("orders")))
        await wait_until(lambda: len(gateway.hub.clients) == 5, "all streams")
        await server.aclose()
        with pytest.raises(StreamEnded):
            await asyncio.wait_for(waiting, 30)
        assert not gateway.hub.clients


def gateway_of(app: Starlette) -> Gateway:
    (mounted,) = (each.app for each in app.routes if isinstance(each, Mount))
    assert isinstance(mounted, Application)
    return mounted.gateway


def requests() -> bool:
    return any("run_asgi" in name for name in collect_resources().tasks)


HOST = """
from fastapi import FastAPI
from gateway import create_app, load

kafka = create_app(load("gateway.yaml"))
app = FastAPI(lifespan=kafka.lifespan)
app.mount("/kafka", kafka)
"""


@pytest.mark.needs("process", "fastapi")
async def test_a_server_that_is_told_to_end_does_not_wait_for_streams(
    orders: EmbeddedKafka, tmp_path: Path
):
    """uvicorn would, for ever; its lifespans end after its connections."""
    with (tmp_path / "gateway.yaml").open("w") as file:
        YAML().dump(build_config(orders.bootstrap, ["orders"]), file)
    (tmp_path / "shop.py").write_text(HOST)
    command = (sys.executable, "-m", "uvicorn", "shop:app", "--port", "0", "--no-use-colors")
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            said = None
            while said is None:
                line = await process.stderr.readline()
                assert line, "uvicorn ended"  # or this would go on, and never wait
                said = re.search(rb"running on (\S+)", line)
            async with RawClient(f"{said[1].decode()}/kafka/events/orders", retry=600) as client:
                await client.wait_for_events(1)
                process.send_signal(signal.SIGTERM)
                await client.wait_for_events(lambda events: events[-1]["event"] == "end")
                await process.wait()
        assert json.loads(client.events[-1]["data"]) == {"reason": "drain"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
