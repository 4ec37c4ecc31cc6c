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

from .errors import build_error, describe_cause, suggest_path
from .json_text import split_elements, split_members
from .source import ConnectionLost, StreamEvent, StreamRefused
from .sse import CONNECT_TIMEOUT_S, IDLE_TIMEOUT_S
from .target import Target
from .terminal import escape_controls

SUBSCRIPTION_ID = "tail"
KAFKA_UNAVAILABLE = "kafka-unavailable"
IGNORED_MESSAGES = ("produced", "renewed", "pong")


class WebSocketSource:
    def __init__(
        self, target: Target, *, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> None:
        self.retry: float | None = None
        self.display_name = target.display_name
        self._target = target
        self._headers = headers
        self._tls = tls

    async def close(self) -> None:
        pass

    async def iter_events(
        self, position: str | None, remaining: int | None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """With `left` the server is given that much credit: a message of records ends where the
        last one that is wanted does, and so does its position."""
        began = False
        try:
            async with self._connect(position, remaining) as socket:
                if self._target.socket_path is not None:
                    await socket.send(self._build_subscribe_message(position, remaining))
                while True:
                    items = parse_message(await self._receive_message(socket))
                    began = began or any(item.name == "begin" for item in items)
                    if not began:
                        _raise_on_error(items)
                    if items:
                        yield items
        except InvalidStatus as exc:
            raise await self._build_error(exc) from None
        except ConnectionClosed as exc:
            code = exc.rcvd.code if exc.rcvd is not None else None
            raise ConnectionLost(
                f"closed with {code}" if code else "the connection was cut"
            ) from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as exc:
            raise ConnectionLost(
                describe_cause(exc), was_reached=not isinstance(exc, OSError)
            ) from exc

    def _connect(self, position: str | None, remaining: int | None) -> connect:
        own = {"lastEventId": position} if position else {}
        own |= {"credit": str(remaining)} if remaining is not None else {}
        url = self._target.build_url(self._target.query.encode(position, **own))
        if self._target.socket_path is not None:
            url = self._target.build_url(path=self._target.socket_path)
        return connect(
            url,
            ssl=self._tls,
            additional_headers=self._headers,
            subprotocols=[Subprotocol("gateway.v1")],
            max_size=None,  # a message holds as many records as the server saw fit
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=1,
            ping_interval=None,  # whoever does not read what comes does not see the pong either
        )

    def _build_subscribe_message(self, position: str | None, remaining: int | None) -> str:
        query = self._target.query.encode(position)
        path = f"{self._target.path}?{query}" if query else self._target.path
        message: dict[str, str | int] = {"type": "subscribe", "id": SUBSCRIPTION_ID, "path": path}
        if position is not None:
            message["lastEventId"] = position
        if remaining is not None:
            message["credit"] = remaining
        return json.dumps(message)

    async def _receive_message(self, socket: ClientConnection) -> str:
        """Half of the silence is waited for by itself, the other half for an answer."""
        for _ in range(2):
            try:
                async with asyncio.timeout(IDLE_TIMEOUT_S / 2):
                    message = await socket.recv()
            except TimeoutError:
                await socket.send('{"type": "ping"}')
                continue
            if isinstance(message, bytes):
                raise StreamRefused(
                    f"{self.display_name} speaks another protocol: a binary message"
                )
            return message
        raise ConnectionLost(f"nothing heard for {IDLE_TIMEOUT_S:.0f} s")

    async def _build_error(self, exc: InvalidStatus) -> StreamRefused | ConnectionLost:
        answer, hint = exc.response, ""
        if answer.status_code == 404:
            listed = httpx.URL(self._target.build_url(path="/")).copy_with(
                scheme=self._target.scheme.replace("ws", "http")
            )
            async with httpx.AsyncClient(headers=self._headers, verify=self._tls or True) as http:
                hint = await suggest_path(http, str(listed), self._target.path)
        return build_error(answer.status_code, answer.headers, bytes(answer.body or b""), hint=hint)


def parse_message(text: str) -> list[StreamEvent]:
    """The items of one message. Raises Refused for what is no message of a gateway."""
    try:
        told = split_members(text)
        name = str(json.loads(told["type"]))
        position = _decode_string(told.get("position"))
        if name == "records":
            return _parse_records(split_elements(told["records"]), position)
        if name == "delete":
            return [StreamEvent("delete", told["record"].encode(), position)]
    except (KeyError, ValueError):
        raise StreamRefused("it speaks another protocol: not a gateway's message") from None
    return [] if name in IGNORED_MESSAGES else [StreamEvent(name, text.encode(), position)]


def _parse_records(records: list[str], position: str | None) -> list[StreamEvent]:
    """A JSON string stands for a value that is text, as the event of that value would."""
    items = [
        StreamEvent("message", (json.loads(each) if each.startswith('"') else each).encode())
        for each in records
    ]
    if items:
        items[-1] = items[-1]._replace(position=position)
    return items


def _decode_string(json_text: str | None) -> str | None:
    found = None if json_text is None else json.loads(json_text)
    return found if isinstance(found, str) else None


def _raise_on_error(items: list[StreamEvent]) -> None:
    """An error before anything has begun is the answer to what was asked for."""
    for item in items:
        if item.name == "error":
            told = json.loads(item.data)
            what = f"{told.get('code')}: {told.get('message')}"
            raise (
                ConnectionLost(escape_controls(what))
                if told.get("code") == KAFKA_UNAVAILABLE
                else StreamRefused(escape_controls(what))
            )
