"""How the doctor asks a gateway."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.app_server import running_app

from gateway.cli.admin import AdminAddress
from gateway.cli.doctor.observation import observe_gateway
from gateway.telemetry import catalog


async def test_the_first_scrape_has_all_workers(monkeypatch: pytest.MonkeyPatch):
    """All that a worker had counted since its start was taken for growth, if it came late to the
    first scrape. And what the environment names as a proxy got the operator's token."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    scrapes = [(1, 5), (0, 500), (0, 501)]  # workers that are missing, refusals so far
    seen: list[str] = []

    async def scrape(request: Request) -> PlainTextResponse:
        seen.append(request.headers["authorization"])
        missing, refused = scrapes[len(seen) - 1]
        return PlainTextResponse(
            f"gateway_workers_missing {missing}\n"
            "# TYPE gateway_refused_requests counter\n"
            f'gateway_refused_requests_total{{status="421"}} {refused}\n'
        )

    async with running_app(Starlette(routes=[Route("/metrics", scrape)])) as url:
        headers = {"Authorization": "Bearer secret"}
        observation = await observe_gateway(AdminAddress(url), 0.01, headers)
    assert observation.growth(catalog.REFUSED_REQUESTS) == 1
    assert seen == ["Bearer secret"] * 3
