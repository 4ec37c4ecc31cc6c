"""A service behind Kafka that answers requests: as their body tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.tasks import running_task

from gateway.api.events import Record
from gateway.api.gateway import Gateway
from gateway.errors import BrokerUnavailable

REPLY_TO_HEADER, CORRELATION_ID_HEADER = "zilla:reply-to", "zilla:correlation-id"

GROUP = 20  # answers that are written at once
RETRY_DELAY_S = 0.2  # before an answer that Kafka did not take is written again


class ReplyService:
    """Answers what comes on a topic: with the request's value, and headers that it is told.

    A request `{"hold": true}` waits until `release`; `{"silent": true}` is never answered;
    `{"headers": {...}, "body": ...}` says what the answer is.
    seen: all requests. held: those that wait.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.requests: list[Record] = []
        self.held_requests: list[Record] = []
        self._gateway = gateway
        self._tasks: set[asyncio.Task[object]] = set()

    async def serve_requests(self, requests: AsyncIterator[Record]) -> None:
        async for request in requests:
            self.requests.append(request)
            told = _parse_instructions(request)
            if told.get("hold"):
                self.held_requests.append(request)
            elif not told.get("silent"):
                self._start_reply(request)

    async def answer_held(self) -> None:
        """Answer those that wait, and return when Kafka has the answers."""
        held, self.held_requests = self.held_requests, []
        for first in range(0, len(held), GROUP):  # Kafka refuses a thousand at once
            for request in held[first : first + GROUP]:
                self._start_reply(request)
            await asyncio.gather(*self._tasks)

    def _start_reply(self, request: Record) -> None:
        task = asyncio.create_task(self._send_reply(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_reply(self, request: Record) -> None:
        told = _parse_instructions(request)
        topic, id = request.header(REPLY_TO_HEADER), request.header(CORRELATION_ID_HEADER)
        assert topic is not None and id is not None, request
        headers = [(CORRELATION_ID_HEADER, id), *_encode_headers(told.get("headers", {}).items())]
        body = told["body"] if "body" in told else (request.value or b"").decode()
        while True:
            try:
                await self._gateway.produce(
                    topic.decode(), body, headers=headers, idempotency_key=id.decode()
                )
                return
            except BrokerUnavailable:  # on a busy machine; the message says to repeat it
                await asyncio.sleep(RETRY_DELAY_S)


def _encode_headers(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, bytes]]:
    return [(name, text.encode("latin-1")) for name, text in headers]


def _parse_instructions(request: Record) -> dict[str, Any]:
    try:
        told = json.loads(request.value or b"")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


@asynccontextmanager
async def running_service(servers: Sequence[str], topic: str) -> AsyncIterator[ReplyService]:
    """It hears all that is written to the topic from now on."""
    async with Gateway(servers=servers) as gateway:
        service = ReplyService(gateway)
        async with (
            gateway.subscribe(topic, start="earliest") as requests,
            running_task(service.serve_requests(requests)),
        ):
            yield service
