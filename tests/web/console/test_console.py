"""Who may use the console: its page is for everyone who reaches the port, its data is not."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.config import loads
from gateway.web.app.app import create_app
from gateway.web.console.console import PAGE_DIRECTORY

ORIGIN = "http://127.0.0.1:9901"
HEADER = {"Gateway-Console": "1"}
GUARDS = {"ops": {"type": "inline", "users": {"eve": {"token": "token-of-eve"}}}}
LOOKUPS = [
    "/console/about",
    "/console/events",
    "/console/groups",
    "/console/group?group=g",
    "/console/jobs",
    "/console/records?topic=orders",
    "/console/config",
    "/console/try?url=/events",
]
ACTIONS = [("DELETE", "/streams/1-x-1"), ("POST", "/revocations"), ("GET", "/streams")]


@asynccontextmanager
async def open_admin(**admin: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = {
        "kafka": {"servers": ["127.0.0.1:1"], "topics": [{"name": "orders"}]},
        "routes": [{"when": [{"path": "/events"}], "with": {"topic": "orders"}}],
        "guards": GUARDS if admin else {},
        "admin": admin,
    }
    app = create_app(loads(json.dumps(config), name="test"))
    transport = httpx.ASGITransport(app.admin.app)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as http:
        yield http


async def get_status(http: httpx.AsyncClient, method: str, path: str, **headers: str) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await http.request(method, path, headers=sent, json={"identity": "ada"})
    return response.status_code


async def test_the_page_is_served_with_a_policy_that_allows_nothing_inline():
    async with open_admin() as http:
        page = await http.get("/console")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page.text)
        for name in re.findall(r'(?:src|href)="(console/[\w.-]+)"', page.text):
            assert (await http.get(f"/{name}")).status_code == 200, name


async def test_every_module_that_a_module_imports_is_served():
    async with open_admin() as http:
        for file in PAGE_DIRECTORY.glob("*.js"):
            response = await http.get(f"/console/{file.name}")
            assert response.headers["content-type"].startswith("text/javascript")
            assert response.headers["x-content-type-options"] == "nosniff"
            for name in re.findall(r'from "\./([\w-]+\.js)"', response.text):
                assert (await http.get(f"/console/{name}")).status_code == 200, name
        assert (await http.get("/console/nothing.js")).status_code == 404
        assert (await http.get("/console/..%2f__init__.py")).status_code == 404


def test_no_module_makes_markup_of_text():
    """The page shows what clients and producers send."""
    for file in PAGE_DIRECTORY.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


async def test_the_root_leads_to_it():
    async with open_admin() as http:
        response = await http.get("/")
        assert (response.status_code, response.headers["location"]) == (307, "console")


async def test_without_a_section_admin_there_is_none():
    config = {"kafka": {"servers": ["127.0.0.1:1"], "topics": [{"name": "orders"}]}}
    app = create_app(loads(json.dumps(config), name="test"))
    assert app.console is None


async def test_its_own_page_may_act_and_says_so_by_a_header():
    async with open_admin() as http:
        for method, path in ACTIONS:
            own: Mapping[str, str] = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
            assert await get_status(http, method, path, **own) == 403, path
            assert await get_status(http, method, path, **own, **HEADER) != 403, path


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example:9901", "Host": "evil.example:9901"},
    ],
)
async def test_a_page_of_another_site_may_not_even_with_the_header(headers: dict[str, str]):
    async with open_admin() as http:
        for method, path in [*ACTIONS, *(("GET", path) for path in LOOKUPS)]:
            response = await http.request(method, path, headers={**HEADER, **headers})
            assert response.status_code == 403, path
            assert "access-control-allow-origin" not in response.headers
            # A page could send the header only if a preflight said so.
            preflight = await http.request("OPTIONS", path, headers=headers)
            assert preflight.status_code in (403, 405)
            assert "access-control-allow-headers" not in preflight.headers


async def test_with_guards_the_page_is_served_and_its_data_asks_for_a_token():
    async with open_admin(guarded={"ops": []}) as http:
        assert (await http.get("/console")).status_code == 200
        assert (await http.get("/console/console.js")).status_code == 200
        for path in (*LOOKUPS, "/streams"):
            refused = await http.get(path, headers=HEADER)
            # For Basic, a browser asks in a window of its own.
            assert refused.status_code == 401 and "Basic" not in refused.headers["www-authenticate"]
        token = {"Authorization": "Bearer token-of-eve", **HEADER}
        about = (await http.get("/console/about", headers=token)).json()
        assert about["operator"] == {"ops": "eve"} and about["routes"] == ["/events"]
