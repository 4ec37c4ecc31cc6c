"""Topics followed without a gateway in between: one with a single route, in this process.

What it says is what a gateway elsewhere would say, to the byte, resume tokens included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

from gateway import config
from gateway.cli.options import load_kafka
from gateway.config import Settings, Topic
from gateway.errors import ConfigError, GatewayError
from gateway.web.app.app import create_app

STREAM_PATH = "/stream"
ROUTE_OPTIONS = {"format": "envelope", "clientFilters": True, "clientFields": True}


def build_settings(topics: Sequence[str], servers: Sequence[str], file: Path | None) -> Settings:
    """One route of these topics. file: a configuration whose Kafka it is.

    Raises ConfigError for the file, GatewayError for the servers.
    """
    route = {"when": [{"path": STREAM_PATH}], "with": {"topics": list(topics), **ROUTE_OPTIONS}}
    text = {
        "name": "tail",
        "kafka": {"servers": list(servers), "topics": [{"name": name} for name in topics]},
        "routes": [route],
    }
    try:
        made = config.loads(json.dumps(text))
    except ConfigError as exc:
        reason = exc.problems[0].split(": ", 1)[-1]
        raise GatewayError(f"--servers {','.join(servers)}: {reason}") from None
    if file is None:
        return made
    kafka = load_kafka(file, topics)
    known = tuple(kafka.find_topic(name) or Topic(name=name) for name in topics)
    kafka = kafka.model_copy(update={"topics": known, "bootstrap": ()})
    return made.model_copy(update={"kafka": kafka})


@contextlib.asynccontextmanager
async def serve_in_process(settings: Settings) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """The way to a gateway that exists as long as the block."""
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield InProcessTransport(app)


class InProcessTransport(httpx.AsyncBaseTransport):
    """Requests to an ASGI application, whose answers come as they are made (httpx's own waits
    for their end)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = _ResponseStream(self._app, _build_scope(request))
        try:
            start = await answer.next_message()
        except BaseException:
            await answer.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=answer)


class _ResponseStream(httpx.AsyncByteStream):
    """The application runs at most one message ahead of its reader."""

    def __init__(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)
        self._task = asyncio.create_task(self._run_app(app, scope))

    async def _run_app(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        await app(scope, _receive_nothing, self._messages.put)

    async def next_message(self) -> Message:
        """Raises ReadError if the application ended, or failed, instead of a message."""
        getting = asyncio.create_task(self._messages.get())
        try:
            await asyncio.wait({getting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done() or not self._messages.empty():
                return await getting
        finally:
            getting.cancel()
        failed = self._task.exception()
        raise httpx.ReadError(str(failed or "the stream ended")) from failed

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        while True:
            message = await self.next_message()
            if body := message.get("body"):
                yield body
            if not message.get("more_body"):
                return

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _receive_nothing() -> Message:
    """It is asked whether the client is gone; then its task is cancelled."""
    return await asyncio.Future[Message]()


def _build_scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": None,
        "server": ("in-process", None),
    }
