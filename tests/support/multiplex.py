"""Many streams on one WebSocket, by PyPI's `websockets`: what was said, and what was heard.

    async with Multiplex(gateway.base_url) as socket:
        begin = await socket.subscribe("a", "/records/orders", credit=5)
        await socket.wait(lambda: len(socket.records("a")) == 5)
        await socket.say("credit", id="a", n=5)

A stream is read in the terms of server-sent events, so that the oracle judges it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Self

from support.clients.client import Event
from support.until import until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

WITHIN = 60.0  # s


class Multiplex:
    """One socket, of `/ws` or of a route's own path; options: of `websockets.connect`.

    said:    every message of the server, with the time when it came under `at`.
    code:    with which it was closed; None while it is open.
    tally:   records of every stream so far, by its id.
    reading: cleared by those who want to be slow.
    """

    def __init__(self, url: str, path: str = "/ws", **options: Any) -> None:
        self.said: list[dict[str, Any]] = []
        self.code: int | None = None
        self.tally: dict[str | None, int] = {}
        self.reading = asyncio.Event()
        self.reading.set()
        options = {"proxy": None, "compression": None, "max_size": None, **options}
        self._connecting = connect(url.replace("http", "ws", 1) + path, **options)

    async def __aenter__(self) -> Self:
        self.socket = await self._connecting
        self._running = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.socket.transport.abort()

    async def send(self, text: str | bytes) -> None:
        await self.socket.send(text)

    async def say(self, kind: str, **members: Any) -> None:
        await self.send(json.dumps({"type": kind, **members}))

    async def subscribe(self, label: str, path: str, **members: Any) -> dict[str, Any]:
        """Its begin."""
        count = len(self.of(label, "begin"))
        await self.say("subscribe", id=label, path=path, **members)
        return await self.next(label, "begin", count)

    async def change(self, label: str, **members: Any) -> dict[str, Any]:
        """The begin that says that it is changed."""
        count = len(self.of(label, "begin"))
        await self.say("change", id=label, **members)
        return await self.next(label, "begin", count)

    async def unsubscribe(self, label: str) -> dict[str, Any]:
        count = len(self.of(label, "end"))
        await self.say("unsubscribe", id=label)
        return await self.next(label, "end", count)

    async def next(self, label: str | None, kind: str, after: int = 0) -> dict[str, Any]:
        """The message of this kind behind so many of them, once it is there."""
        await self.wait(lambda: len(self.of(label, kind)) > after or self.code)
        assert len(self.of(label, kind)) > after, self.state()
        return self.of(label, kind)[after]

    async def wait(self, met: Callable[[], object]) -> None:
        await until(met, self.state, WITHIN)

    async def answers(self) -> None:
        """The session is there, and has heard all that was said."""
        count = len(self.of(None, "pong"))
        await self.say("ping")
        await self.next(None, "pong", count)

    async def closed(self) -> int:
        """The code with which the server closed it."""
        await self.wait(lambda: self.code is not None)
        assert self.code is not None
        return self.code

    def of(self, label: str | None, kind: str | None = None) -> list[dict[str, Any]]:
        """What came of one stream."""
        return [
            each for each in self.said if each.get("id") == label and kind in (None, each["type"])
        ]

    def records(self, label: str | None) -> list[Any]:
        return [record for each in self.of(label, "records") for record in each["records"]]

    def events(self, label: str | None = None) -> list[Event]:
        """A frame comes whole or not at all: every record has the position of its message."""
        found, at = [], ""
        for told in self.of(label):
            at = told.get("position", at)
            kind, rest = told["type"], {k: v for k, v in told.items() if k not in _FRAME}
            every = told["records"] if kind == "records" else [told.get("record", rest)]
            name = "message" if kind == "records" else kind
            found += [Event(event=name, id=at, data=json.dumps(each)) for each in every]
        return found

    def position(self, label: str | None = None) -> str:
        """The last one."""
        return self.events(label)[-1]["id"]

    def state(self) -> str:
        return f"closed {self.code}; {len(self.said)} messages, the last {self.said[-3:]!r:.600}"

    async def _read(self) -> None:
        try:
            while True:
                await self.reading.wait()
                told = json.loads(await self.socket.recv())
                label = told.get("id")
                self.tally[label] = self.tally.get(label, 0) + len(told.get("records", ()))
                self.said.append({**told, "at": time.monotonic()})
        except ConnectionClosed:
            self.code = self.socket.close_code


_FRAME = {"type", "id", "position", "at"}
