"""Requests that the server cancels at its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.sidecar.http.middleware import DrainMiddleware


async def cancel_request(method: str, *, is_draining: bool, starts: bool = False) -> list[Any]:
    """Have a request cancelled that waits for Kafka, and return what was sent."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if starts:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    middleware = DrainMiddleware(app, lambda: is_draining)
    scope: Any = {"type": "http", "method": method, "headers": []}
    request = asyncio.create_task(middleware(scope, None, send))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    request.cancel()
    await request
    return sent


@pytest.mark.parametrize(("method", "status"), [("POST", 504), ("DELETE", 504), ("GET", 503)])
async def test_a_request_that_is_not_finished_at_the_end_is_told_so(method: str, status: int):
    """It was a bare 500 without Retry-After, while Kafka might have the records."""
    head, body = await cancel_request(method, is_draining=True)
    assert head["status"] == status
    assert dict(head["headers"])[b"retry-after"] == b"1"
    answer = json.loads(body["body"])
    assert answer["statusCode"] == status
    assert ("may have been done" in answer["description"]) == (status == 504)


@pytest.mark.parametrize("options", [{"is_draining": False}, {"is_draining": True, "starts": True}])
async def test_other_requests_are_cancelled(options: Any):
    with pytest.raises(asyncio.CancelledError):
        await cancel_request("POST", **options)
