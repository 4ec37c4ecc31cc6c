"""Each route says which other sites may read it: by HTTP, by WebSocket, and in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.browser import running_browser
from support.gateways import GatewayThread, build_config, create_http_client, running_gateway
from support.multiplex import MultiplexClient
from support.stream_attempts import AttemptOptions, attempt_stream
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

SHOP, BANK, EVIL = "https://shop.example", "https://bank.example", "https://evil.example"
FOR = {"/shop": SHOP, "/bank": BANK, "/any": "*", "/own": None, "/as-all": SHOP}


PAGES = ("/", "/health/live", "/asyncapi.json", "/nowhere")

kafka = embedded_kafka({"orders": 1})


def allow(*origins: str, **more: Any) -> dict[str, Any]:
    allow = {"origins": list(origins), **more} if origins else {}
    return {"access-control": {"policy": "cross-origin", **({"allow": allow} if allow else {})}}


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    """Pages, and routes that say nothing of it, are for SHOP."""
    own: dict[str, dict[str, Any]] = {
        "/shop": allow(SHOP),
        "/bank": allow(BANK, credentials=True),
        "/any": allow(),
        "/own": {"access-control": {"policy": "same-origin"}},
        "/as-all": {},
    }
    routes = [
        {"when": [{"path": path}], "with": {"topic": "orders"}, **access}
        for path, access in own.items()
    ]
    write = {"topic": "orders", "capability": "produce"}
    routes.append({"when": [{"path": "/bank"}], "with": write, **allow(SHOP)})
    config = build_config(kafka.bootstrap, ["orders"], routes, listen=allow(SHOP))
    with run_gateway_sync(config) as gateway:
        yield gateway


def may(path: str, origin: str) -> bool:
    return FOR.get(path, SHOP) in (origin, "*")


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        *((path, origin) for path in FOR for origin in (SHOP, BANK, EVIL)),
        *((path, origin) for path in PAGES for origin in (SHOP, EVIL)),
        *((path, "null") for path in ("/shop", "/any")),
    ],
)
async def test_answers_and_preflights_are_for_the_sites_of_their_route(
    gateway: GatewayThread, path: str, origin: str
):
    async with httpx.AsyncClient(
        base_url=gateway.base_url, trust_env=False, timeout=WAIT_TIMEOUT_S
    ) as to:
        allowed = ("*" if FOR.get(path) == "*" else origin) if may(path, origin) else None
        for query, headers in (("?until=latest", {}), ("?from=nonsense", {"Accept": "*/*"})):
            answer = await to.get(path + query, headers={"Origin": origin, **headers})
            assert answer.headers.get("access-control-allow-origin") == allowed
            if path in FOR and answer.status_code == 200:
                assert "origin" in answer.headers["vary"].lower()
            same = await to.get(path + query, headers=headers)
            assert same.status_code == answer.status_code
            assert "access-control-allow-origin" not in same.headers
        asked = {"Origin": origin, "Access-Control-Request-Method": "GET",
                 "Access-Control-Request-Headers": "last-event-id"}  # fmt: skip
        answer = await to.options(path, headers=asked)
        assert answer.headers.get("access-control-allow-origin") == allowed
        if path == "/own":  # it is not asked at all
            assert answer.status_code == 204
        else:
            assert answer.status_code == (200 if allowed else 400), answer.text


@pytest.mark.parametrize(("method", "origin"), [("GET", BANK), ("POST", SHOP)])
async def test_of_two_routes_of_one_path_it_is_that_of_the_method(
    gateway: GatewayThread, method: str, origin: str
):
    async with create_http_client(gateway) as to:
        for each in (SHOP, BANK):
            asked = {"Origin": each, "Access-Control-Request-Method": method}
            answer = await to.options("/bank", headers=asked)
            assert answer.status_code == (200 if each == origin else 400)
            headers = {"Origin": each, "Content-Type": "application/json"}
            if method == "POST":
                written = await to.post("/bank", headers=headers, json={"by": each})
                assert written.status_code == (403 if each == BANK else 201), written.text
                told = written.headers.get("access-control-allow-origin")
                assert told == (each if each == origin else None)


@pytest.mark.parametrize(
    ("path", "origin", "cookies"),
    [
        *((path, origin, False) for path in FOR for origin in (SHOP, BANK, EVIL)),
        *(("/bank", origin, True) for origin in (SHOP, BANK, EVIL)),
        ("/shop", SHOP, True),
        ("/any", BANK, True),
    ],
)
async def test_sockets_open_for_the_sites_of_their_route_and_cookies_where_it_takes_them(
    gateway: GatewayThread, path: str, origin: str, cookies: bool
):
    headers = {"Origin": origin, **({"Cookie": "session=1"} if cookies else {})}
    allowed = may(path, origin) and (not cookies or path == "/bank")
    told = await attempt_stream("socket", gateway.base_url, path, AttemptOptions(headers))
    assert told.status == (200 if allowed else 403), told.text
    anywhere = origin == BANK if cookies else True  # of /ws, for /any is for everybody
    if not anywhere:
        told = await attempt_stream("multiplex", gateway.base_url, path, AttemptOptions(headers))
        assert told.status == 403
        return
    async with MultiplexClient(gateway.base_url, additional_headers=headers) as socket:
        await socket.send_message("subscribe", id="a", path=path)
        await socket.wait_until(lambda: socket.get_messages("a"))
        first = socket.get_messages("a")[0]
        assert (first["type"] == "begin") == allowed
        if not allowed:
            assert first["code"] == "foreign-origin"
            other = "/any" if not cookies else "/bank"
            assert (await socket.subscribe("b", other))["type"] == "begin"
            await socket.send_message("change", id="b", path=path)
            assert (await socket.wait_for_message("b", "error"))["code"] == "foreign-origin"


LOOK = """
    const [base] = arguments;
    window.seen = {};
    for (const path of ["/mine", "/theirs"]) {
        const source = new EventSource(base + path);
        source.addEventListener("begin", () => { seen[path] = "open"; });
        source.onerror = () => { seen[path] = seen[path] || "refused"; };
    }
    const socket = new WebSocket(base.replace("http", "ws") + "/ws");
    socket.onopen = () => {
        for (const path of ["/mine", "/theirs"])
            socket.send(JSON.stringify({type: "subscribe", id: path, path}));
    };
    socket.onmessage = ({data}) => {
        const told = JSON.parse(data);
        seen["ws " + told.id] = told.code || told.type;
    };
    import(base + "/gateway.js").then((module) => { seen.module = typeof module.connect; });
"""


@pytest.mark.needs("chromium")
async def test_a_browser_reads_what_its_page_may_and_nothing_else(kafka: EmbeddedKafka):
    page = Starlette(routes=[Route("/", lambda request: HTMLResponse("<!doctype html>"))])
    async with running_app(page) as origin:
        routes = [
            {"when": [{"path": path}], "with": {"topic": "orders"}, **allow(each)}
            for path, each in {"/mine": origin, "/theirs": SHOP}.items()
        ]
        config = build_config(kafka.bootstrap, ["orders"], routes)
        async with running_gateway(config) as gateway, running_browser() as tab:
            await tab.open_url(origin)
            await tab.run_script(LOOK, gateway.base_url)
            await tab.wait_for_script("return Object.keys(window.seen).length === 5")
            assert await tab.run_script("return window.seen") == {
                "/mine": "open", "/theirs": "refused", "module": "function",
                "ws /mine": "begin", "ws /theirs": "foreign-origin",
            }  # fmt: skip
