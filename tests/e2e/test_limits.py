"""More clients than may be: who is let in, what the others are told, and that they come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.browser import browser
from support.clients.module import ModuleClient
from support.clients.raw import RawClient
from support.crowd import BROWSER, event_sources, let_in, of, refused
from support.gateways import Gateway, config_for, running_gateway
from support.in_process import in_process
from support.multiplex import Multiplex
from support.oracle import read_records
from support.until import until
from support.workers import clients, running_workers, serving, workers

from gateway.kafka.embedded import EmbeddedKafka

WITHIN = 60.0
PATH = "/events/orders"
LINES = {"Accept": "application/x-ndjson"}

kafka = embedded_kafka({"orders": 1}, scope="function")


def config(kafka: EmbeddedKafka, forwarded: bool = True, **limits: int) -> dict[str, Any]:
    listen = {"limits": limits, "forwarded": forwarded}
    return config_for(kafka.bootstrap, ["orders"], listen=listen)


async def test_the_limits_are_those_of_all_workers_together(kafka: EmbeddedKafka):
    made = config(kafka, connections=30, perAddress=20)
    async with running_workers(made) as gateway, AsyncExitStack() as stack:
        many = await event_sources(stack, gateway, PATH, 60 * [of("192.0.2.1")])
        held = let_in(many)
        assert len(held) == 20
        await refused(gateway, PATH, 429, **of("192.0.2.1"))
        others = await event_sources(stack, gateway, PATH, 20 * [of("192.0.2.2")])
        assert len(let_in(others)) == 10
        for headers in (of("192.0.2.3"), of("192.0.2.3", **LINES), {}):
            await refused(gateway, PATH, 503, **headers)
        async with Multiplex(gateway.base_url, additional_headers=of("192.0.2.3")) as late:
            assert await late.closed() == 1013
            (error,) = late.said
            assert (error["type"], error["code"]) == ("error", "busy") and error["message"]
        for client in others:
            await client.stop()
        for client in held[:15]:
            await client.stop()
        left = [client for client in many if client not in held[:15]]
        await until(lambda: len(let_in(left)) == 20, "they come back by themselves", WITHIN)
        assert await gateway.stop() == 0


async def test_what_a_killed_worker_had_is_free(kafka: EmbeddedKafka):
    made = config(kafka, connections=12)
    async with running_workers(made) as gateway, AsyncExitStack() as stack:
        every = await event_sources(stack, gateway, PATH, 12 * [of("192.0.2.1")])
        assert len(let_in(every)) == 12
        number, had = max(clients(gateway).items(), key=lambda each: each[1])
        workers(gateway)[number].kill()
        await until(
            lambda: sum(client.opened for client in every) >= 12 + had, "they are back", WITHIN
        )
        await serving(gateway, starts=4)
        while not await busy(gateway):  # until all are back, one more may come
            await until(lambda: len(let_in(every)) == 12, "all are served", WITHIN)
        await refused(gateway, PATH, 503)


async def busy(gateway: Gateway) -> bool:
    async with stream(gateway.base_url, **BROWSER) as client:
        return client.events[0]["event"] == "end"


@asynccontextmanager
async def stream(url: str, **headers: str) -> AsyncIterator[RawClient]:
    async with RawClient(url + PATH, headers=headers) as client:
        await client.wait(1, WITHIN)
        yield client


async def test_what_counts_and_until_when(kafka: EmbeddedKafka):
    """A stream, a page while it waits, a socket with all of its streams, however they end."""
    async with in_process(config(kafka, connections=2)) as (url, app):
        limits = app.state.limits

        async def nobody() -> None:
            await until(lambda: limits.held == 0, lambda: f"{limits.held} are counted", WITHIN)

        async with httpx.AsyncClient(trust_env=False, timeout=WITHIN, base_url=url) as http:
            async with asyncio.timeout(WITHIN):
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
            async with stream(url), Multiplex(url) as socket:
                for label in "abc":
                    await socket.subscribe(label, PATH)
                assert limits.held == 2
                assert (await http.get(PATH)).status_code == 503
            await nobody()
            waiting = asyncio.create_task(http.get(PATH + "?wait=5m", headers=LINES))
            async with Multiplex(url, PATH) as own:
                await own.next(None, "begin")
                await until(lambda: limits.held == 2)
                app.state.hubs.drain()
                assert (await waiting).status_code == 200
                assert await own.closed() == 1012
            await nobody()


async def test_a_header_of_the_client_is_not_believed_unless_it_is_said(kafka: EmbeddedKafka):
    async with (
        running_gateway(config(kafka, forwarded=False, perAddress=1)) as gateway,
        stream(gateway.base_url, **of("192.0.2.1")),
    ):
        await refused(gateway, PATH, 429, **of("192.0.2.2"))


async def test_records_under_way_are_answered_before_a_draining_gateway_closes(
    kafka: EmbeddedKafka,
):
    """And what comes later is refused, to be repeated elsewhere."""
    routes = [{"when": [{"path": "/orders"}], "with": {"topic": "orders", "produce": True}}]
    async with running_gateway(config_for(kafka.bootstrap, ["orders"], routes)) as gateway:
        async with (
            Multiplex(gateway.base_url) as both,
            Multiplex(gateway.base_url, "/orders") as own,
        ):
            await own.next(None, "begin")
            for n, socket in enumerate((both, own)):
                await socket.say("produce", id=f"warm-{n}", path="/orders", value=n)
                await socket.next(f"warm-{n}", "produced")
            kafka.delay(1, 1.0)
            for socket in (both, own):
                await socket.say("produce", id="slow", path="/orders", value="slow")
                await socket.answers()
            stopping = asyncio.create_task(gateway.stop())
            await own.next(None, "end")
            await both.say("produce", id="late", path="/orders", value="late")
            for socket in (both, own):
                assert (await socket.next("slow", "produced"))["topic"] == "orders"
                assert await socket.closed() == 1012
            late = both.of("late")
            assert [each["code"] for each in late] == ["draining"]
        kafka.delay(1, 0)
        assert await stopping == 0


@pytest.mark.needs("node", "npm")
async def test_the_javascript_module_repeats_at_the_next_gateway_what_a_draining_one_refused(
    kafka: EmbeddedKafka,
):
    """Its page waits for the answer, and need not know."""
    routes = [{"when": [{"path": PATH}], "with": {"topic": "orders", "produce": True}}]
    async with running_gateway(config_for(kafka.bootstrap, ["orders"], routes)) as gateway:
        url = gateway.base_url + PATH
        async with ModuleClient(url, {"transport": "websocket"}) as page:
            await page.live()
            kafka.delay(1, 1.0)
            page.call("produce", {"key": "first", "value": "first"})
            await until(lambda: page.network.to_target > 0)
            stopping = asyncio.create_task(gateway.stop())
            await until(lambda: ("reconnecting", "drain") in page.states, page.state, WITHIN)
            page.call("produce", {"key": "late", "value": "late"})
            assert await stopping == 0
            kafka.delay(1, 0)
            await gateway.start()
            for name in ("first", "late"):
                answer = await page.result({"key": name, "value": name})
                assert answer["topic"] == "orders", answer
    written = await read_records(",".join(kafka.bootstrap), "orders", least=2)
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
    async with running_gateway(config(kafka, connections=1)) as gateway, browser() as tab:
        async with stream(gateway.base_url):
            await tab.open(f"{gateway.base_url}/health/live")
            await tab.run(PAGE, PATH)
            await tab.until("return told.length >= 4")
            told = await tab.run("return told")
        assert ["end", '{"reason":"busy"}'] in told and ["source", 0] in told
        assert told.index(["message", "busy"]) < told.index(["close", 1013])
