"""The keys of an issuer are found by its metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.access_requests import build_access_request
from support.app_server import running_app
from support.issuer import AUDIENCE, TokenIssuer, build_jwk, get_rsa_key

from gateway.config import Jwks, Jwt
from gateway.errors import GuardUnavailable, NotGranted
from gateway.web.access.external_http import ExternalHttp, ExternalHttpError, ExternalResponse
from gateway.web.access.guard import GuardContext
from gateway.web.access.jwks import (
    IssuerDiscovery,
    KeysUnavailable,
    RemoteKeySource,
    build_metadata_url,
    parse_jwks_url,
)
from gateway.web.access.jwt import JwtGuard

ISSUER = "https://login.example/realms/shop"
METADATA_URL = f"{ISSUER}/.well-known/openid-configuration"
KEYS_URL = "https://keys.example/jwks"
KEYS = {"keys": [build_jwk(get_rsa_key(), "k0")]}


class FakeInternet:
    """Answers GET requests with a JSON document by URL, and 404 to others."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {
            METADATA_URL: {"issuer": ISSUER, "jwks_uri": KEYS_URL},
            KEYS_URL: KEYS,
        }
        self.requested: list[str] = []

    async def get(
        self, url: str, headers: Any = (), *, timeout_s: float, max_body_bytes: int
    ) -> ExternalResponse:
        self.requested.append(url)
        if url not in self.documents:
            return ExternalResponse(404, b"")
        body = json.dumps(self.documents[url]).encode()
        if len(body) > max_body_bytes:
            raise ExternalHttpError("its answer is too long")
        return ExternalResponse(200, body)


class FakeClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def internet() -> FakeInternet:
    return FakeInternet()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def keys(internet: Any, clock: FakeClock) -> RemoteKeySource:
    settings = Jwks.model_validate({"refresh": "10m", "cooldown": "10s", "maxAge": "1h"})
    discovery = IssuerDiscovery(ISSUER, settings, internet, clock)
    return RemoteKeySource("login", discovery, settings, internet, clock)


async def test_the_keys_are_fetched_from_where_the_metadata_says(keys, internet):
    assert len(await keys.get_current()) == 1
    await keys.get_current()
    assert internet.requested == [METADATA_URL, KEYS_URL]


async def test_an_unknown_key_asks_for_keys_and_not_for_metadata_again(keys, internet, clock):
    known = await keys.get_current()
    clock.now += 11
    await keys.get_newer(known, "k9", "RS256")
    assert internet.requested == [METADATA_URL, KEYS_URL, KEYS_URL]


async def test_the_metadata_is_asked_for_again_once_it_is_old(keys, internet, clock):
    known = await keys.get_current()
    clock.now += 600
    await keys.get_newer(known, "k9", "RS256")
    assert internet.requested == [METADATA_URL, KEYS_URL] * 2


async def test_keys_that_have_moved_are_found_again(keys, internet, clock):
    known = await keys.get_current()
    moved = "https://keys.example/new"
    internet.documents[METADATA_URL]["jwks_uri"] = moved
    internet.documents[moved] = internet.documents.pop(KEYS_URL)
    clock.now += 11
    with pytest.raises(KeysUnavailable):
        await keys.get_newer(known, "k9", "RS256")
    clock.now += 11
    await keys.get_newer(known, "k9", "RS256")
    assert internet.requested[-2:] == [METADATA_URL, moved]


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example", "jwks_uri": KEYS_URL},
        {"issuer": f"{ISSUER}/", "jwks_uri": KEYS_URL},
        {"jwks_uri": KEYS_URL},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": 7},
        {"issuer": ISSUER, "jwks_uri": "http://keys.example/jwks"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER, "jwks_uri": "https://keys.example:99999999/jwks"},
        {"issuer": ISSUER, "jwks_uri": "https://keys.example/ jwks"},
        {"issuer": ISSUER, "jwks_uri": "https:///jwks"},
        ["issuer"],
        {"issuer": ISSUER, "jwks_uri": KEYS_URL, "padding": "x" * 70_000},
    ],
    ids=lambda each: str(each)[:50],
)
async def test_metadata_that_cannot_be_trusted_gives_no_keys(keys, internet, caplog, metadata):
    internet.documents[METADATA_URL] = metadata
    with pytest.raises(KeysUnavailable):
        await keys.get_current()
    assert internet.requested == [METADATA_URL]
    assert "guard login: no keys from its issuer" in caplog.text


async def test_an_issuer_without_metadata_is_asked_again_after_the_delay(keys, internet, clock):
    metadata = internet.documents.pop(METADATA_URL)
    for _ in range(3):
        with pytest.raises(KeysUnavailable):
            await keys.get_current()
    assert internet.requested == [METADATA_URL], "clients cannot cause a request each"
    internet.documents[METADATA_URL] = metadata
    clock.now += 11
    assert len(await keys.get_current()) == 1


async def test_a_guard_with_an_issuer_alone_admits_its_tokens():
    """It was refused, because it had no keys."""
    tokens = TokenIssuer("ES256")
    documents: dict[str, Any] = {"/keys": {"keys": tokens.jwks}}

    async def answer(request: Request) -> Response:
        document = documents.get(request.url.path)
        return JSONResponse(document, 404 if document is None else 200)

    external_http = ExternalHttp()
    async with running_app(Starlette(routes=[Route("/{path:path}", answer)])) as issuer:
        section = Jwt.model_validate({"type": "jwt", "issuer": issuer, "audience": AUDIENCE})
        guard = JwtGuard.create(section, GuardContext("login", "orders", external_http))
        request = build_access_request(token=tokens.issue_token(iss=issuer))
        with pytest.raises(GuardUnavailable):
            await guard.grant(request)
        documents["/.well-known/openid-configuration"] = {
            "issuer": issuer,
            "jwks_uri": f"{issuer}/keys",
        }
        guard = JwtGuard.create(section, GuardContext("login", "orders", external_http))
        assert (await guard.grant(request)).identity == "ada"
        with pytest.raises(NotGranted, match="another issuer"):
            await guard.grant(build_access_request(token=tokens.issue_token()))
        await external_http.close()


def test_an_issuer_of_this_machine_may_have_keys_without_tls():
    body = json.dumps({"issuer": "http://localhost:8080", "jwks_uri": "http://localhost:8080/k"})
    assert parse_jwks_url(body.encode(), "http://localhost:8080") == "http://localhost:8080/k"


def test_the_metadata_is_below_the_issuer():
    url = build_metadata_url("https://login.example/a/")
    assert url == "https://login.example/a/.well-known/openid-configuration"
