"""Follow a stream over a WebSocket: on its own path, or as one of many on /ws."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from gateway.core.channel.exact_json import parse_json

from .event_reader import CONNECT_TIMEOUT_S, IDLE_TIMEOUT_S
from .json_text import split_elements, split_members
from .source import ConnectionLost, StreamEvent, StreamRefused
from .status import build_error, describe_cause, suggest_path
from .target import Target
from .terminal import escape_controls

SUBSCRIPTION_ID = "tail"  # any text; there is one subscription on the socket
KAFKA_UNAVAILABLE = "kafka-unavailable"  # the only error code after which to try again
IGNORED_MESSAGES = ("produced", "renewed", "pong")  # they are not part of the stream


class WebSocketSource:
    """A `StreamSource` over WebSocket, which asks a silent server before the idle timeout."""

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self.retry: float | None = None
        self.display_name = target.display_name
        self._target = target
        self._headers = headers
        self._tls = tls
        self._idle_timeout_s = idle_timeout_s

    async def close(self) -> None:
        """Do nothing: connections share nothing."""

    async def iter_events(
        self, position: str | None, remaining: int | None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Connect, and yield events; see `StreamSource`.

        `remaining` is sent as credit. A message of records has one position for all of them, and
        with credit it ends with the last record that is wanted, so that the position fits.
        """
        has_begun = False
        try:
            async with self._connect(position, remaining) as socket:
                if self._target.socket_path is not None:
                    await socket.send(self._build_subscribe_message(position, remaining))
                while True:
                    events = parse_message(await self._receive_message(socket))
                    has_begun = has_begun or any(event.name == "begin" for event in events)
                    if not has_begun:
                        _raise_on_error(events)
                    if events:
                        yield events
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
        parameters = {"lastEventId": position} if position else {}
        parameters |= {"credit": str(remaining)} if remaining is not None else {}
        url = self._target.build_url(self._target.query.encode(position, **parameters))
        if self._target.socket_path is not None:
            url = self._target.build_url(path=self._target.socket_path)
        return connect(
            url,
            ssl=self._tls,
            additional_headers=self._headers,
            subprotocols=[Subprotocol("gateway.v1")],
            max_size=None,  # the server decides how many records a message has
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=1,
            ping_interval=None,  # a pong behind unread messages would come too late: see below
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
        """Return the next message.

        After half of the idle timeout without one, a message `ping` asks the server for an answer.
        """
        for _ in range(2):
            try:
                async with asyncio.timeout(self._idle_timeout_s / 2):
                    message = await socket.recv()
            except TimeoutError:
                await socket.send('{"type": "ping"}')
                continue
            if isinstance(message, bytes):
                raise StreamRefused(
                    f"{self.display_name} speaks another protocol: a binary message"
                )
            return message
        raise ConnectionLost(f"nothing received for {self._idle_timeout_s:.0f} s")

    async def _build_error(self, exc: InvalidStatus) -> StreamRefused | ConnectionLost:
        response, hint = exc.response, ""
        if response.status_code == 404:
            index_url = httpx.URL(self._target.build_url(path="/")).copy_with(
                scheme=self._target.scheme.replace("ws", "http")
            )
            async with httpx.AsyncClient(headers=self._headers, verify=self._tls or True) as http:
                hint = await suggest_path(http, str(index_url), self._target.path)
        return build_error(
            response.status_code, response.headers, bytes(response.body or b""), hint=hint
        )


def parse_message(text: str) -> list[StreamEvent]:
    try:
        members = split_members(text)
        name = str(json.loads(members["type"]))
        position = _decode_string(members.get("position"))
        if name == "records":
            return _parse_records(split_elements(members["records"]), position)
        if name == "delete":
            return [StreamEvent("delete", members["record"].encode(), position)]
    except (KeyError, ValueError):
        raise StreamRefused("it speaks another protocol: this is not a gateway's message") from None
    return [] if name in IGNORED_MESSAGES else [StreamEvent(name, text.encode(), position)]


def _parse_records(records: list[str], position: str | None) -> list[StreamEvent]:
    """Return records as events; the position belongs to the last one.

    A record that is a JSON string stands for its text, as in the event of SSE.
    """
    texts = [str(parse_json(each.encode())) if each.startswith('"') else each for each in records]
    events = [StreamEvent("message", text.encode()) for text in texts]
    if events:
        events[-1] = events[-1]._replace(position=position)
    return events


def _decode_string(json_text: str | None) -> str | None:
    value = None if json_text is None else json.loads(json_text)
    return value if isinstance(value, str) else None


def _raise_on_error(events: list[StreamEvent]) -> None:
    """Raise the error among events before `begin`: it is the response to the subscription."""
    for event in events:
        if event.name == "error":
            error = json.loads(event.data)
            text = escape_controls(f"{error.get('code')}: {error.get('message')}")
            raise (
                ConnectionLost(text)
                if error.get("code") == KAFKA_UNAVAILABLE
                else StreamRefused(text)
            )
