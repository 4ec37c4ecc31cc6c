"""`/health/front`: what it says of a request, and that it is no way around limits."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.waiting import wait_until

from gateway.web.admin.health import MAX_OPEN
from gateway.web.http.transport import GatewayProtocol

PATH = "/health/front"
AWAY = "127.0.0.1:1"


class ImpatientProtocol(GatewayProtocol):
    """Does not go on long for a client that ended its side."""

    HALF_CLOSED_TIMEOUT_S = 0.2


def parse_report(text: str) -> dict[str, Any]:
    name, data = text.splitlines()[:2]
    assert name == "event: received"
    report: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return report


async def test_it_says_how_long_headers_are_and_none_of_their_values():
    async with (
        running_in_process_gateway(build_config(AWAY)) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        headers = {"Last-Event-ID": "x" * 12_000, "Authorization": "Bearer secret"}
        answer = await http.get(PATH, headers=headers, params={"lastEventId": "secret"})
        assert answer.headers["cache-control"] == "no-store, no-transform"
        assert answer.headers["content-encoding"] == "gzip"
        assert "secret" not in answer.text
        report = parse_report(answer.text)
        assert report["headers"]["last-event-id"] == 12_000
        assert report["headers"]["authorization"] == len("Bearer secret")
        assert report["headers"]["cookie"] == 0
        assert report["query"] == len("secret")
        assert report["forwarded"] == "absent"
        assert report["coding"] == "gzip"


async def test_the_first_event_arrives_during_the_silence_and_the_drain_ends_it():
    """A check in progress must not delay the end of the gateway."""
    async with (
        running_in_process_gateway(build_config(AWAY)) as (url, app),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
        http.stream("GET", PATH, params={"silence": 100}) as answer,
        asyncio.timeout(60),
    ):
        pieces = answer.aiter_text()
        text = await anext(pieces)
        assert parse_report(text)
        app.gateway.hubs.drain()
        assert "".join([piece async for piece in pieces]) == ""


async def test_a_client_that_is_gone_before_its_first_byte_leaves_its_place():
    """Its response never began, so that its end released nothing: after 20, all checks got 503."""

    async def send(message: Any) -> None:
        raise OSError("gone")

    config = build_config(AWAY, listen={"limits": {"perAddress": 1}})
    async with running_in_process_gateway(config) as (_, app):
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "method": "GET",
            "http_version": "1.1", "scheme": "http", "path": PATH, "raw_path": PATH.encode(),
            "root_path": "", "query_string": b"", "headers": [], "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 80),
        }  # fmt: skip
        with suppress(Exception):
            await app(scope, asyncio.Event().wait, send)
        assert app.state.limits.connection_count == 0


async def test_it_counts_towards_the_limits_as_a_stream_does():
    config = build_config(AWAY, listen={"limits": {"perAddress": 1}})
    async with (
        running_in_process_gateway(config, ImpatientProtocol) as (url, app),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
    ):
        async with http.stream("GET", PATH, params={"silence": 100}) as answer:
            assert answer.status_code == 200
            assert (await http.get(PATH)).status_code == 429
        await wait_until(lambda: app.state.limits.connection_count == 0, "the slot")
        assert (await http.get(PATH)).status_code == 200


async def test_it_leaves_places_for_clients_who_say_who_they_are():
    """Anybody could take all of `listen.limits.connections` with it."""
    async with (
        running_in_process_gateway(build_config(AWAY), ImpatientProtocol) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
    ):
        async with AsyncExitStack() as stack:
            for _ in range(MAX_OPEN):
                answer = await stack.enter_async_context(
                    http.stream("GET", PATH, params={"silence": 100})
                )
                assert answer.status_code == 200
            assert (await http.get(PATH)).status_code == 503
        async with asyncio.timeout(60):
            while (await http.get(PATH)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_silence_that_is_no_time_is_refused():
    async with (
        running_in_process_gateway(build_config(AWAY)) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        for silence in ("long", "-1", "nan", "1e9"):
            answer = await http.get(PATH, params={"silence": silence})
            assert answer.status_code == 400, silence


async def test_it_can_be_turned_off():
    async with (
        running_in_process_gateway(build_config(AWAY, listen={"probe": False})) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        assert (await http.get(PATH)).status_code == 404
