"""A stream by WebSocket: on its own path, or as one of many on /ws."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from .answer import cause, nearest, refusal
from .item import Item, Lost, Refused
from .members import elements, members
from .screen import safe
from .sse import CONNECT, SILENCE
from .target import Target

ID = "tail"
AWAY = "kafka-unavailable"
UNHEARD = ("produced", "renewed", "pong")


class WebSocketSource:
    def __init__(
        self, target: Target, *, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> None:
        self.retry: float | None = None
        self.shown = target.shown
        self._target = target
        self._headers = headers
        self._tls = tls

    async def close(self) -> None:
        pass

    async def items(
        self, position: str | None, left: int | None
    ) -> AsyncGenerator[list[Item], None]:
        """With `left` the server is given that much credit: a message of records ends where the
        last one that is wanted does, and so does its position."""
        began = False
        try:
            async with self._connect(position, left) as socket:
                if self._target.socket is not None:
                    await socket.send(self._subscribe(position, left))
                while True:
                    items = read(await self._receive(socket))
                    began = began or any(item.name == "begin" for item in items)
                    if not began:
                        _refuse(items)
                    if items:
                        yield items
        except InvalidStatus as exc:
            raise await self._refusal(exc) from None
        except ConnectionClosed as exc:
            code = exc.rcvd.code if exc.rcvd is not None else None
            raise Lost(f"closed with {code}" if code else "the connection was cut") from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as exc:
            raise Lost(cause(exc), answered=not isinstance(exc, OSError)) from exc

    def _connect(self, position: str | None, left: int | None) -> connect:
        own = {"lastEventId": position} if position else {}
        own |= {"credit": str(left)} if left is not None else {}
        url = self._target.url(self._target.query.text(position, **own))
        if self._target.socket is not None:
            url = self._target.url(path=self._target.socket)
        return connect(
            url,
            ssl=self._tls,
            additional_headers=self._headers,
            subprotocols=[Subprotocol("gateway.v1")],
            max_size=None,  # a message holds as many records as the server saw fit
            open_timeout=CONNECT,
            close_timeout=1,
            ping_interval=None,  # whoever does not read what comes does not see the pong either
        )

    def _subscribe(self, position: str | None, left: int | None) -> str:
        query = self._target.query.text(position)
        path = f"{self._target.path}?{query}" if query else self._target.path
        message: dict[str, str | int] = {"type": "subscribe", "id": ID, "path": path}
        if position is not None:
            message["lastEventId"] = position
        if left is not None:
            message["credit"] = left
        return json.dumps(message)

    async def _receive(self, socket: ClientConnection) -> str:
        """Half of the silence is waited for by itself, the other half for an answer."""
        for _ in range(2):
            try:
                async with asyncio.timeout(SILENCE / 2):
                    message = await socket.recv()
            except TimeoutError:
                await socket.send('{"type": "ping"}')
                continue
            if isinstance(message, bytes):
                raise Refused(f"{self.shown} speaks another protocol: a binary message")
            return message
        raise Lost(f"nothing heard for {SILENCE:.0f} s")

    async def _refusal(self, exc: InvalidStatus) -> Refused | Lost:
        answer, hint = exc.response, ""
        if answer.status_code == 404:
            listed = httpx.URL(self._target.url(path="/")).copy_with(
                scheme=self._target.scheme.replace("ws", "http")
            )
            async with httpx.AsyncClient(headers=self._headers, verify=self._tls or True) as http:
                hint = await nearest(http, str(listed), self._target.path)
        return refusal(answer.status_code, answer.headers, bytes(answer.body or b""), hint=hint)


def read(text: str) -> list[Item]:
    """The items of one message. Raises Refused for what is no message of a gateway."""
    try:
        told = members(text)
        name = str(json.loads(told["type"]))
        position = _text(told.get("position"))
        if name == "records":
            return _records(elements(told["records"]), position)
        if name == "delete":
            return [Item("delete", told["record"].encode(), position)]
    except (KeyError, ValueError):
        raise Refused("it speaks another protocol: not a gateway's message") from None
    return [] if name in UNHEARD else [Item(name, text.encode(), position)]


def _records(records: list[str], position: str | None) -> list[Item]:
    """A JSON string stands for a value that is text, as the event of that value would."""
    items = [
        Item("message", (json.loads(each) if each.startswith('"') else each).encode())
        for each in records
    ]
    if items:
        items[-1] = items[-1]._replace(position=position)
    return items


def _text(json_text: str | None) -> str | None:
    found = None if json_text is None else json.loads(json_text)
    return found if isinstance(found, str) else None


def _refuse(items: list[Item]) -> None:
    """An error before anything has begun is the answer to what was asked for."""
    for item in items:
        if item.name == "error":
            told = json.loads(item.data)
            what = f"{told.get('code')}: {told.get('message')}"
            raise Lost(safe(what)) if told.get("code") == AWAY else Refused(safe(what))
