"""What waits for a client that has left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from gateway.sidecar.http.disconnect import run_for_client


@pytest.mark.parametrize("ends", ["left", "draining", None])
async def test_work_ends_with_the_client_or_the_sidecar_that_waits_for_it(ends: str | None):
    """Waits for dead letters went on for five minutes after their clients had gone."""
    left, draining, began = asyncio.Event(), asyncio.Event(), asyncio.Event()
    result = asyncio.get_running_loop().create_future()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def work() -> str:
        began.set()
        return await result

    request = Request({"type": "http"}, receive)
    running = asyncio.create_task(run_for_client(request, draining, work()))
    await began.wait()
    if ends is None:
        result.set_result("it")
    else:
        {"left": left, "draining": draining}[ends].set()
    assert await running == (None if ends else "it")
    assert result.cancelled() == (ends is not None)
