"""Bodies of requests, and how they count in memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.errors import MemoryFull
from gateway.sidecar.http.requests import (
    EXPIRY_KEY,
    ParsedBodyMiddleware,
    hold_encoded,
    read_body,
    release_parsed,
    run_for_client,
)
from gateway.sidecar.http.status import StatusError

OBJECTS = b"[" + b",".join([b"{}"] * 1000) + b"]"


async def test_a_body_counts_as_parsed_until_it_is_freed_or_its_request_answered():
    """60 bodies of 1 MB took 1.5 GB while they waited for a schema, and counted as 60 MB; those of
    transactions, and what became of them, hardly counted while they waited for Kafka. Then they did
    while others had freed them, and waited for a lock."""
    memory, freed, answered = ClientMemory(limit=500_000), asyncio.Event(), asyncio.Event()

    async def wait_for_kafka(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await read_body(request, 1 << 20)
        hold_encoded(request, 30_000)
        await freed.wait()
        if scope["path"] == "/frees":
            release_parsed(request)
            assert memory.total == 30_000
            hold_encoded(request, 0)
        await answered.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": OBJECTS, "more_body": False}

    async def send(message: Any) -> None: ...

    async def request(path: str) -> None:
        scope = {"type": "http", "headers": [], "path": path}
        await ParsedBodyMiddleware(wait_for_kafka, memory)(scope, receive, send)

    async with asyncio.TaskGroup() as requests:
        requests.create_task(request("/frees"))
        await wait_until(lambda: memory.by_part[HeldPart.PARSED])
        assert memory.total > 20 * len(OBJECTS) + 30_000
        with pytest.raises(MemoryFull):
            await request("/")
        freed.set()
        await wait_until(lambda: memory.total == 0)
        requests.create_task(request("/"))
        await wait_until(lambda: memory.total > 20 * len(OBJECTS))
        answered.set()
    assert memory.total == 0


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


async def test_work_for_a_client_ends_with_its_token():
    """Dead letters were handed out, and processed, up to 300 s after the end of a token."""

    async def receive() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()

    async def wait_for_records() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        for work in (wait_for_records(), asyncio.sleep(0)):  # the other has a result too late
            request = Request({"type": "http", EXPIRY_KEY: time.time() - 1}, receive)
            with pytest.raises(StatusError, match="expired") as caught:
                await run_for_client(request, asyncio.Event(), work)
            assert caught.value.status == 401
