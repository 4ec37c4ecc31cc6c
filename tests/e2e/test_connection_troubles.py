"""What a page and a program are told of a stream that does not come about.

The JavaScript module tried again and again without a word: a page of an origin that may not read
the stream, a gateway that does not run, a proxy that holds events back and a certificate that is
not trusted all looked like a stream that is about to begin.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse
from support.app_server import running_app
from support.browser import running_browser, running_firefox
from support.certificates import CertificateAuthority
from support.clients.js_module import ModuleClient
from support.clients.module_pages import ModulePages, serve_pages
from support.gateways import GatewayThread, build_config, build_route, running_gateway
from support.tcp_proxy import ProxyConnection, TcpProxy
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

TOPIC = "orders"
PATH = f"/events/{TOPIC}"
OPEN = {"access-control": {"policy": "cross-origin"}}
KINDS = ("auto", "websocket", "eventsource")
TRANSPORTS = pytest.mark.parametrize("transport", KINDS)
in_node = pytest.mark.needs("node", "npm")


@pytest.fixture
async def gateway(embedded: EmbeddedKafka) -> AsyncIterator[GatewayThread]:
    """A gateway whose `access-control` is the default: pages of its own origin only."""
    embedded.create_topic(TOPIC, 1)
    async with running_gateway(build_config(embedded.bootstrap, [TOPIC])) as it:
        yield it


class ClosedPort(TcpProxy):
    """A port at which nobody listens, until it is restored."""

    async def listen(self) -> int:
        port = await super().listen()
        await self.refuse()
        return port


class SilentHandshakeProxy(TcpProxy):
    """A proxy that leaves the handshake of a WebSocket unanswered, as some servers do."""

    async def iter_requests(self, reader: Any, link: ProxyConnection) -> AsyncIterator[bytes]:
        async for piece in super().iter_requests(reader, link):
            if b"upgrade: websocket" not in piece.lower():
                yield piece


class BufferingProxy(TcpProxy):
    """A proxy that knows no WebSockets, and holds back a response until it is complete."""

    async def iter_requests(self, reader: Any, link: ProxyConnection) -> AsyncIterator[bytes]:
        async for piece in super().iter_requests(reader, link):
            if b"upgrade: websocket" in piece.lower():
                link.abort_both()
                return
            yield piece

    async def iter_responses(self, reader: Any, link: ProxyConnection) -> AsyncIterator[bytes]:
        is_held = False
        async for piece in super().iter_responses(reader, link):
            is_held |= b"text/event-stream" in piece
            if not is_held:
                yield piece


# In Node


@in_node
@TRANSPORTS
async def test_a_closed_port_is_told_once_and_so_is_the_recovery(
    transport: str, gateway: GatewayThread
):
    """A Node client of a closed port printed `connecting` and hung."""
    client = ModuleClient(f"{gateway.base_url}{PATH}", {"transport": transport})
    client.proxy = ClosedPort()
    async with client:
        await wait_until(lambda: len(client.troubles) > 1, client.describe_state)
        for trouble in client.troubles:
            assert (trouble["state"], trouble["reason"]) == ("connecting", "unreachable")
            assert client.proxy.address in trouble["hint"] and "ECONNREFUSED" in trouble["hint"]
        assert [trouble["attempts"] for trouble in client.troubles[:2]] == [2, 4]
        assert len(client.warnings) == len(client.errors) == 1
        await client.proxy.restore()
        await client.wait_until_live()
        assert client.live_reasons == ["recovered"]


@in_node
async def test_after_a_cut_the_state_says_why_and_no_error_is_raised(gateway: GatewayThread):
    async with ModuleClient(f"{gateway.base_url}{PATH}") as client:
        await client.wait_until_live()
        await client.proxy.refuse()
        await wait_until(lambda: client.troubles, client.describe_state)
        assert client.troubles[0]["state"] == "reconnecting"
        assert client.troubles[0]["reason"] == "unreachable"
        assert not client.errors
        await client.proxy.restore()
        await client.wait_until_live(2)
        assert client.live_reasons == [None, "recovered"]


@in_node
async def test_a_server_that_is_no_gateway_is_told():
    """A development server answers any path with its page: a stream waited for ever."""

    async def serve_page(scope: Any, receive: Any, send: Any) -> None:
        await HTMLResponse("<!doctype html>")(scope, receive, send)

    async with (
        running_app(serve_page) as url,
        ModuleClient(f"{url}{PATH}", {"transport": "eventsource"}) as client,
    ):
        await wait_until(lambda: client.troubles, client.describe_state)
        assert client.troubles[0]["reason"] == "refused"
        assert "text/html" in client.troubles[0]["hint"]


@in_node
@pytest.mark.parametrize(("status", "advice"), [(404, "`base`"), (502, "whether the gateway runs")])
async def test_a_development_server_without_the_gateway_is_told(status: int, advice: str):
    """Vite's server answers other paths with 404, and a handshake never: for 40 s nobody was told,
    and then of `no detail`. With 502 it seemed to be another server, and is the right proxy."""

    async def serve_nothing(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("", status)(scope, receive, send)

    async with running_app(serve_nothing) as url:
        client = ModuleClient(f"{url}{PATH}", {"transport": "websocket"})
        client.proxy = SilentHandshakeProxy()
        async with client:
            await wait_until(lambda: client.troubles, client.describe_state)
            assert client.troubles[0]["reason"] == "refused"
            assert str(status) in client.troubles[0]["hint"]
            assert advice in client.troubles[0]["hint"]


@in_node
async def test_a_stream_that_only_writes_is_told_and_its_write_succeeds_later(
    embedded: EmbeddedKafka,
):
    """Its promise was pending for ever, without a word."""
    embedded.create_topic(TOPIC, 1)
    routes = [build_route(TOPIC, "value", produce=True)]
    async with running_gateway(build_config(embedded.bootstrap, [TOPIC], routes)) as gateway:
        client = ModuleClient(f"{gateway.base_url}{PATH}", {"transport": "websocket"})
        client.proxy = ClosedPort()
        async with client:
            client.call_method("close")
            record = {"key": "ada", "value": 1}
            client.call_method("produce", record)
            await wait_until(
                lambda: any(trouble["state"] == "closed" for trouble in client.troubles),
                client.describe_state,
            )
            assert client.troubles[-1]["reason"] == "unreachable"
            await client.proxy.restore()
            assert (await client.wait_for_result(record))["offset"] == 0


@in_node
async def test_a_stream_that_joins_a_trouble_is_told_at_once(gateway: GatewayThread):
    """The next attempt of the connection that streams share may be half a minute away."""
    client = ModuleClient(f"{gateway.base_url}{PATH}", {"transport": "websocket"})
    client.proxy = ClosedPort()
    async with client:
        await wait_until(lambda: client.troubles, client.describe_state)
        told = len(client.twin_troubles)
        client.call_method("twin", {"transport": "websocket"})
        await wait_until(lambda: len(client.twin_troubles) > told, client.describe_state)
        assert client.twin_troubles[0]["reason"] == "unreachable"
        assert len(client.warnings) == 1


# In browsers


@pytest.mark.needs("chromium")
async def test_a_page_of_a_foreign_origin_is_told_so(gateway: GatewayThread):
    """The page's console stayed empty, as all of it happened in the SharedWorker."""
    async with running_browser() as tab:
        for share, transport in itertools.product(("worker", False), KINDS):
            async with serve_pages(gateway.base_url) as pages:
                await tab.open_url(pages.build_url("one", PATH, share=share, transport=transport))
                check_foreign_origin(await pages.wait_for_trouble("one"), pages)
                said = [line for line in await tab.read_console() if "gateway.js: " in line]
                assert len(said) == 1 and "foreign-origin" in said[0], (share, transport)
                await wait_until(lambda: pages["one"].errors, "its error")
                assert len(pages["one"].errors) == 1
                await tab.open_url("about:blank")


def check_foreign_origin(trouble: dict[str, Any], pages: ModulePages) -> None:
    assert (trouble["state"], trouble["reason"]) == ("connecting", "foreign-origin")
    assert pages.origin in trouble["hint"] and "access-control" in trouble["hint"]


@pytest.mark.night
@pytest.mark.needs("firefox")
async def test_firefox_tells_a_foreign_origin_from_a_dead_address(gateway: GatewayThread):
    async with ClosedPort() as dead, serve_pages(gateway.base_url) as pages:
        urls = []
        for share in ("worker", False):
            urls.append(pages.build_url(f"foreign{share}", PATH, share=share))
            base = f"http://{dead.address}"
            urls.append(pages.build_url(f"dead{share}", PATH, share=share, base=base))
        async with running_firefox(*urls):
            for share in ("worker", False):
                check_foreign_origin(await pages.wait_for_trouble(f"foreign{share}"), pages)
                trouble = await pages.wait_for_trouble(f"dead{share}")
                assert trouble["reason"] == "unreachable"


@pytest.mark.needs("chromium")
async def test_a_dead_address_is_told_and_so_is_its_recovery(embedded: EmbeddedKafka):
    embedded.create_topic(TOPIC, 1)
    config = build_config(embedded.bootstrap, [TOPIC], listen=OPEN)
    async with (
        running_gateway(config) as gateway,
        ClosedPort("127.0.0.1", gateway.port) as proxy,
        serve_pages(f"http://{proxy.address}") as pages,
        running_browser() as tab,
    ):
        await tab.open_url(pages.build_url("one", PATH))
        trouble = await pages.wait_for_trouble("one")
        assert trouble["reason"] == "unreachable" and proxy.address in trouble["hint"]
        await proxy.restore()
        await pages.wait_until_live("one")
        assert pages["one"].reasons[-1] == "recovered"


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("transport", ["auto", "eventsource"])
async def test_a_proxy_that_buffers_is_told(transport: str, embedded: EmbeddedKafka):
    embedded.create_topic(TOPIC, 1)
    config = build_config(embedded.bootstrap, [TOPIC], listen=OPEN)
    async with (
        running_gateway(config) as gateway,
        BufferingProxy("127.0.0.1", gateway.port) as proxy,
        serve_pages(f"http://{proxy.address}") as pages,
        running_browser() as tab,
    ):
        await tab.open_url(pages.build_url("one", PATH, transport=transport))
        trouble = await pages.wait_for_trouble("one")
        assert trouble["reason"] == "proxy-buffering", trouble


@pytest.mark.night
@pytest.mark.needs("chromium", "firefox")
async def test_a_certificate_that_is_not_trusted_is_hinted_at(
    embedded: EmbeddedKafka, tmp_path: Path
):
    """A script cannot tell it from a dead address; the hint names what shows it."""
    embedded.create_topic(TOPIC, 1)
    certificate = CertificateAuthority(tmp_path).issue_certificate("gateway")
    listen = {"tls": {"certificate": str(certificate), "key": str(certificate)}, **OPEN}
    async with (
        running_gateway(
            build_config(embedded.bootstrap, [TOPIC], listen=listen), ready=False
        ) as it,
        serve_pages(f"https://127.0.0.1:{it.port}") as pages,
        running_browser() as tab,
        running_firefox(pages.build_url("firefox", PATH)),
    ):
        await tab.open_url(pages.build_url("chromium", PATH))
        for name in ("chromium", "firefox"):
            trouble = await pages.wait_for_trouble(name)
            assert trouble["reason"] == "unreachable"
            assert "in a tab" in trouble["hint"] and "certificate" in trouble["hint"]
