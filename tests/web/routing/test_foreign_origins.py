"""Refused pages of other sites: what the log says, and how much of it."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from support.gateways import build_config

from gateway.config import Settings
from gateway.web.app.app import Application, create_app
from gateway.web.http.browsers import (
    MAX_LINES_PER_MINUTE,
    MAX_ORIGINS,
    REPEAT_AFTER_S,
    ForeignOriginLog,
    OriginRefusal,
    is_foreign_request,
)

PAGE = "http://127.0.0.1:26100"
OWN_ACCESS = {"policy": "cross-origin", "allow": {"origins": ["https://shop.example"]}}


def build_app(**sections: Any) -> Application:
    config = build_config(["localhost:9092"], ["a"], **sections)
    return create_app(Settings.model_validate(config))


async def request(app: Application, method: str = "GET", path: str = "/events/a", **headers: str):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.request(method, path, headers=sent)


async def open_websocket(app: Application, path: str, **headers: str) -> None:
    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        assert message["type"] != "websocket.accept"

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"gateway"), *raw], "scheme": "ws", "subprotocols": [],
        "server": ("gateway", 80), "client": ("127.0.0.1", 1), "extensions": {},
    }  # fmt: skip
    await app(scope, receive, send)


def list_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "gateway.web.http.browsers" and record.levelno == logging.WARNING
    ]


async def test_a_page_of_another_site_that_may_not_read_a_stream_is_logged_once(caplog):
    """The log had no line, whatever its level: the page got its records, and no CORS header."""
    app = build_app()
    for _ in range(3):
        await request(app, origin=PAGE, accept="text/event-stream")
    (line,) = list_lines(caplog)
    for part in (PAGE, "/events/a", "listen.access-control"):
        assert part in line


async def test_a_refused_preflight_and_a_refused_websocket_are_logged(caplog):
    app = build_app()
    await request(app, "OPTIONS", origin="http://one.example", access_control_request_method="PUT")
    await open_websocket(app, "/ws", origin="http://two.example")
    first, second = list_lines(caplog)
    assert "http://one.example" in first and "/events/a" in first
    assert "http://two.example" in second and "/ws" in second


async def test_the_line_names_the_route_whose_own_option_decides(caplog):
    route = {"when": [{"path": "/mine"}], "with": {"topic": "a"}, "access-control": OWN_ACCESS}
    app = build_app(routes=[route])
    await request(app, path="/mine", origin=PAGE)
    (line,) = list_lines(caplog)
    assert "access-control of the route /mine" in line


@pytest.mark.parametrize("sent", [{"cookie": "a=b"}, {"authorization": "Basic YTpi"}])
async def test_an_origin_that_is_listed_but_sends_credentials_needs_another_option(sent, caplog):
    app = build_app(listen={"access-control": OWN_ACCESS})
    await open_websocket(app, "/ws", origin="https://shop.example", **sent)
    (line,) = list_lines(caplog)
    assert "allow.credentials" in line


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://gateway"},
        {"origin": PAGE, "sec_fetch_site": "same-origin"},  # by a proxy that rewrites `Host`
        {"accept": "text/event-stream"},
    ],
)
async def test_pages_of_the_own_origin_and_programs_are_not_logged(headers, caplog):
    await request(build_app(), **headers)
    assert not list_lines(caplog)


async def test_an_allowed_origin_is_not_logged(caplog: pytest.LogCaptureFixture):
    app = build_app(listen={"access-control": OWN_ACCESS})
    await request(app, origin="https://shop.example")
    assert not list_lines(caplog)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("sites", "origin", "is_foreign"),
    [
        (["same-origin"], PAGE, False),
        (["cross-site"], "http://gateway", True),
        (["same-origin", "cross-site"], "http://gateway", True),
        (["none", "cross-site"], "http://gateway", True),
        (["none"], PAGE, True),
        (["none"], "http://gateway", False),
        ([], PAGE, True),
    ],
)
def test_what_a_browser_says_of_the_site_decides_if_it_says_one_thing(
    sites: list[str], origin: str, is_foreign: bool
):
    """The first of several was believed, and `none` beside the origin of another site."""
    headers = [(b"host", b"gateway"), *((b"sec-fetch-site", site.encode()) for site in sites)]
    scope = {"type": "http", "scheme": "http", "headers": headers}
    assert is_foreign_request(origin, scope) is is_foreign


def refuse(origin: str) -> OriginRefusal:
    return OriginRefusal(origin, "/events/a", "listen.access-control")


def test_an_origin_is_logged_again_after_an_hour(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    origins = ForeignOriginLog(clock)
    for _ in range(2):
        origins.report(refuse(PAGE))
        origins.report(refuse(PAGE))
        clock.now += REPEAT_AFTER_S
    assert len(list_lines(caplog)) == 2


def test_a_flood_of_origins_costs_a_few_lines_a_minute(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    origins = ForeignOriginLog(clock)
    for number in range(1000):
        origins.report(refuse(f"http://{number}.example"))
    assert len(list_lines(caplog)) == MAX_LINES_PER_MINUTE + 1
    clock.now += 60
    origins.report(refuse(PAGE))
    assert PAGE in list_lines(caplog)[-1]


def test_the_origin_logged_first_is_forgotten_first(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    origins = ForeignOriginLog(clock)
    for number in range(MAX_ORIGINS + 1):
        origins.report(refuse(f"http://{number}.example"))
        clock.now += 6
    lines = len(list_lines(caplog))
    origins.report(refuse(f"http://{MAX_ORIGINS}.example"))
    assert len(list_lines(caplog)) == lines
    origins.report(refuse("http://0.example"))
    assert len(list_lines(caplog)) == lines + 1


def test_a_line_is_bounded(caplog: pytest.LogCaptureFixture):
    ForeignOriginLog().report(OriginRefusal("http://" + "a" * 9000, "/" + "b" * 9000, "listen"))
    assert len(list_lines(caplog)[0]) < 1000
