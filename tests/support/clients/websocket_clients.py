"""Clients of WebSocket that others wrote, each on a route's own path or on `/ws`: PyPI's
`websockets`, npm's `ws`."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import repeat
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from support.clients.client import ProcessClient, ReceivedEvent, SseClient
from support.clients.node_sse import ensure_installed
from support.message_parser import MessageParser
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

StreamKind: TypeAlias = Literal["eventsource", "path", "multiplex", "ndjson"]

RECONNECT_DELAY_S = 0.05  # s, before it connects again
CLOSE_TIMEOUT_S = 1.0  # s; one that does not read never hears the answer to its close
SUBSCRIPTION_ID = "a"  # of the subscription on /ws
NORMAL_CLOSURE = 1000  # the code of an end that was asked for


class SocketClient(SseClient):
    """A client of WebSocket; a page has other streams, too. It comes back with its last position
    after every close but 1000.

    kind:   path, of the stream, or multiplex: it subscribes on /ws.
    closes: the code of every close, 1006 where none came.
    """

    stream_kind: StreamKind = "path"
    reconnects_itself: ClassVar[bool] = True

    def __init__(
        self, url: str, *, last_event_id: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(url, last_event_id=last_event_id, headers=headers)
        self.close_codes: list[int] = []
        self._parser = MessageParser(SUBSCRIPTION_ID if self.stream_kind == "multiplex" else None)

    @abstractmethod
    async def stop_reading(self) -> None:
        """Stop reading: a slow client."""

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    async def send_text(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        """Send one message: the text, so many times."""

    def apply_message(self, text: str) -> None:
        """A message came; one that is none of the protocol ends up among the errors."""
        try:
            found = self._parser.feed_message(text)
        except (AssertionError, KeyError, ValueError) as error:
            self.errors.append(repr(error))
            raise
        for each in found:
            self.events.append(
                ReceivedEvent(event=each.event_type, id=each.last_event_id, data=each.data)
            )

    def on_closed(self, code: int) -> None:
        """Its socket was closed."""
        self.close_codes.append(code)
        self.is_closed = code == NORMAL_CLOSURE

    def describe_state(self) -> str:
        return f"{super().describe_state()}, closes {self.close_codes}"


class WebsocketsClient(SocketClient):
    name: ClassVar[str] = "websockets"
    _run_task: asyncio.Task[None] | None = None
    _socket: ClientConnection | None = None

    async def start(self) -> None:
        self._is_reading = asyncio.Event()
        self._is_reading.set()
        self._run_task = asyncio.create_task(self._run_connections())

    async def stop(self) -> None:
        if self._run_task is not None:
            self._run_task.cancel()
            await asyncio.gather(self._run_task, return_exceptions=True)
            self._run_task = None

    async def stop_reading(self) -> None:
        """It has a queue of 16 messages, and stops reading the socket when that is full."""
        self._is_reading.clear()

    def resume_reading(self) -> None:
        self._is_reading.set()

    async def send_text(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        assert self._socket is not None
        whole = text * times
        await self._socket.send(whole.encode() if binary else whole)

    @property
    def last_position(self) -> str:
        return self._parser.last_event_id or self._initial_id

    def build_address(self, **query: str) -> str:
        """Where it connects, with something more in the query."""
        parts = urlsplit(self.url)._replace(scheme="ws")
        if self.stream_kind == "multiplex":
            return parts._replace(path="/ws", query="").geturl()
        both = [*parse_qsl(parts.query), *query.items()]
        return parts._replace(query=urlencode(both)).geturl()

    def _create_connect(self, **query: str) -> connect:
        return connect(
            self.build_address(**query),
            proxy=None,
            close_timeout=CLOSE_TIMEOUT_S,
            reconnect_delays=lambda: repeat(RECONNECT_DELAY_S),
        )

    async def _run_connections(self) -> None:
        async with aclosing(self._iter_sockets()) as sockets:
            async for socket in sockets:
                try:
                    await self._read_messages(socket)
                except ConnectionClosed as error:
                    self.on_closed(error.rcvd.code if error.rcvd else 1006)
                    if self.is_closed:
                        return

    async def _iter_sockets(self) -> AsyncGenerator[ClientConnection]:
        """By hand: the position is in the URL, which is another one each time."""
        while True:
            query = {"lastEventId": self.last_position} if self.last_position else {}
            try:
                async with self._create_connect(**query) as socket:
                    yield socket
            except (OSError, EOFError, InvalidHandshake) as error:
                self.errors.append(repr(error))
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def _read_messages(self, socket: ClientConnection) -> None:
        """Until ConnectionClosed."""
        self._socket = socket
        self.open_count += 1
        while True:
            await self._is_reading.wait()
            text = await socket.recv()
            assert isinstance(text, str)
            self.apply_message(text)


class WebsocketsMultiplexClient(WebsocketsClient):
    """It comes back as its documentation says: `async for websocket in connect(...)`."""

    name: ClassVar[str] = "websockets on /ws"
    stream_kind = "multiplex"

    async def _iter_sockets(self) -> AsyncGenerator[ClientConnection]:
        async for socket in self._create_connect():
            yield socket

    async def _read_messages(self, socket: ClientConnection) -> None:
        path = urlsplit(self.url)._replace(scheme="", netloc="").geturl()
        told = {"type": "subscribe", "id": SUBSCRIPTION_ID, "path": path}
        told |= {"lastEventId": self.last_position} if self.last_position else {}
        await socket.send(json.dumps(told))
        await super()._read_messages(socket)


class NpmWebSocketClient(SocketClient, ProcessClient):
    """Takes orders on its standard input."""

    name: ClassVar[str] = "npm ws"
    _buffer = b""

    async def build_command(self) -> Sequence[str]:
        place = await asyncio.to_thread(ensure_installed)
        return ["node", str(place / "socket.mjs"), self.stream_kind, self.url, self._initial_id]

    def feed_output(self, piece: bytes) -> None:
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "opened" in told:
                self.open_count += 1
            elif "closed" in told:
                self.on_closed(told["closed"])
            elif "error" in told:
                self.errors.append(told["error"])
            else:
                self.apply_message(told["message"])

    async def stop_reading(self) -> None:
        self._send_order({"do": "pause"})

    def resume_reading(self) -> None:
        self._send_order({"do": "resume"})

    async def send_text(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        self._send_order({"do": "send", "text": text, "times": times, "binary": binary})

    def _send_order(self, order: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")


class NpmWebSocketMultiplexClient(NpmWebSocketClient):
    name: ClassVar[str] = "npm ws on /ws"
    stream_kind = "multiplex"
