"""Chromium in pages of other sites than the gateway: who may read, and what is preflighted."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.browser import Browser, running_browser
from support.clients.client import ReceivedEvent
from support.gateways import build_config, running_gateway
from support.oracle import StreamOracle
from support.tcp_proxy import ProxyConnection, TcpProxy

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("chromium")
Topic = Callable[..., str]

kafka = embedded_kafka()


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Topic:
    def create_topic(partitions: int = 1) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        kafka.create_topic(name, partitions)
        return name

    return create_topic


PAGE = "<!doctype html><title>another site</title>"
LISTEN = """
    const [url, credentials] = arguments;
    window.heard = []; window.state = "connecting";
    window.source = new EventSource(url, {withCredentials: credentials});
    const told = (e) => heard.push({event: e.type, id: e.lastEventId, data: e.data});
    for (const name of ["begin", "message", "ready", "position", "end"])
        source.addEventListener(name, told);
    source.onopen = () => { state = "open"; };
    source.onerror = () => { state = source.readyState === 2 ? "refused" : "cut"; };
"""
FETCH = """
    const [url, event] = arguments;
    const headers = {"Last-Event-ID": event.id, "Accept": "text/event-stream"};
    return fetch(url, {headers, credentials: "include"}).then(async (response) => {
        const {value} = await response.body.getReader().read();
        return new TextDecoder().decode(value);
    });
"""


class Recorded(TcpProxy):
    """Keeps what the browser asks."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = b""

    async def iter_requests(self, reader: Any, link: ProxyConnection) -> AsyncIterator[bytes]:
        async for piece in super().iter_requests(reader, link):
            self.asked += piece
            yield piece

    def methods(self) -> list[str]:
        heads = self.asked.decode("latin-1").split("\r\n\r\n")
        return [head.split(" ")[0] for head in heads if head]


class Site:
    """A page of some origin in the browser, and the way from there to the gateway."""

    def __init__(self, tab: Browser, way: Recorded, origin: str) -> None:
        self.tab, self.way, self.origin = tab, way, origin

    async def listen(self, path: str, credentials: bool = False) -> None:
        await self.tab.open_url(self.origin)
        await self.tab.run_script(LISTEN, f"http://{self.way.address}{path}", credentials)

    async def state(self, wanted: str) -> None:
        await self.tab.wait_for_script(f"return window.state === '{wanted}'")

    async def heard(self, messages: int) -> list[ReceivedEvent]:
        counted = "window.heard.filter(e => e.event === 'message').length"
        await self.tab.wait_for_script(f"return {counted} >= {messages}", 60)
        found: list[ReceivedEvent] = await self.tab.run_script("return window.heard")
        return found


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        page = Starlette(routes=[Route("/", lambda request: HTMLResponse(PAGE))])
        origin = await stack.enter_async_context(running_app(page))
        way = await stack.enter_async_context(Recorded())
        yield Site(await stack.enter_async_context(running_browser()), way, origin)


def config(kafka: EmbeddedKafka, name: str, **access: Any) -> Mapping[str, Any]:
    return build_config(
        kafka.bootstrap, [name], listen={"access-control": access} if access else {}
    )


async def test_a_long_id_comes_back_from_another_site_and_loses_nothing(
    kafka: EmbeddedKafka, topic: Topic, site: Site
):
    """Chromium 156 sends an EventSource's own `Last-Event-ID` without asking, however long it
    is; a script that sets it on a fetch (fetch-event-source does) is preflighted."""
    name = topic(partitions=100)
    allowed = {"origins": [site.origin], "headers": ["x-anything"], "credentials": True}
    access = config(kafka, name, policy="cross-origin", allow=allowed)
    async with (
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
        running_gateway(access) as gateway,
    ):
        site.way.set_target("127.0.0.1", gateway.port)
        await site.listen(f"/records/{name}", credentials=True)
        await site.state("open")
        await oracle.produce_records(name, 20, key=lambda n: str(n).encode())
        first = await site.heard(20)
        assert len(first[0]["id"]) > 128
        assert site.way.methods() == ["GET"]
        site.way.cut()
        await oracle.produce_records(name, 20, key=lambda n: str(n).encode())
        events = await site.heard(40)
        zero = {TopicPartition(name, number): 0 for number in range(100)}
        oracle.check_events(events, start=zero)

        site.way.asked = b""
        resumed = await site.tab.run_script(
            FETCH, f"http://{site.way.address}/records/{name}", first[-1]
        )
        assert resumed.startswith("retry: ") and "event: begin" in resumed
        assert site.way.methods() == ["OPTIONS", "GET"]
        assert b"access-control-request-headers: last-event-id" in site.way.asked.lower()


@pytest.mark.parametrize(
    "access",
    [{}, {"policy": "cross-origin", "allow": {"origins": ["https://shop.example"]}}],
    ids=["same-origin", "another"],
)
async def test_a_page_of_another_site_is_refused_unless_it_is_allowed(
    access: Mapping[str, Any], kafka: EmbeddedKafka, topic: Topic, site: Site
):
    name = topic()
    async with running_gateway(config(kafka, name, **access)) as gateway:
        site.way.set_target("127.0.0.1", gateway.port)
        await site.listen(f"/events/{name}")
        await site.state("refused")
        assert await site.tab.run_script("return window.heard") == []
        found = await site.tab.run_script(
            "return fetch(arguments[0]).then(() => 'read', e => e.name)",
            f"http://{site.way.address}/health/ready",
        )
        assert found == "TypeError"


async def test_a_page_of_any_site_is_served_where_all_are_allowed(
    kafka: EmbeddedKafka, topic: Topic, site: Site
):
    """And a script that fetches may read of an error what is wrong, and of the head what is
    exposed."""
    name = topic()
    access = config(kafka, name, policy="cross-origin", expose={"headers": ["retry-after"]})
    async with (
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
        running_gateway(access) as gateway,
    ):
        site.way.set_target("127.0.0.1", gateway.port)
        await site.listen(f"/events/{name}")
        await site.state("open")
        await oracle.produce_records(name, 3)
        assert len(await site.heard(3)) == 4
        script = "return fetch(arguments[0]).then(async r => [r.status, await r.json()])"
        for path, status in {f"/events/{name}?from=x": 400, "/nowhere": 404}.items():
            said, told = await site.tab.run_script(script, f"http://{site.way.address}{path}")
            assert (said, told["status"]) == (status, status), json.dumps(told)
