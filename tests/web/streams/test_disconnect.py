from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from gateway.background_tasks import Interrupted
from gateway.config import Route
from gateway.hub.wires.sse import SseWire
from gateway.web.http.outlet import run_while_connected
from gateway.web.routing.paths import Match
from gateway.web.streams.http_stream import open_client


def build_request(*messages: str, query: bytes = b"") -> Request:
    """A request of which this is received, and then nothing more."""
    queue = asyncio.Queue[dict[str, Any]]()
    for kind in messages:
        queue.put_nowait({"type": kind})
    return Request({"type": "http", "query_string": query}, queue.get)


async def fail() -> None:
    raise ValueError("no")


async def test_work_ends_with_the_connection():
    with pytest.raises(Interrupted):
        await run_while_connected(build_request("http.disconnect"), asyncio.sleep(60))
    assert await run_while_connected(build_request(), asyncio.sleep(0, "done")) == "done"


async def test_who_leaves_while_a_start_is_looked_up_is_waited_for_no_longer():
    """Streams of clients that had left kept their places in the queue of their address."""

    async def wait_for_a_turn(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    routes: Any = SimpleNamespace(open_client=wait_for_a_turn)
    request, wire = build_request("http.disconnect", query=b"from=-5m"), SseWire()
    match = Match(Route.model_validate({"path": "/events", "topics": ["orders"]}))
    with pytest.raises(Interrupted):
        await open_client(routes, match, request, wire)


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
