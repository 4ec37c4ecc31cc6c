"""More clients than may be: who is let in, what the others are told, and that they come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from support.admission import (
    BROWSER_HEADERS,
    build_client_headers,
    check_admitted,
    check_refused,
    connect_event_sources,
)
from support.brokers import embedded_kafka
from support.browser import running_browser
from support.clients.js_module import ModuleClient
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config, running_gateway
from support.in_process_gateway import running_in_process_gateway
from support.multiplex import MultiplexClient
from support.oracle import read_records
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import count_connections, find_workers, running_workers, wait_for_workers

from gateway.kafka.embedded import EmbeddedKafka

PATH = "/events/orders"
LINES = {"Accept": "application/x-ndjson"}

kafka = embedded_kafka({"orders": 1}, scope="function")


def config(kafka: EmbeddedKafka, forwarded: bool = True, **limits: int) -> dict[str, Any]:
    listen = {"limits": limits, "forwarded": forwarded}
    return build_config(kafka.bootstrap, ["orders"], listen=listen)


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_the_limits_are_those_of_all_workers_together(kafka: EmbeddedKafka):
    made = config(kafka, connections=30, perAddress=20)
    async with running_workers(made) as gateway, AsyncExitStack() as stack:
        many = await connect_event_sources(
            stack, gateway, PATH, 60 * [build_client_headers("192.0.2.1")]
        )
        held = check_admitted(many)
        assert len(held) == 20
        await check_refused(gateway, PATH, 429, **build_client_headers("192.0.2.1"))
        others = await connect_event_sources(
            stack, gateway, PATH, 20 * [build_client_headers("192.0.2.2")]
        )
        assert len(check_admitted(others)) == 10
        for headers in (
            build_client_headers("192.0.2.3"),
            build_client_headers("192.0.2.3", **LINES),
            {},
        ):
            await check_refused(gateway, PATH, 503, **headers)
        async with MultiplexClient(
            gateway.base_url, additional_headers=build_client_headers("192.0.2.3")
        ) as late:
            assert await late.wait_closed() == 1013
            (error,) = late.messages
            assert (error["type"], error["code"]) == ("error", "busy") and error["message"]
        for client in others:
            await client.stop()
        for client in held[:15]:
            await client.stop()
        left = [client for client in many if client not in held[:15]]
        await wait_until(lambda: len(check_admitted(left)) == 20, "they come back by themselves")
        assert await gateway.stop() == 0


@pytest.mark.needs("process")
async def test_what_a_killed_worker_had_is_free(kafka: EmbeddedKafka):
    made = config(kafka, connections=12)
    async with running_workers(made) as gateway, AsyncExitStack() as stack:
        every = await connect_event_sources(
            stack, gateway, PATH, 12 * [build_client_headers("192.0.2.1")]
        )
        assert len(check_admitted(every)) == 12
        number, had = max(count_connections(gateway).items(), key=lambda each: each[1])
        find_workers(gateway)[number].kill()
        await wait_until(
            lambda: sum(client.open_count for client in every) >= 12 + had, "they are back"
        )
        await wait_for_workers(gateway, start_count=4)
        while not await busy(gateway):  # until all are back, one more may come
            await wait_until(lambda: len(check_admitted(every)) == 12, "all are served")
        await check_refused(gateway, PATH, 503)


async def busy(gateway: GatewayThread) -> bool:
    async with stream(gateway.base_url, **BROWSER_HEADERS) as client:
        return client.events[0]["event"] == "end"


@asynccontextmanager
async def stream(url: str, **headers: str) -> AsyncIterator[RawClient]:
    async with RawClient(url + PATH, headers=headers) as client:
        await client.wait_for_events(1)
        yield client


async def test_what_counts_and_until_when(kafka: EmbeddedKafka):
    """A stream, a page while it waits, a socket with all of its streams, however they end."""
    async with running_in_process_gateway(config(kafka, connections=2)) as (url, app):
        limits = app.state.limits

        async def nobody() -> None:
            await wait_until(
                lambda: limits.connection_count == 0,
                lambda: f"{limits.connection_count} are counted",
            )

        async with httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S, base_url=url) as http:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while (await http.get("/health/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            for _ in range(3):  # more than may be at once
                assert (await http.get("/health/ready")).status_code == 200
                assert (await http.head(PATH)).status_code == 200
                await nobody()
                assert (await http.get(PATH + "?from=nonsense")).status_code == 400
                assert (await http.get("/events/nowhere")).status_code == 404
                assert (await http.get(PATH + "?until=latest")).status_code == 200
                await nobody()
                assert (await http.get(PATH + "?wait=1ms", headers=LINES)).status_code == 200
                await nobody()
            async with stream(url), MultiplexClient(url) as socket:
                for label in "abc":
                    await socket.subscribe(label, PATH)
                assert limits.connection_count == 2
                assert (await http.get(PATH)).status_code == 503
            await nobody()
            waiting = asyncio.create_task(http.get(PATH + "?wait=5m", headers=LINES))
            async with MultiplexClient(url, PATH) as own:
                await own.wait_for_message(None, "begin")
                await wait_until(lambda: limits.connection_count == 2)
                app.state.hubs.drain()
                assert (await waiting).status_code == 200
                assert await own.wait_closed() == 1012
            await nobody()


async def test_a_header_of_the_client_is_not_believed_unless_it_is_said(kafka: EmbeddedKafka):
    async with (
        running_gateway(config(kafka, forwarded=False, perAddress=1)) as gateway,
        stream(gateway.base_url, **build_client_headers("192.0.2.1")),
    ):
        await check_refused(gateway, PATH, 429, **build_client_headers("192.0.2.2"))


async def test_records_under_way_are_answered_before_a_draining_gateway_closes(
    kafka: EmbeddedKafka,
):
    """And what comes later is refused, to be repeated elsewhere."""
    routes = [{"when": [{"path": "/orders"}], "with": {"topic": "orders", "produce": True}}]
    async with running_gateway(build_config(kafka.bootstrap, ["orders"], routes)) as gateway:
        async with (
            MultiplexClient(gateway.base_url) as both,
            MultiplexClient(gateway.base_url, "/orders") as own,
        ):
            await own.wait_for_message(None, "begin")
            for n, socket in enumerate((both, own)):
                await socket.send_message("produce", id=f"warm-{n}", path="/orders", value=n)
                await socket.wait_for_message(f"warm-{n}", "produced")
            kafka.delay(1, 1.0)
            for socket in (both, own):
                await socket.send_message("produce", id="slow", path="/orders", value="slow")
                await socket.wait_for_pong()
            draining = asyncio.create_task(gateway.drain())
            await own.wait_for_message(None, "end")
            await both.send_message("produce", id="late", path="/orders", value="late")
            for socket in (both, own):
                assert (await socket.wait_for_message("slow", "produced"))["topic"] == "orders"
                assert await socket.wait_closed() == 1012
            late = both.get_messages("late")
            assert [each["code"] for each in late] == ["draining"]
        kafka.delay(1, 0)
        await draining


@pytest.mark.needs("node", "npm")
async def test_the_javascript_module_repeats_at_the_next_gateway_what_a_draining_one_refused(
    kafka: EmbeddedKafka,
):
    """Its page waits for the answer, and need not know."""
    routes = [{"when": [{"path": PATH}], "with": {"topic": "orders", "produce": True}}]
    async with running_gateway(build_config(kafka.bootstrap, ["orders"], routes)) as gateway:
        url = gateway.base_url + PATH
        async with ModuleClient(url, {"transport": "websocket"}) as page:
            await page.wait_until_live()
            kafka.delay(1, 1.0)
            page.call_method("produce", {"key": "first", "value": "first"})
            await wait_until(lambda: page.proxy.bytes_to_target > 0)
            draining = asyncio.create_task(gateway.drain())
            await wait_until(lambda: ("reconnecting", "drain") in page.states, page.describe_state)
            page.call_method("produce", {"key": "late", "value": "late"})
            await draining
            kafka.delay(1, 0)
            await gateway.start()
            for name in ("first", "late"):
                answer = await page.wait_for_result({"key": name, "value": name})
                assert answer["topic"] == "orders", answer
    written = await read_records(",".join(kafka.bootstrap), "orders", min_records=2)
    assert sorted(record.value or b"" for record in written) == [b"first", b"late"]


PAGE = """
    const [path] = arguments;
    window.told = [];
    const source = new EventSource(path);
    source.addEventListener("end", (event) => told.push(["end", event.data]));
    source.onerror = () => told.push(["source", source.readyState]);
    const socket = new WebSocket(location.origin.replace("http", "ws") + "/ws");
    socket.onmessage = (event) => told.push(["message", JSON.parse(event.data).code]);
    socket.onclose = (event) => told.push(["close", event.code]);
"""


@pytest.mark.needs("chromium")
async def test_a_browser_is_told_that_the_gateway_is_busy_and_comes_back(kafka: EmbeddedKafka):
    """A browser opens connections ahead: of those above the limit, as many are told as may be."""
    limit = 8
    async with (
        running_gateway(config(kafka, connections=limit)) as gateway,
        running_browser() as tab,
    ):
        async with AsyncExitStack() as stack:
            for _ in range(limit):
                await stack.enter_async_context(stream(gateway.base_url))
            await tab.open_url(f"{gateway.base_url}/health/live")
            await tab.run_script(PAGE, PATH)
            await tab.wait_for_script(
                "return ['end', 'source', 'close'].every((n) => told.some(([name]) => name === n))"
            )
            told = await tab.run_script("return told")
        assert ["end", '{"reason":"busy"}'] in told and ["source", 0] in told
        assert ["message", "busy"] in told and ["close", 1013] in told, told
        assert told.index(["message", "busy"]) < told.index(["close", 1013])
