"""The requests that count towards `listen.limits.rate`."""

from __future__ import annotations

import httpx
import pytest
from support.gateways import build_config

from gateway.config import Settings
from gateway.web.app.app import create_app


@pytest.mark.parametrize(
    ("method", "path", "is_counted"),
    [
        ("GET", "/nowhere", True),
        ("PATCH", "/events/a", True),
        ("OPTIONS", "/nowhere", True),
        ("GET", "/asyncapi.json", True),
        ("GET", "/metrics", True),
        ("GET", "/health/live", False),
    ],
)
async def test_every_request_but_a_health_check_counts(method: str, path: str, is_counted: bool):
    """What had no route, and pages, were answered as often as a client liked."""
    config = build_config(["localhost:9092"], ["a"], listen={"limits": {"rate": "1/h"}})
    transport = httpx.ASGITransport(create_app(Settings.model_validate(config)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        first = await client.request(method, path)
        second = await client.request(method, path)
    assert first.status_code != 429
    assert (second.status_code == 429) is is_counted
