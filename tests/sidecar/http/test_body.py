"""Bodies of requests, and how they count in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.errors import MemoryFull
from gateway.sidecar.http.body import ParsedBodyMiddleware, read_body

OBJECTS = b"[" + b",".join([b"{}"] * 1000) + b"]"


async def test_a_body_counts_as_parsed_until_its_request_is_answered():
    """60 bodies of 1 MB took 1.5 GB while they waited for a schema, and counted as 60 MB; those of
    transactions counted as little while they waited for Kafka."""
    memory, answered = ClientMemory(limit=500_000), asyncio.Event()

    async def wait_for_kafka(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(Request(scope, receive), 1 << 20)
        await answered.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": OBJECTS, "more_body": False}

    async def send(message: Any) -> None: ...

    async def request() -> None:
        scope = {"type": "http", "headers": []}
        await ParsedBodyMiddleware(wait_for_kafka, memory)(scope, receive, send)

    first = asyncio.create_task(request())
    await wait_until(lambda: memory.by_part[HeldPart.PARSED])
    assert memory.total > 20 * len(OBJECTS)
    with pytest.raises(MemoryFull):
        await request()
    answered.set()
    await first
    assert memory.total == 0
    await request()
