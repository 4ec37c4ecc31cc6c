"""What an application that is asked by a guard is told: the method and the path of each request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.multiplex import MultiplexClient

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"docs": 1, "requests": 1, "replies": 1})

READER = {"Authorization": "Bearer reader"}
ADMIN = {"Authorization": "Bearer admin"}


class Application:
    """Lets whoever it knows read, and only the administrator write."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = Request(scope).headers
        who = headers["authorization"].removeprefix("Bearer ")
        method = headers["x-forwarded-method"]
        self.asked.append((method, headers["x-forwarded-uri"]))
        may = method in ("GET", "HEAD") or who == "admin"
        answer = JSONResponse({"identity": who}) if may else Response(status_code=403)
        await answer(scope, receive, send)


@pytest.fixture
def application() -> Application:
    return Application()


@pytest_asyncio.fixture
async def url(kafka: EmbeddedKafka, application: Application) -> AsyncIterator[str]:
    guarded = {"app": []}
    routes: list[dict[str, Any]] = [
        {
            "when": [{"path": "/docs/{id}", "method": each} for each in ("PUT", "DELETE")],
            "guarded": guarded,
            "with": {"capability": "produce", "topic": "docs", "key": "${params.id}"},
        },
        {
            "when": [{"path": "/docs/{id}"}, {"path": "/old/{id}"}],
            "guarded": guarded,
            "with": {"capability": "fetch", "topic": "docs", "filters": [{"key": "${params.id}"}]},
        },
        {
            "when": [{"path": "/events"}],
            "guarded": guarded,
            "with": {"topic": "docs", "produce": True},
        },
        {
            "when": [{"path": "/ask"}],
            "guarded": guarded,
            "with": {
                "capability": "produce", "topic": "requests", "replyTo": "replies",
                "async": {"location": "/ask/${correlationId}"},
            },
        },
    ]  # fmt: skip
    async with running_app(application) as app:
        guards = {"app": {"type": "http", "url": app, "timeout": "30s", "cache": "1h"}}
        topics = ["docs", "requests", "replies"]
        config = build_config(kafka.bootstrap, topics, routes, guards=guards)
        async with running_in_process_gateway(config) as (url, _):
            yield url


async def test_who_may_read_only_writes_nothing_by_any_method(url: str, application: Application):
    """The application was told GET for PUT and DELETE, and its word for one method was taken for
    all: whoever could read a document could replace and delete it."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        assert (await http.put("/docs/a", content="1", headers=ADMIN)).status_code == 201
        assert (await http.get("/docs/a", headers=READER)).status_code == 200
        assert (await http.head("/docs/a", headers=READER)).status_code == 200
        for method in ("PUT", "DELETE"):
            refused = await http.request(method, "/docs/a", headers=READER)
            assert refused.status_code == 403, method
        assert (await http.get("/docs/a", headers=READER)).text == "1"
    methods = ["PUT", "GET", "HEAD", "PUT", "DELETE"]
    assert application.asked == [(method, "/docs/a") for method in methods], "each is remembered"


async def test_a_record_of_a_socket_is_told_by_the_method_of_its_route(
    url: str, application: Application
):
    """Who could subscribe could write, since both were told as GET."""
    async with MultiplexClient(url, additional_headers=READER) as socket:
        await socket.subscribe("a", "/events")
        for n, (path, value) in enumerate(
            [("/events", 1), ("/events", None), ("/docs/b", 1), ("/docs/b", None)]
        ):
            await socket.send_message("produce", id=f"{n}", path=path, value=value)
            assert (await socket.wait_for_message(f"{n}", "error"))["code"] == "forbidden"
    assert application.asked == [
        ("GET", "/events"), ("POST", "/events"), ("DELETE", "/events"), ("PUT", "/docs/b"),
        ("DELETE", "/docs/b"),
    ]  # fmt: skip
    async with MultiplexClient(url, additional_headers=ADMIN) as socket:
        await socket.send_message("produce", id="x", path="/docs/b", value=1)
        await socket.wait_for_message("x", "produced")


async def test_a_path_of_several_is_told_as_the_one_that_was_asked_for(
    url: str, application: Application
):
    """Of a route with two paths of equal parameters the first was told, and of a reply's address
    the path of the request that it answers."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        await http.get("/old/a", headers=READER)
        id = f"{'0' * 32}-{'0' * 16}.1"
        await http.get(f"/ask/{id}", headers=READER)
    assert application.asked == [("GET", "/old/a"), ("GET", f"/ask/{id}")]
