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

from support.clients.client import Event, ProcessClient, SseClient
from support.clients.node_sse import installed
from support.messages import MessageParser
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

Kind: TypeAlias = Literal["eventsource", "path", "multiplex", "ndjson"]

PAUSE = 0.05  # s, before it connects again
CLOSING = 1.0  # s; one that does not read never hears the answer to its close
LABEL = "a"  # of the subscription on /ws
ENDED = 1000  # the code of an end that was asked for


class SocketClient(SseClient):
    """A client of WebSocket; a page has other streams, too. It comes back with its last position
    after every close but 1000.

    kind:   path, of the stream, or multiplex: it subscribes on /ws.
    closes: the code of every close, 1006 where none came.
    """

    kind: Kind = "path"
    reconnects: ClassVar[bool] = True

    def __init__(
        self, url: str, *, last_event_id: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(url, last_event_id=last_event_id, headers=headers)
        self.closes: list[int] = []
        self._parser = MessageParser(LABEL if self.kind == "multiplex" else None)

    @abstractmethod
    async def hold(self) -> None:
        """Stop reading: a slow client."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    async def say(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        """Send one message: the text, so many times."""

    def got(self, text: str) -> None:
        """A message came; one that is none of the protocol ends up among the errors."""
        try:
            found = self._parser.feed(text)
        except (AssertionError, KeyError, ValueError) as error:
            self.errors.append(repr(error))
            raise
        for each in found:
            self.events.append(Event(event=each.type, id=each.last_event_id, data=each.data))

    def lost(self, code: int) -> None:
        """Its socket was closed."""
        self.closes.append(code)
        self.closed = code == ENDED

    def state(self) -> str:
        return f"{super().state()}, closes {self.closes}"


class WebsocketsClient(SocketClient):
    name: ClassVar[str] = "websockets"
    _running: asyncio.Task[None] | None = None
    _socket: ClientConnection | None = None

    async def start(self) -> None:
        self._reading = asyncio.Event()
        self._reading.set()
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def hold(self) -> None:
        """It has a queue of 16 messages, and stops reading the socket when that is full."""
        self._reading.clear()

    def release(self) -> None:
        self._reading.set()

    async def say(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        assert self._socket is not None
        whole = text * times
        await self._socket.send(whole.encode() if binary else whole)

    @property
    def position(self) -> str:
        return self._parser.last_event_id or self._first_id

    def address(self, **query: str) -> str:
        """Where it connects, with something more in the query."""
        parts = urlsplit(self.url)._replace(scheme="ws")
        if self.kind == "multiplex":
            return parts._replace(path="/ws", query="").geturl()
        both = [*parse_qsl(parts.query), *query.items()]
        return parts._replace(query=urlencode(both)).geturl()

    def _connect(self, **query: str) -> connect:
        return connect(
            self.address(**query),
            proxy=None,
            close_timeout=CLOSING,
            reconnect_delays=lambda: repeat(PAUSE),
        )

    async def _run(self) -> None:
        async with aclosing(self._sockets()) as sockets:
            async for socket in sockets:
                try:
                    await self._read(socket)
                except ConnectionClosed as error:
                    self.lost(error.rcvd.code if error.rcvd else 1006)
                    if self.closed:
                        return

    async def _sockets(self) -> AsyncGenerator[ClientConnection]:
        """By hand: the position is in the URL, which is another one each time."""
        while True:
            query = {"lastEventId": self.position} if self.position else {}
            try:
                async with self._connect(**query) as socket:
                    yield socket
            except (OSError, EOFError, InvalidHandshake) as error:
                self.errors.append(repr(error))
            await asyncio.sleep(PAUSE)

    async def _read(self, socket: ClientConnection) -> None:
        """Until ConnectionClosed."""
        self._socket = socket
        self.opened += 1
        while True:
            await self._reading.wait()
            text = await socket.recv()
            assert isinstance(text, str)
            self.got(text)


class WebsocketsMultiplexClient(WebsocketsClient):
    """It comes back as its documentation says: `async for websocket in connect(...)`."""

    name: ClassVar[str] = "websockets on /ws"
    kind = "multiplex"

    async def _sockets(self) -> AsyncGenerator[ClientConnection]:
        async for socket in self._connect():
            yield socket

    async def _read(self, socket: ClientConnection) -> None:
        path = urlsplit(self.url)._replace(scheme="", netloc="").geturl()
        told = {"type": "subscribe", "id": LABEL, "path": path}
        told |= {"lastEventId": self.position} if self.position else {}
        await socket.send(json.dumps(told))
        await super()._read(socket)


class NpmWebSocketClient(SocketClient, ProcessClient):
    """Takes orders on its standard input."""

    name: ClassVar[str] = "npm ws"
    _rest = b""

    async def command(self) -> Sequence[str]:
        place = await asyncio.to_thread(installed)
        return ["node", str(place / "socket.mjs"), self.kind, self.url, self._first_id]

    def heard(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "opened" in told:
                self.opened += 1
            elif "closed" in told:
                self.lost(told["closed"])
            elif "error" in told:
                self.errors.append(told["error"])
            else:
                self.got(told["message"])

    async def hold(self) -> None:
        self._order({"do": "pause"})

    def release(self) -> None:
        self._order({"do": "resume"})

    async def say(self, text: str, *, times: int = 1, binary: bool = False) -> None:
        self._order({"do": "send", "text": text, "times": times, "binary": binary})

    def _order(self, order: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")


class NpmWebSocketMultiplexClient(NpmWebSocketClient):
    name: ClassVar[str] = "npm ws on /ws"
    kind = "multiplex"
