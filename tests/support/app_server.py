"""An ASGI app served in the test's own loop, on a port of the OS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from support.waiting import wait_until


@asynccontextmanager
async def running_app(app: Any, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """The app's base URL. Streams still open at the end are cut. options: of uvicorn."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_level="critical",  # it complains of every stream cut at the end
        lifespan="off",
        timeout_graceful_shutdown=0,
        **options,
    )
    server = uvicorn.Server(config)
    # Not serve(): it takes the process's signals.
    running = asyncio.create_task(server._serve())
    try:
        await wait_until(lambda: server.started or running.done(), "uvicorn")
        bound = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{bound}"
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.gather(running, return_exceptions=True)
