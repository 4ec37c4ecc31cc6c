"""Who was admitted by a configuration that is no longer is admitted again before anything comes
of it. The guard of the route of before is slow, and the reload comes while it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config, create_http_client
from support.multiplex import MultiplexClient
from support.records import RecordToSend, produce_records
from support.topic_gateway import run_gateway_sync
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1, "secret": 1})

Reload = Callable[[], Awaitable[None]]
COOKIE = {"cookie": "sid=1"}


class Door:
    """The application that a guard asks: it answers once it is open. asked: how often it was."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        Request(scope)
        await self.open.wait()
        answer = JSONResponse({"identity": "ada", "roles": ["listen"]})
        await answer(scope, receive, send)


def configuration(kafka: EmbeddedKafka, door: str, *, after: bool) -> dict[str, Any]:
    """after: /room shows, and writes, what is for whoever has the role `secret`."""
    guards = {
        "slow": {
            "type": "http", "url": door, "timeout": "60s", "cache": "0s",
            "forward": {"headers": ["cookie"]},
        },
    }  # fmt: skip
    topic, roles = ("secret", ["secret"]) if after else ("orders", ["listen"])

    def route(path: str, method: str = "GET", **with_: Any) -> dict[str, Any]:
        when = {"path": path, "method": method}
        return {"when": [when], "guarded": {"slow": roles}, "with": {"topic": topic, **with_}}

    routes = [
        route("/room", produce=True, format="envelope"),
        route("/room", "POST", capability="produce"),
        {"when": [{"path": "/hall"}], "with": {"topic": "orders", "format": "envelope"}},
        {"when": [{"path": "/all"}], "with": {"topic": "secret", "format": "envelope"}},
    ]
    return build_config(kafka.bootstrap, ["orders", "secret"], routes, guards=guards)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with run_gateway_sync(configuration(kafka, "http://127.0.0.1:9", after=False)) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def reload(kafka: EmbeddedKafka, gateway: GatewayThread) -> AsyncIterator[Reload]:
    """What takes over the other configuration while a guard is being asked."""
    door = Door()
    async with running_app(door) as url:
        await gateway.reload(configuration(kafka, url, after=False))

        async def reload() -> None:
            await wait_until(lambda: door.asked, "the guard")
            await gateway.reload(configuration(kafka, url, after=True))
            door.open.set()

        yield reload


def sitting(gateway: GatewayThread, path: str = "/ws") -> MultiplexClient:
    """A socket that the guard is asked for, by its cookie."""
    return MultiplexClient(gateway.base_url, path, additional_headers=COOKIE)


def said(socket: MultiplexClient, id: str) -> Mapping[str, Any] | None:
    return next((each for each in socket.messages if each.get("id") == id), None)


async def test_a_change_is_admitted_again(
    kafka: EmbeddedKafka, gateway: GatewayThread, reload: Reload
):
    """Granted by the guards of the old route, the stream was moved to the new one: whoever asked
    in time was shown what the new one asks another role for."""
    await produce_records(kafka.bootstrap, "secret", [RecordToSend(b"hidden", b"k")])
    async with sitting(gateway) as socket:
        await socket.subscribe("a", "/hall")
        await socket.send_message("change", id="a", path="/room?from=earliest")
        await reload()
        await socket.wait_until(lambda: any(each["type"] == "error" for each in socket.messages))
        assert [each["code"] for each in socket.messages if each["type"] == "error"] == [
            "forbidden"
        ]
        assert not any(each.get("changed") for each in socket.messages)


async def test_a_subscription_is_admitted_again(gateway: GatewayThread, reload: Reload):
    """It was shown what the old route had, and no reload told it to end: it was not among the
    streams yet."""
    async with sitting(gateway) as socket:
        await socket.send_message("subscribe", id="a", path="/room")
        await reload()
        await socket.wait_until(lambda: said(socket, "a") is not None)
        answer = said(socket, "a")
        assert answer is not None and (answer["type"], answer["code"]) == ("error", "forbidden")


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_a_stream_over_http_is_admitted_again(
    gateway: GatewayThread, reload: Reload, accept: str
):
    """As a subscription."""
    async with create_http_client(gateway) as http:
        headers = {**COOKIE, "accept": accept}

        async def status() -> int:
            async with http.stream("GET", "/room", headers=headers) as answer:
                return answer.status_code

        asking = asyncio.create_task(status())
        await reload()
        assert await asking == 403


async def test_a_socket_of_a_route_is_admitted_again(gateway: GatewayThread, reload: Reload):
    """As a subscription."""

    async def opened() -> bool:
        try:
            async with sitting(gateway, "/room"):
                return True
        except Exception:
            return False

    asking = asyncio.create_task(opened())
    await reload()
    assert not await asking


async def test_what_is_written_is_admitted_again(gateway: GatewayThread, reload: Reload):
    """By HTTP and by WebSocket it went where the old route wrote, by its guards."""
    async with create_http_client(gateway) as http:
        async with sitting(gateway) as socket:
            asking = asyncio.create_task(http.post("/room", content=b"late", headers=COOKIE))
            await socket.send_message("produce", id="p", path="/room", value="late")
            await reload()
            assert (await asking).status_code == 403
            await socket.wait_until(lambda: said(socket, "p") is not None)
            answer = said(socket, "p")
            assert answer is not None and (answer["type"], answer["code"]) == ("error", "forbidden")
        lines = {"Accept": "application/x-ndjson"}
        for path in ("/hall", "/all"):
            text = (await http.get(f"{path}?from=earliest&until=latest", headers=lines)).text
            assert "late" not in [json.loads(each).get("value") for each in text.splitlines()]


async def test_a_body_that_comes_behind_the_reload_is_not_written_by_what_was_before(
    gateway: GatewayThread, reload: Reload
):
    """Its client was admitted with the head of the request, and could take its time."""
    came = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"be"
        await came.wait()
        yield b"hind"

    async with create_http_client(gateway) as http:
        asking = asyncio.create_task(http.post("/room", content=body(), headers=COOKIE))
        await reload()
        came.set()
        assert (await asking).status_code == 403
    async with RawClient(f"{gateway.base_url}/hall?from=earliest&until=latest") as client:
        await client.wait_for_events(lambda _: any(e["event"] == "end" for e in client.events))
        values = [json.loads(e["data"]).get("value") for e in client.events]
        assert "behind" not in values
