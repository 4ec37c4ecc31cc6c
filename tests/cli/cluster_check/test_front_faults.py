"""`gateway check --cluster --front` at servers that answer what no gateway does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.app_server import running_app

from gateway.cli.cluster_check.finding import CheckProgress, FindingState
from gateway.cli.cluster_check.front import FrontAddress, check_front
from gateway.config import loads

SETTINGS = loads("kafka: {servers: [localhost:9092]}")
Send = Callable[[Any], Awaitable[None]]


def build_app(body: bytes, interval_s: float, **headers: str) -> Any:
    """Answers with a body that is repeated for ever; interval_s: between two pieces."""

    async def app(scope: Any, receive: Any, send: Send) -> None:
        pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": pairs})
        while True:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(interval_s)

    return app


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (build_app(b":\n\n", 1.0), "not with what the gateway sends"),
        (build_app(b"x" * 65536, 0.0), "not with what the gateway sends"),
        (build_app(b"plain", 0.0, content_encoding="gzip"), "and what it sends is not"),
    ],
    ids=["endless", "flood", "gzip"],
)
async def test_it_is_a_finding_and_the_check_ends(app: Any, said: str):
    """Comments that went on for ever held up the check for ever, and no gzip ended it with a
    traceback."""
    async with running_app(app) as url, asyncio.timeout(120):
        (finding,) = await check_front(FrontAddress(url), SETTINGS, CheckProgress())
        assert finding.state is FindingState.FAILS
        assert said in finding.detail
