"""An EventSource over TLS, by HTTP/1.1 or HTTP/2, as WHATWG HTML 9.2 has it.

It comes back after `retry` with `Last-Event-ID`, and gives up for good on any answer but a 200 of
text/event-stream. Clients with the same `http` share a connection if they speak HTTP/2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import httpx
from support.clients.client import ReceivedEvent
from support.sse import SseParser
from support.waiting import WAIT_TIMEOUT_S, wait_until


class SecureEventSource:
    """A client of one stream: `async with SecureEventSource(http, "/events/orders") as client`.

    events:    all it got, over all connections, in its own order.
    responses: the head of every answer.
    is_closed: it has given up for good.
    """

    def __init__(
        self, http: httpx.AsyncClient, path: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self.events: list[ReceivedEvent] = []
        self.responses: list[httpx.Response] = []
        self.errors: list[str] = []
        self.is_closed = False
        self.last_event_id = ""
        self._http = http
        self._path = path
        self._headers = {"Accept": "text/event-stream", **(headers or {})}
        self._retry_s = 0.05
        self._task: asyncio.Task[None] | None = None

    @property
    def records(self) -> list[str]:
        return [event["data"] for event in self.events if event["event"] == "message"]

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait_for_events(
        self,
        enough: int | Callable[[Sequence[ReceivedEvent]], object],
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        """Until it has so many events, or the condition on its events holds."""
        met = (lambda events: len(events) >= enough) if isinstance(enough, int) else enough
        await wait_until(lambda: met(self.events), self.describe_state, timeout_s)

    def describe_state(self) -> str:
        """For messages of failure."""
        last = self.events[-1] if self.events else None
        statuses = [response.status_code for response in self.responses]
        return f"{len(self.events)} events, last {last}, {statuses}, errors {self.errors[-5:]}"

    async def _run(self) -> None:
        while not self.is_closed:
            try:
                await self._read_once()
            except httpx.TransportError as error:
                self.errors.append(repr(error))
            await asyncio.sleep(self._retry_s)

    async def _read_once(self) -> None:
        resumed = {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}
        async with self._http.stream("GET", self._path, headers=self._headers | resumed) as answer:
            self.responses.append(answer)
            media_type = answer.headers.get("content-type", "")
            if answer.status_code != 200 or not media_type.startswith("text/event-stream"):
                self.is_closed = True
                return
            parser = SseParser(self.last_event_id)
            async for piece in answer.aiter_bytes():
                for event in parser.feed(piece):
                    self.events.append(
                        ReceivedEvent(
                            event=event.event_type, id=event.last_event_id, data=event.data
                        )
                    )
                self.last_event_id = parser.last_event_id
                if parser.retry_ms is not None:
                    self._retry_s = parser.retry_ms / 1000
