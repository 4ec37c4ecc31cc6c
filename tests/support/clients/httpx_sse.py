"""PyPI's httpx-sse: a program that reads until the end and decides itself to come back."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import httpx
from httpx_sse import aconnect_sse
from support.clients.client import ReceivedEvent, SseClient


class HttpxSseClient(SseClient):
    name: ClassVar[str] = "httpx-sse"
    reconnects_itself: ClassVar[bool] = False
    _read_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._read_task = asyncio.create_task(self._read_events(self.last_event_id))

    async def stop(self) -> None:
        if self._read_task is not None:
            self._read_task.cancel()
            await asyncio.gather(self._read_task, return_exceptions=True)
            self._read_task = None

    @property
    def is_ended(self) -> bool:
        return self._read_task is None or self._read_task.done()

    async def _read_events(self, last_event_id: str) -> None:
        headers = self.headers | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        timeout = httpx.Timeout(20, read=None)
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False) as http,
                aconnect_sse(http, "GET", self.url, headers=headers) as source,
            ):
                source.response.raise_for_status()
                self.open_count += 1
                async for sse in source.aiter_sse():
                    # It begins each connection without an id; a program keeps the old one.
                    kept = sse.id or last_event_id
                    self.events.append(ReceivedEvent(event=sse.event, id=kept, data=sse.data))
        except httpx.HTTPError as error:
            self.errors.append(repr(error))
