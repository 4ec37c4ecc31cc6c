"""A gateway that has just started and has no free descriptor for what its first requests need."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from starlette.responses import JSONResponse
from support.app_server import running_app
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.issuer import AUDIENCE, ISSUER_NAME, TokenIssuer, get_private_key

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit(2)"),
    pytest.mark.needs("process"),
]

HEADERS = {"Authorization": "Bearer ada"}
UNTIL_NOW = "/orders?until=latest&from=earliest"


@asynccontextmanager
async def no_free_descriptor(gateway: GatewayProcess) -> AsyncIterator[None]:
    """Leave the gateway the descriptors that it has, and none that it closes meanwhile."""
    process = psutil.Process(gateway.pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))  # lower than any that can become free
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)


async def whoami(scope: object, receive: object, send: object) -> None:
    await JSONResponse({"identity": "ada"})(scope, receive, send)  # type: ignore[arg-type]


@pytest.mark.smoke
async def test_the_first_guarded_request_without_a_free_descriptor_gets_503_and_later_200() -> None:
    """It got 500: reading the certificates for the request to the application failed."""
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        async with running_app(whoami) as url:
            route = {
                "when": [{"path": "/orders"}],
                "guarded": {"shop": []},
                "with": {"topic": "orders"},
            }
            guards = {"shop": {"type": "http", "url": url, "cache": "1s", "timeout": "60s"}}
            config = build_config(kafka.bootstrap, ["orders"], [route], guards=guards)
            async with (
                running_gateway_process(config) as gateway,
                create_http_client(gateway) as http,
            ):
                assert (await http.get("/health/live")).status_code == 200  # it is connected
                async with no_free_descriptor(gateway):
                    refused = await http.get(UNTIL_NOW, headers=HEADERS)
                assert (refused.status_code, refused.json()["title"]) == (503, "Guard unavailable")
                assert int(refused.headers["retry-after"]) >= 1
                accepted = await http.get(UNTIL_NOW, headers=HEADERS)
                assert accepted.status_code == 200
                assert "Traceback" not in gateway.log


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_the_first_token_is_verified_without_a_free_descriptor(algorithm: str) -> None:
    """It got 500: what verifies a signature by ES256 was imported by the first token."""
    issuer = TokenIssuer(algorithm)
    forged = issuer.issue_token(key=get_private_key(algorithm, 1))
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        route = {"when": [{"path": "/orders"}], "guarded": {"login": []}}
        guard = {"type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": issuer.jwks}
        config = build_config(
            kafka.bootstrap,
            ["orders"],
            [route | {"with": {"topic": "orders"}}],
            guards={"login": guard},
        )
        async with running_gateway_process(config) as gateway, create_http_client(gateway) as http:
            assert (await http.get("/health/live")).status_code == 200  # it is connected
            async with no_free_descriptor(gateway):
                refused = await http.get("/orders", headers={"Authorization": f"Bearer {forged}"})
            assert refused.status_code == 401
            assert "Traceback" not in gateway.log
