"""What the page may use of a sidecar in the same process, and with which credentials."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.cli.sidecar import create_sidecar
from gateway.config import loads
from gateway.web.app.app import create_app
from gateway.web.http.assets import CoHostedApp

ORIGIN = "http://127.0.0.1:9901"
PAGE = {"Origin": ORIGIN, "Gateway-Console": "1"}
USERS = {"eve": {"token": "token-of-eve"}, "ada": {"token": "token-of-ada", "roles": ["kafka:r"]}}
GROUP = {"group": "billing", "topics": ["orders"], "backend": {"host": "http://127.0.0.1:1"}}
SIDECAR = {"deadLetter": {}, "replay": {}, "reactive": {"groups": GROUP}}


class RecordingSidecar:
    """The sidecar as the gateway has it, with an application that answers what it was asked."""

    def __init__(self, real: CoHostedApp) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = {
            "method": request.method,
            "path": request.url.path,
            "query": dict(request.query_params),
            "headers": dict(request.headers),
            "body": (await request.body()).decode(),
        }
        await JSONResponse(asked, 201, {"WWW-Authenticate": "Basic"})(scope, receive, send)


@asynccontextmanager
async def open_admin(is_recorded: bool = True, **sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = {
        "kafka": {"servers": ["127.0.0.1:1"], "topics": [{"name": "orders"}]},
        "admin": {},
        **sections,
    }
    settings = loads(json.dumps(config), name="test")

    def create(*arguments: Any) -> Any:
        real = create_sidecar(*arguments)
        return RecordingSidecar(real) if real is not None and is_recorded else real

    app = create_app(settings, co_hosted_app_factory=create)
    transport = httpx.ASGITransport(app.admin.app)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=PAGE) as http:
        yield http


async def test_an_operation_is_passed_on_with_what_it_needs():
    async with open_admin(sidecar=SIDECAR) as http:
        asked = (await http.get("/console/dead-letters?group=billing&topic=orders")).json()
        assert (asked["method"], asked["path"]) == ("GET", "/consumers/deadLetter/active")
        assert asked["query"]["topic"] == "orders" and asked["query"]["valueFormat"] == "binary"
        # A sidecar refuses requests of pages, and names that are none of its machine.
        assert "origin" not in asked["headers"] and "cookie" not in asked["headers"]
        assert asked["headers"]["host"] == "localhost"

        path = "/console/dead-letters/retry?group=billing&topic=orders&lastretry=true"
        asked = (await http.post(path)).json()
        assert (asked["method"], asked["path"]) == ("GET", "/consumers/deadLetter/reactive")
        assert asked["query"] == {"group": "billing", "topic": "orders", "lastretry": "true"}

        body = {"group": "billing", "topic": "orders", "offsets": []}
        asked = (await http.post("/console/dead-letters/drop", json=body)).json()
        assert (asked["method"], asked["path"]) == ("POST", "/consumers/deadLetter/active/offsets")
        assert json.loads(asked["body"]) == body

        asked = (await http.delete("/console/replays/a%20b")).json()
        assert (asked["method"], asked["path"]) == ("DELETE", "/replays/a b")


async def test_only_listed_operations_and_parameters_are_passed_on():
    async with open_admin(sidecar=SIDECAR) as http:
        for method, path, status in (
            ("GET", "/console/dead-letters/retry?group=billing", 405),
            ("POST", "/console/dead-letters", 405),
            ("POST", "/console/replays", 405),
            ("GET", "/console/dead-letters?group=billing&maxRecords=9999", 400),
            ("GET", "/console/adm", 404),
        ):
            assert (await http.request(method, path)).status_code == status, path


async def test_a_challenge_does_not_reach_the_browser():
    async with open_admin(sidecar=SIDECAR) as http:
        response = await http.get("/console/replays")
        assert response.status_code == 201 and "www-authenticate" not in response.headers


async def test_the_sidecar_gets_the_token_that_is_for_it_or_else_the_operators():
    async with open_admin(sidecar=SIDECAR) as http:
        own = {"Authorization": "Bearer own"}
        asked = (await http.get("/console/replays", headers=own)).json()
        assert asked["headers"]["authorization"] == "Bearer own"
        other = {**own, "Gateway-Stream-Authorization": "Bearer other"}
        asked = (await http.get("/console/replays", headers=other)).json()
        assert asked["headers"]["authorization"] == "Bearer other"


async def test_an_operator_may_not_do_what_the_guards_of_the_sidecar_refuse():
    """Whoever may operate the gateway may not read every record."""
    sections = {
        "guards": {"users": {"type": "inline", "users": USERS}},
        "admin": {"guarded": {"users": []}},
        "sidecar": {**SIDECAR, "guarded": {"users": ["kafka:r"]}},
    }
    async with open_admin(is_recorded=False, **sections) as http:
        token = {"Authorization": "Bearer token-of-eve"}
        for path in ("/console/dead-letters?group=billing&topic=orders", "/console/replays"):
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers=token)).status_code == 403


@pytest.mark.parametrize(
    ("sections", "offered"),
    [
        ({}, (False, False)),
        ({"sidecar": {}}, (False, False)),
        ({"sidecar": {"deadLetter": {}}}, (True, False)),
        ({"sidecar": {"replay": {}}}, (False, True)),
    ],
)
async def test_the_page_offers_what_is_configured(sections: dict[str, Any], offered: Any):
    async with open_admin(**sections) as http:
        about = (await http.get("/console/about")).json()
        assert (about["sidecar"]["deadLetters"], about["sidecar"]["replays"]) == offered
        assert about["sections"]["dead-letters"] is any(offered)
        found = [
            (await http.get(path)).status_code != 404
            for path in ("/console/dead-letters?group=g&topic=t", "/console/replays")
        ]
        assert tuple(found) == offered


async def test_its_groups_and_their_topics_are_named():
    async with open_admin(sidecar=SIDECAR) as http:
        about = (await http.get("/console/about")).json()
        assert about["sidecar"]["groups"] == [{"group": "billing", "topics": ["orders"]}]
