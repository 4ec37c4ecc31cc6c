"""A service behind Kafka that answers requests: as their body tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.api.events import Record
from gateway.api.gateway import Gateway

REPLY_TO, CORRELATION_ID = "zilla:reply-to", "zilla:correlation-id"


class Service:
    """Answers what comes on a topic: with the request's value, and headers that it is told.

    A request `{"hold": true}` waits until `release`; `{"silent": true}` is never answered;
    `{"headers": {...}, "body": ...}` says what the answer is.
    seen: all requests. held: those that wait.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.seen: list[Record] = []
        self.held: list[Record] = []
        self._gateway = gateway
        self._tasks: set[asyncio.Task[object]] = set()

    async def run(self, requests: AsyncIterator[Record]) -> None:
        async for request in requests:
            self.seen.append(request)
            told = _told(request)
            if told.get("hold"):
                self.held.append(request)
            elif not told.get("silent"):
                self._answer(request)

    async def release(self) -> None:
        """Answer those that wait, and return when Kafka has the answers."""
        held, self.held = self.held, []
        for request in held:
            self._answer(request)
        await asyncio.gather(*self._tasks)

    def _answer(self, request: Record) -> None:
        task = asyncio.create_task(self._reply(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, request: Record) -> None:
        told = _told(request)
        topic, id = request.header(REPLY_TO), request.header(CORRELATION_ID)
        assert topic is not None and id is not None, request
        headers = [(CORRELATION_ID, id), *_headers(told.get("headers", {}).items())]
        body = told["body"] if "body" in told else (request.value or b"").decode()
        await self._gateway.produce(topic.decode(), body, headers=headers)


def _headers(told: Iterable[tuple[str, str]]) -> Iterable[tuple[str, bytes]]:
    return [(name, text.encode("latin-1")) for name, text in told]


def _told(request: Record) -> dict[str, Any]:
    try:
        told = json.loads(request.value or b"")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


@asynccontextmanager
async def running_service(servers: Sequence[str], topic: str) -> AsyncIterator[Service]:
    """It hears all that is written to the topic from now on."""
    async with Gateway(servers=servers) as gateway:
        service = Service(gateway)
        async with gateway.subscribe(topic, start="earliest") as requests:
            running = asyncio.create_task(service.run(requests))
            try:
                yield service
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
