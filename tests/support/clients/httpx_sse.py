"""PyPI's httpx-sse: a program that reads until the end and decides itself to come back."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import httpx
from httpx_sse import aconnect_sse
from support.clients.client import Event, SseClient


class HttpxSseClient(SseClient):
    name: ClassVar[str] = "httpx-sse"
    reconnects: ClassVar[bool] = False
    _reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._reading = asyncio.create_task(self._read(self.last_event_id))

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    @property
    def ended(self) -> bool:
        return self._reading is None or self._reading.done()

    async def _read(self, last_event_id: str) -> None:
        headers = self.headers | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        timeout = httpx.Timeout(20, read=None)
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False) as http,
                aconnect_sse(http, "GET", self.url, headers=headers) as source,
            ):
                source.response.raise_for_status()
                self.opened += 1
                async for sse in source.aiter_sse():
                    # It begins each connection without an id; a program keeps the old one.
                    kept = sse.id or last_event_id
                    self.events.append(Event(event=sse.event, id=kept, data=sse.data))
        except httpx.HTTPError as error:
            self.errors.append(repr(error))
