"""Serve streams in two ways as people write them today.

    python -m bench.peers.by_hand_server KIND SERVERS TOPIC

each:   sse-starlette, and a consumer for each client.
shared: sse-starlette, one consumer, and a queue for each client.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from aiokafka import AIOKafkaConsumer
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

KIND, SERVERS, TOPIC = sys.argv[1:]
queues: dict[str, set[asyncio.Queue[dict[str, Any]]]] = defaultdict(set)


def build_event(record: Any) -> dict[str, Any]:
    return {"data": record.value.decode(), "id": f"{record.partition}:{record.offset}"}


async def stream_from_consumer(key: str) -> AsyncIterator[dict[str, Any]]:
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=SERVERS, auto_offset_reset="latest")
    await consumer.start()
    try:
        async for record in consumer:
            yield build_event(record)
    finally:
        await consumer.stop()


async def stream_from_queue(key: str) -> AsyncIterator[dict[str, Any]]:
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    queues[key].add(queue)
    try:
        while True:
            yield await queue.get()
    finally:
        queues[key].discard(queue)


async def stream(request: Request) -> EventSourceResponse:
    key = request.path_params["key"]
    return EventSourceResponse(
        stream_from_consumer(key) if KIND == "each" else stream_from_queue(key)
    )


async def fill_queues() -> None:
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=SERVERS, auto_offset_reset="latest")
    await consumer.start()
    async for record in consumer:
        for key in ("all", record.key.decode()) if record.key else ("all",):
            for queue in queues.get(key, ()):
                queue.put_nowait(build_event(record))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    task = asyncio.create_task(fill_queues()) if KIND == "shared" else None
    yield
    if task is not None:
        task.cancel()


app = Starlette(routes=[Route("/{key}", stream)], lifespan=lifespan)
listening_socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(f"listening on {listening_socket.getsockname()[1]}", flush=True)
config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
uvicorn.Server(config).run([listening_socket])
