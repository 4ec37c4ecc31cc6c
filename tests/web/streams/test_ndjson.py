"""Who is answered in lines, and what the next page is asked for with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from support.gateways import build_config
from support.waiting import wait_until

from gateway.config import Settings
from gateway.core.client.terms import EndReason
from gateway.hub.fanout.page import Page
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app
from gateway.web.streams.responses import (
    MAX_LINK_TOKEN_CHARS,
    build_link_headers,
    build_next_link,
    prefers_lines,
)


def build_scope(
    query: str | bytes = "", *accept: str, path: bytes = b"/events/orders"
) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "raw_path": path,
        "path": "/events/orders",
        "query_string": query if isinstance(query, bytes) else query.encode(),
        "headers": [(b"accept", each.encode()) for each in accept],
    }


@pytest.mark.parametrize(
    ("accept", "lines"),
    [
        ([], False),
        (["*/*"], False),
        (["text/event-stream"], False),
        (["application/json"], False),
        (["text/html,application/xhtml+xml,*/*;q=0.8"], False),
        (["application/x-ndjson"], True),
        (["application/jsonl"], True),
        (["application/ndjson"], True),
        (["Application/X-NDJSON; charset=utf-8"], True),
        (["application/x-ndjson, text/event-stream"], False),
        (["application/x-ndjson, text/event-stream;q=0.9"], True),
        (["application/x-ndjson;q=0.5, text/event-stream;q=0.1"], True),
        (["application/x-ndjson;q=0.5, */*"], False),
        (["application/x-ndjson, */*"], True),
        (["application/json, text/plain, */*"], False),
        (["application/*"], True),
        (["application/x-ndjson;q=0"], False),
        (["text/event-stream;q=0, */*"], True),
        (["text/plain", "application/x-ndjson"], True),
    ],
)
def test_lines_are_for_those_who_prefer_them(accept: list[str], lines: bool):
    assert prefers_lines(Request(build_scope("", *accept))) is lines


@pytest.mark.parametrize(
    ("accept", "lines"),
    [
        ([], True),
        (["*/*"], True),
        (["text/event-stream"], False),
        (["text/event-stream, */*;q=0.1"], False),
        (["application/json"], False),
    ],
)
def test_who_waits_for_a_page_and_does_not_mind_gets_lines(accept: list[str], lines: bool):
    assert prefers_lines(Request(build_scope("wait=30s", *accept))) is lines


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("", ""),
        ("wait=30s", "wait=30s&"),
        ("from=-5m&wait=30s&positions", "from=-5m&wait=30s&positions&"),
        ("lastEventId=OLD&wait=0", "wait=0&"),
        ("wait=0&last%45ventId=OLD&&", "wait=0&"),
        ("filter=/amount>=10&wait=0", "filter=/amount%3E=10&wait=0&"),
        ("filter=%2Famount%3E%3D10&a=b+c", "filter=%2Famount%3E%3D10&a=b+c&"),
        ('x=a b"<>\r\n', "x=a%20b%22%3C%3E%0D%0A&"),
        (b"x=\xff\xe9", "x=%FF%E9&"),
    ],
)
def test_the_next_page_is_asked_for_as_this_one_was_but_from_its_end(query, kept: str):
    assert (
        build_next_link(build_scope(query), "TOKEN-_1")
        == f"/events/orders?{kept}lastEventId=TOKEN-_1"
    )


def test_the_path_is_kept_as_it_came():
    path = b"/api/events/a%20b%2Fc/%C3%BC"
    assert build_next_link(build_scope(path=path), "T") == f"{path.decode()}?lastEventId=T"
    without = {"path": "/events/a b:ü", "query_string": b""}
    assert build_next_link(without, "T") == "/events/a%20b%3A%C3%BC?lastEventId=T"


@pytest.fixture
async def app(embedded: EmbeddedKafka) -> AsyncIterator[Starlette]:
    embedded.create_topic("orders", 3)
    app = create_app(Settings.model_validate(build_config(embedded.bootstrap, ["orders"])))
    async with app.router.lifespan_context(app):
        yield app


async def test_who_goes_away_while_waiting_leaves_nothing_behind(app: Starlette):
    hub = app.gateway.hub
    left, answered = asyncio.Event(), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answered.append(message)

    async def tasks_of_an_idle_gateway() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as to:
            await to.get("/events/orders?wait=0")
        return len(asyncio.all_tasks())

    before = await tasks_of_an_idle_gateway()
    waiting = [
        asyncio.create_task(app(build_scope("wait=5m"), receive, send))  # type: ignore[arg-type]
        for _ in range(10)
    ]
    await wait_until(lambda: len(hub.clients) == 10, "ten that wait")
    left.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert not hub.clients
    assert [each for each in answered if each.get("body")] == []
    await wait_until(lambda: len(asyncio.all_tasks()) <= before, "no task is left")


def test_a_token_too_long_for_a_header_is_in_no_link():
    scope = build_scope("wait=0")
    for chars, has_link in ((MAX_LINK_TOKEN_CHARS, True), (MAX_LINK_TOKEN_CHARS + 1, False)):
        headers = build_link_headers(scope, Page(b"", b"A" * chars, EndReason.WAIT))
        assert ("Link" in headers) == has_link
