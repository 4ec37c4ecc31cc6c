"""Clients over TLS, as behind a proxy: EventSources by HTTP/1.1 or HTTP/2, and WebSockets.

They come back after the time that they are told, with the last position.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Self
from urllib.parse import quote

import httpx
from support.clients.client import ReceivedEvent
from support.sse import SseParser
from support.waiting import WAIT_TIMEOUT_S, wait_until
from websockets import ConnectionClosed, InvalidHandshake
from websockets.asyncio.client import connect


class SecureStream(ABC):
    """A client of one stream, to be entered.

    events:        all it got, over all connections, in its own order.
    is_open:       it has a stream that has begun.
    is_closed:     it has given up for good.
    request_times: when it asked for a stream, by the clock of the loop.
    end_times:     when a stream told it of its end.
    end_delays_s:  after how many seconds it was to come back then.
    """

    def __init__(self) -> None:
        self.events: list[ReceivedEvent] = []
        self.errors: list[str] = []
        self.is_open = False
        self.is_closed = False
        self.last_event_id = ""
        self.request_times: list[float] = []
        self.end_times: list[float] = []
        self.end_delays_s: list[float] = []
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
        state = "closed" if self.is_closed else "open" if self.is_open else "not open"
        return (
            f"{type(self).__name__} has {len(self.events)} events, last {last}, {state}, "
            f"asked {len(self.request_times)} times, errors {self.errors[-5:]}"
        )

    @abstractmethod
    async def read_stream(self) -> None:
        """Ask for a stream and read it to its end. OSError and the like if it is cut."""

    def receive_event(self, name: str, data: str) -> None:
        self.events.append(ReceivedEvent(event=name, id=self.last_event_id, data=data))
        if name == "begin":
            self.is_open = True
        elif name == "end":
            self.end_times.append(asyncio.get_running_loop().time())
            self.end_delays_s.append(self._retry_s)
            self.is_open = False

    async def _run(self) -> None:
        while not self.is_closed:
            self.request_times.append(asyncio.get_running_loop().time())
            try:
                await self.read_stream()
            except (httpx.TransportError, InvalidHandshake, ConnectionClosed, OSError) as error:
                self.errors.append(repr(error))
            except Exception as error:
                self.errors.append(repr(error))
                self.is_closed = True
            self.is_open = False
            await asyncio.sleep(self._retry_s)


class SecureEventSource(SecureStream):
    """An EventSource as WHATWG HTML 9.2 has it: `SecureEventSource(http, "/events/orders")`.

    It gives up for good on any answer but a 200 of text/event-stream. Those with the same `http`
    share a connection if that speaks HTTP/2.

    responses: the head of every answer.
    """

    def __init__(
        self, http: httpx.AsyncClient, path: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.responses: list[httpx.Response] = []
        self._http = http
        self._path = path
        self._headers = {"Accept": "text/event-stream", **(headers or {})}

    async def read_stream(self) -> None:
        try:
            await self._read_answer()
        except ValueError as error:
            # httpcore 1.0 releases a stream twice if its HTTP/2 connection ends.
            if "semaphore" not in str(error):
                raise
            raise httpx.RemoteProtocolError(str(error)) from error

    async def _read_answer(self) -> None:
        resumed = {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}
        async with self._http.stream("GET", self._path, headers=self._headers | resumed) as answer:
            self.responses.append(answer)
            media_type = answer.headers.get("content-type", "")
            if answer.status_code != 200 or not media_type.startswith("text/event-stream"):
                self.errors.append(f"status {answer.status_code}")
                self.is_closed = True
                return
            parser = SseParser(self.last_event_id)
            async for piece in answer.aiter_bytes():
                events = parser.feed(piece)
                if parser.retry_ms is not None:
                    self._retry_s = parser.retry_ms / 1000
                for event in events:
                    self.last_event_id = event.last_event_id
                    self.receive_event(event.event_type, event.data)
                self.last_event_id = parser.last_event_id


class SecureWebSocket(SecureStream):
    """A program on a WebSocket of a route's own path: `SecureWebSocket(url, context)`."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        super().__init__()
        self._url = url
        self._context = context

    async def read_stream(self) -> None:
        position = self.last_event_id
        resumed = f"?lastEventId={quote(position)}" if position else ""
        async with connect(
            self._url + resumed,
            ssl=self._context,
            proxy=None,
            open_timeout=WAIT_TIMEOUT_S,
            ping_interval=20.0,  # a connection that is dead is noticed, as programs do it
            ping_timeout=20.0,
            close_timeout=1.0,
        ) as socket:
            async for text in socket:
                message = json.loads(text)
                self.last_event_id = message.get("position") or self.last_event_id
                if message["type"] == "records":
                    for record in message["records"]:
                        self.receive_event("message", _get_text(record))
                    continue
                self._retry_s = message.get("retry", 1000 * self._retry_s) / 1000
                self.receive_event(message["type"], text if isinstance(text, str) else "")


def _get_text(record: object) -> str:
    return record if isinstance(record, str) else json.dumps(record)
