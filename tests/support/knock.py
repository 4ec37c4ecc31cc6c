"""Knocking at a stream on every wire: who is let in, and what the others are told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from support.multiplex import Multiplex
from websockets.exceptions import InvalidStatus

WIRES = ("events", "lines", "socket", "multiplex")
WITHIN = 60.0

_ACCEPTS = {"events": "text/event-stream", "lines": "application/x-ndjson"}
_STATUS = {
    "unauthorized": 401, "forbidden": 403, "bad-request": 400, "unknown-path": 404,
    "guard-unavailable": 503,
}  # fmt: skip


@dataclass(frozen=True)
class Comes:
    """With what a client comes. protocols: of a WebSocket."""

    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    protocols: tuple[str, ...] = ()

    @classmethod
    def bearing(cls, token: str) -> Comes:
        return cls({"Authorization": f"Bearer {token}"})


@dataclass(frozen=True)
class Told:
    """status: 200 for a stream that began. said: all that came; the problem, or what began."""

    status: int
    headers: dict[str, str]
    said: str

    @property
    def challenge(self) -> str:
        return self.headers.get("www-authenticate", "")

    @property
    def problem(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.said)
        return told


async def knock(wire: str, url: str, path: str, comes: Comes | None = None, **options: Any) -> Told:
    """Ask for a stream; if there is one, it is left at its begin. options: `verify`, a TLS
    context."""
    comes = comes or Comes()
    query = {**comes.query, "positions": ""} if wire == "lines" else comes.query
    if query:
        path = f"{path}?{urlencode(query)}"
    if wire in _ACCEPTS:
        return await _http(_ACCEPTS[wire], url, path, comes, **options)
    tls = {"ssl": options["verify"]} if "verify" in options else {}
    headers = {"additional_headers": comes.headers, "subprotocols": comes.protocols or None, **tls}
    at = path if wire == "socket" else "/ws" + ("?" + urlencode(comes.query) if comes.query else "")
    try:
        async with Multiplex(url, at, **headers) as socket:
            if wire == "multiplex":
                await socket.say("subscribe", id="a", path=path.partition("?")[0])
            label = "a" if wire == "multiplex" else None
            await socket.wait(lambda: socket.of(label) or socket.code)
            return _heard(socket.of(label)[0])
    except InvalidStatus as refused:
        response = refused.response
        told = {name.lower(): value for name, value in response.headers.raw_items()}
        return Told(response.status_code, told, (response.body or b"").decode())


async def _http(accept: str, url: str, path: str, comes: Comes, **options: Any) -> Told:
    headers = {"Accept": accept, **comes.headers}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=WITHIN, **options) as http,
        http.stream("GET", url + path, headers=headers) as answer,
    ):
        told = dict(answer.headers)
        if answer.status_code == 200:
            pieces = answer.aiter_text()
            return Told(200, told, await anext(pieces, ""))
        return Told(answer.status_code, told, (await answer.aread()).decode())


def _heard(message: dict[str, Any]) -> Told:
    said = json.dumps({name: each for name, each in message.items() if name != "at"})
    return Told(_STATUS[message["code"]] if message["type"] == "error" else 200, {}, said)
