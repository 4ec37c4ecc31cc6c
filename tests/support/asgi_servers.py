"""Applications under servers that others wrote, as people run them: with their lifespan, on a
port of the OS, ended in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from support.waiting import wait_until


@asynccontextmanager
async def running_uvicorn(app: Any, **options: Any) -> AsyncIterator[str]:
    """The app's base URL; a second to end in. options: of uvicorn."""
    options = {"timeout_graceful_shutdown": 1, "lifespan": "on", **options}
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", **options))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server._serve([listening]))
        try:
            await wait_until(lambda: server.started or running.done(), "uvicorn")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(running, 30)


@asynccontextmanager
async def running_hypercorn(app: Any) -> AsyncIterator[str]:
    """The app's base URL; a second to end in."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    over = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.graceful_timeout = 1
    config.loglevel = "CRITICAL"
    running = asyncio.create_task(serve(app, config, shutdown_trigger=over.wait))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        over.set()
        await asyncio.wait_for(running, 30)
