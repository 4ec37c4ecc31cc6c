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

from support.clients.client import ReceivedEvent
from support.waiting import wait_until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

MESSAGE_TIMEOUT_S = 180.0  # s; far above what anything takes here


class MultiplexClient:
    """One socket, of `/ws` or of a route's own path; options: of `websockets.connect`.

    said:    every message of the server, with the time when it came under `at`.
    code:    with which it was closed; None while it is open.
    tally:   records of every stream so far, by its id.
    reading: cleared by those who want to be slow.
    """

    def __init__(self, url: str, path: str = "/ws", **options: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        self.close_code: int | None = None
        self.record_counts: dict[str | None, int] = {}
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        options = {"proxy": None, "compression": None, "max_size": None, **options}
        self._connecting = connect(url.replace("http", "ws", 1) + path, **options)

    async def __aenter__(self) -> Self:
        self.socket = await self._connecting
        self._read_task = asyncio.create_task(self._read_messages())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._read_task.cancel()
        await asyncio.gather(self._read_task, return_exceptions=True)
        self.socket.transport.abort()

    async def send(self, text: str | bytes) -> None:
        await self.socket.send(text)

    async def send_message(self, message_type: str, **members: Any) -> None:
        await self.send(json.dumps({"type": message_type, **members}))

    async def subscribe(self, label: str, path: str, **members: Any) -> dict[str, Any]:
        """Its begin."""
        count = len(self.get_messages(label, "begin"))
        await self.send_message("subscribe", id=label, path=path, **members)
        return await self.wait_for_message(label, "begin", count)

    async def change(self, label: str, **members: Any) -> dict[str, Any]:
        """The begin that says that it is changed."""
        count = len(self.get_messages(label, "begin"))
        await self.send_message("change", id=label, **members)
        return await self.wait_for_message(label, "begin", count)

    async def unsubscribe(self, label: str) -> dict[str, Any]:
        count = len(self.get_messages(label, "end"))
        await self.send_message("unsubscribe", id=label)
        return await self.wait_for_message(label, "end", count)

    async def wait_for_message(
        self, label: str | None, message_type: str, skip: int = 0
    ) -> dict[str, Any]:
        """The message of this kind behind so many of them, once it is there."""
        await self.wait_until(
            lambda: len(self.get_messages(label, message_type)) > skip or self.close_code
        )
        assert len(self.get_messages(label, message_type)) > skip, self.describe_state()
        return self.get_messages(label, message_type)[skip]

    async def wait_until(self, condition: Callable[[], object]) -> None:
        await wait_until(condition, self.describe_state, MESSAGE_TIMEOUT_S)

    async def wait_for_pong(self) -> None:
        """The session is there, and has heard all that was said."""
        count = len(self.get_messages(None, "pong"))
        await self.send_message("ping")
        await self.wait_for_message(None, "pong", count)

    async def wait_closed(self) -> int:
        """The code with which the server closed it."""
        await self.wait_until(lambda: self.close_code is not None)
        assert self.close_code is not None
        return self.close_code

    def get_messages(
        self, label: str | None, message_type: str | None = None
    ) -> list[dict[str, Any]]:
        """What came of one stream."""
        return [
            each
            for each in self.messages
            if each.get("id") == label and message_type in (None, each["type"])
        ]

    def get_records(self, label: str | None) -> list[Any]:
        return [
            record for each in self.get_messages(label, "records") for record in each["records"]
        ]

    def get_events(self, label: str | None = None) -> list[ReceivedEvent]:
        """A frame comes whole or not at all: every record has the position of its message."""
        found, at = [], ""
        for told in self.get_messages(label):
            at = told.get("position", at)
            kind, rest = told["type"], {k: v for k, v in told.items() if k not in _ENVELOPE_MEMBERS}
            every = told["records"] if kind == "records" else [told.get("record", rest)]
            name = "message" if kind == "records" else kind
            found += [ReceivedEvent(event=name, id=at, data=json.dumps(each)) for each in every]
        return found

    def get_last_position(self, label: str | None = None) -> str:
        """The last one."""
        return self.get_events(label)[-1]["id"]

    def describe_state(self) -> str:
        last = f"{self.messages[-3:]!r:.600}"
        return f"closed {self.close_code}; {len(self.messages)} messages, the last {last}"

    async def _read_messages(self) -> None:
        try:
            while True:
                await self.is_reading.wait()
                told = json.loads(await self.socket.recv())
                label = told.get("id")
                self.record_counts[label] = self.record_counts.get(label, 0) + len(
                    told.get("records", ())
                )
                self.messages.append({**told, "at": time.monotonic()})
        except ConnectionClosed:
            self.close_code = self.socket.close_code


_ENVELOPE_MEMBERS = {"type", "id", "position", "at"}
