"""Who asks is found out before anything else: whatever is wrong with a request of a stranger, it
is 401, and of a client without the scope 403."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.sidecars import running_sidecar

from gateway.sidecar.http.spec import METHODS, SPEC_DIRECTORY, Spec

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOWHERE = "127.0.0.1:9"  # who asks is found out without Kafka
GUARDS = {
    "users": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {
            "reader": {"token": "without kafka:w", "roles": ["kafka:r", "admin"]},
            "writer": {"token": "without kafka:r", "roles": ["kafka:w", "admin"]},
            "client": {"token": "without admin", "roles": ["kafka:r", "kafka:w"]},
            "ada": {"token": "of-ada", "roles": ["kafka:r", "kafka:w", "admin"]},
        },
    }
}
SECTIONS: dict[str, Any] = {
    "producer": {}, "consumer": {}, "reactive": {"groups": {"group": "g", "topics": ["orders"]}},
    "ksqldb": {"url": "http://127.0.0.1:1"}, "admin": {"chaos": True}, "audit": {"to": "off"},
    "deadLetter": {}, "replay": {},
}  # fmt: skip
PATHS = Spec(sorted({path.stem for path in SPEC_DIRECTORY.glob("*.yaml")} - {"base"})).document[
    "paths"
]
OPERATIONS = [
    (method.upper(), path) for path, item in PATHS.items() for method in METHODS if method in item
]
OPEN = ("/health/", "/docs", "/openapi.json")  # for anybody
GUARDED = [operation for operation in OPERATIONS if not operation[1].startswith(OPEN)]
JSON = {"content-type": "application/json"}
V2 = {"content-type": "application/vnd.kafka.json.v2+json"}
WRONG: list[dict[str, Any]] = [
    {},
    {"content": b"{", "headers": JSON},
    {"content": b"[]", "headers": JSON},
    {"content": b"x", "headers": {"content-type": "text/plain"}},
    {"content": b"{}", "headers": {**JSON, "content-encoding": "br"}},
    {"content": b"{}", "headers": V2},
    {"content": b" " * 6_000_000, "headers": JSON},
    {"content": b"{}", "headers": {**JSON, "x-correlation-id": "k" * 300}},
    {"content": b"{}", "headers": {**JSON, "accept": "image/png"}},
    {"params": {"timeout": "soon", "offset": "-1", "lastretry": "maybe"}},
]
"""Whatever is wrong with them: no JSON, another type, too large, ids and numbers that are none."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    options: Any = {**SECTIONS, "guarded": {"users": []}}
    async with running_sidecar(NOWHERE, guards=GUARDS, **options) as client:
        yield client


def replace_parameters(path: str) -> str:
    """With parameters that mean nothing."""
    return re.sub(r"\{partition\}", "x", re.sub(r"\{(?!partition)\w+\}", "nothing", path))


async def test_there_are_operations():
    assert len(GUARDED) > 45


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_an_unknown_client_gets_401_whatever_is_wrong(http, method, path):
    """`GET /replays/ID` said 404 to a stranger, and some POSTs 400: what there is, and what a
    request should look like, was told before anybody was asked who they are."""
    for asked in WRONG:
        for token in ({}, {"authorization": "Bearer of-nobody"}):
            given = {**asked, "headers": {**asked.get("headers", {}), **token}}
            answer = await http.request(method, replace_parameters(path), **given)
            assert answer.status_code == 401, (asked.get("headers"), answer.text)
            assert "Bearer" in answer.headers["www-authenticate"]
            assert len(answer.headers["x-correlation-id"]) == 36


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        (method, path, scope)
        for method, path in GUARDED
        for scope in PATHS[path][method.lower()]["security"][0]["kafka_auth"]
    ],
)
async def test_a_client_without_one_of_the_scopes_gets_403_whatever_is_wrong(
    http, method, path, scope
):
    """As for a stranger; 404 for what is not there told it what is. A replay to a back end needed
    `kafka:r` alone, though the document said `kafka:w`, too."""
    for asked in WRONG:
        wrong_ids = "x-correlation-id" in asked.get("headers", {})
        accepted = "accept" in asked.get("headers", {})
        headers = {**asked.get("headers", {}), "authorization": f"Bearer without {scope}"}
        answer = await http.request(
            method, replace_parameters(path), **{**asked, "headers": headers}
        )
        if wrong_ids or (accepted and answer.status_code == 406):
            assert answer.status_code in (400, 403, 406)
        else:
            assert answer.status_code == 403, (asked.get("headers"), answer.text)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/replays/a/b"), ("PATCH", "/replays"), ("POST", "/producers"), ("GET", "/adm/x")],
)
async def test_of_what_is_not_there_either(http: httpx.AsyncClient, method: str, path: str):
    """404 and 405 told which paths there are."""
    assert (await http.request(method, path)).status_code == 401
    ada = {"authorization": "Bearer of-ada"}
    assert (await http.request(method, path, headers=ada)).status_code in (404, 405)


@pytest.mark.parametrize(
    ("group", "token", "status"),
    [
        ("g", "without admin", 403),
        ("g.dlq", "without admin", 403),
        ("h", "without admin", 200),
        ("g", "of-ada", 200),
    ],
)
async def test_who_joins_a_group_of_the_configuration_needs_to_be_its_operator(
    http: httpx.AsyncClient, group: str, token: str, status: int
):
    """A client that may not pause a group became a member of it: its polls took records, and their
    offsets were committed, that the back end never got."""
    headers = {"authorization": f"Bearer {token}"}
    answer = await http.post(f"/consumers/{group}", json={}, headers=headers)
    assert answer.status_code == status, answer.text


async def test_the_dialect_is_answered_in_its_words(http: httpx.AsyncClient):
    answer = await http.post("/consumers/g", content=b"{}", headers=V2)
    assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)


async def test_health_and_pages_are_for_anybody(http: httpx.AsyncClient):
    for path in ("/health/liveness", "/docs", "/openapi.json"):
        assert (await http.get(path)).status_code == 200
