"""Follow topics by a gateway with a single route that runs in this process.

Its events are those of any other gateway, byte for byte, resume tokens included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

from gateway import config
from gateway.cli.kafka_connection import KafkaSource
from gateway.config import Settings, Topic
from gateway.config.types.substitution import find_closest
from gateway.errors import KafkaError
from gateway.web.app.app import Application, create_app

from .source import SseSource
from .target import Target

STREAM_PATH = "/stream"
LIST_TIMEOUT_S = 5.0  # for Kafka to list its topics, to suggest one
MAX_LISTED_TOPICS = 8
ROUTE_OPTIONS = {"format": "envelope", "clientFilters": True, "clientFields": True}


def build_settings(topics: Sequence[str], source: KafkaSource) -> Settings:
    kafka = source.load(topics, "tail")
    configured = tuple(kafka.find_topic(name) or Topic(name=name) for name in topics)
    route = {"path": STREAM_PATH, "topics": list(topics), **ROUTE_OPTIONS}
    document = {"name": "tail", "kafka": {"servers": "embedded", "topics": list(topics)}}
    settings = config.loads(json.dumps({**document, "routes": [route]}))
    kafka = kafka.model_copy(update={"topics": configured, "bootstrap": ()})
    return settings.model_copy(update={"kafka": kafka})


@contextlib.asynccontextmanager
async def open_in_process(target: Target, kafka: KafkaSource) -> AsyncIterator[SseSource]:
    settings = build_settings(target.topics, kafka)
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        transport = InProcessTransport(app)
        source = SseSource(
            replace(target, scheme="http", location="in-process", path=STREAM_PATH),
            headers={},
            transport=transport,
            display_name=",".join(settings.clusters[""].servers),
            suggest=partial(transport.suggest_topic, target.topics),
        )
        async with contextlib.aclosing(source):
            yield source


class InProcessTransport(httpx.AsyncBaseTransport):
    """An httpx transport to an ASGI application that delivers a response while it is sent.

    httpx's `ASGITransport` waits for the end of the response, which a stream does not have.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def suggest_topic(self, topics: Sequence[str]) -> str:
        """Return a hint for an unknown topic: a similar one of Kafka, or its first ones."""
        (cluster,) = self._app.gateway.clusters.values()
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                known = await cluster.list_topics()
        except (KafkaError, TimeoutError):
            return ""
        names = [name for name in known if not name.startswith("__")]  # the others are Kafka's own
        unknown = next((topic for topic in topics if topic not in known), None)
        if not names or unknown is None:
            return ""
        if close := find_closest(unknown, names):
            return f"; did you mean '{close}'?"
        return f"; there are {', '.join(sorted(names)[:MAX_LISTED_TOPICS])}"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        stream = _ResponseStream(self._app, _build_scope(request))
        try:
            start = await stream.next_message()
        except BaseException:
            await stream.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=stream)


class _ResponseStream(httpx.AsyncByteStream):
    """A response of the application, which runs at most one message ahead of the reader."""

    def __init__(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)
        self._task = asyncio.create_task(self._run_app(app, scope))

    async def _run_app(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        await app(scope, _receive_nothing, self._messages.put)

    async def next_message(self) -> Message:
        get = asyncio.create_task(self._messages.get())
        try:
            await asyncio.wait({get, self._task}, return_when=asyncio.FIRST_COMPLETED)
            # The last message may be in the queue when the application has ended.
            if get.done() or not self._messages.empty():
                return await get
        finally:
            get.cancel()
        failure = self._task.exception()
        raise httpx.ReadError(str(failure or "the stream ended")) from failure

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
    """Wait for ever: the request has no body, and its task is cancelled when the client leaves."""
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
