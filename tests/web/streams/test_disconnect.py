from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from starlette.requests import Request

from gateway.background_tasks import Interrupted
from gateway.web.streams.http_stream import run_while_connected


def build_request(*messages: str) -> Request:
    """A request of which this is received, and then nothing more."""
    queue = asyncio.Queue[dict[str, Any]]()
    for kind in messages:
        queue.put_nowait({"type": kind})
    return Request({"type": "http"}, queue.get)


async def fail() -> None:
    raise ValueError("no")


async def test_work_ends_with_the_connection():
    with pytest.raises(Interrupted):
        await run_while_connected(build_request("http.disconnect"), asyncio.sleep(60))
    assert await run_while_connected(build_request(), asyncio.sleep(0, "done")) == "done"


async def test_work_that_fails_leaves_nothing_to_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            with pytest.raises(ValueError, match="no"):
                await run_while_connected(build_request(), fail())
        await asyncio.sleep(0)
        assert gc.collect() < 20
    finally:
        gc.enable()
