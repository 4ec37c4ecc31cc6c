"""Knocking at a stream on every wire: who is let in, and what the others are told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from support.multiplex import MultiplexClient
from websockets.exceptions import InvalidStatus

WIRE_NAMES = ("events", "lines", "socket", "multiplex")
RESPONSE_TIMEOUT_S = 60.0

_ACCEPT_HEADERS = {"events": "text/event-stream", "lines": "application/x-ndjson"}
_STATUS_BY_CODE = {
    "unauthorized": 401, "forbidden": 403, "bad-request": 400, "unknown-path": 404,
    "guard-unavailable": 503,
}  # fmt: skip


@dataclass(frozen=True)
class AttemptOptions:
    """With what a client comes. protocols: of a WebSocket."""

    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    subprotocols: tuple[str, ...] = ()

    @classmethod
    def with_bearer(cls, token: str) -> AttemptOptions:
        return cls({"Authorization": f"Bearer {token}"})


@dataclass(frozen=True)
class AttemptResult:
    """status: 200 for a stream that began. said: all that came; the problem, or what began."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def challenge(self) -> str:
        return self.headers.get("www-authenticate", "")

    @property
    def problem(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.text)
        return told


async def attempt_stream(
    wire: str, url: str, path: str, attempt_options: AttemptOptions | None = None, **options: Any
) -> AttemptResult:
    """Ask for a stream; if there is one, it is left at its begin. options: `verify`, a TLS
    context."""
    attempt_options = attempt_options or AttemptOptions()
    query = {**attempt_options.query, "positions": ""} if wire == "lines" else attempt_options.query
    if query:
        path = f"{path}?{urlencode(query)}"
    if wire in _ACCEPT_HEADERS:
        return await _attempt_http(_ACCEPT_HEADERS[wire], url, path, attempt_options, **options)
    tls = {"ssl": options["verify"]} if "verify" in options else {}
    headers = {
        "additional_headers": attempt_options.headers,
        "subprotocols": attempt_options.subprotocols or None,
        **tls,
    }
    at = (
        path
        if wire == "socket"
        else "/ws" + ("?" + urlencode(attempt_options.query) if attempt_options.query else "")
    )
    try:
        async with MultiplexClient(url, at, **headers) as socket:
            if wire == "multiplex":
                await socket.send_message("subscribe", id="a", path=path.partition("?")[0])
            label = "a" if wire == "multiplex" else None
            await socket.wait_until(lambda: socket.get_messages(label) or socket.close_code)
            return _build_result(socket.get_messages(label)[0])
    except InvalidStatus as refused:
        response = refused.response
        told = {name.lower(): value for name, value in response.headers.raw_items()}
        return AttemptResult(response.status_code, told, (response.body or b"").decode())


async def _attempt_http(
    accept: str, url: str, path: str, attempt_options: AttemptOptions, **options: Any
) -> AttemptResult:
    headers = {"Accept": accept, **attempt_options.headers}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=RESPONSE_TIMEOUT_S, **options) as http,
        http.stream("GET", url + path, headers=headers) as answer,
    ):
        told = dict(answer.headers)
        if answer.status_code == 200:
            pieces = answer.aiter_text()
            return AttemptResult(200, told, await anext(pieces, ""))
        return AttemptResult(answer.status_code, told, (await answer.aread()).decode())


def _build_result(message: dict[str, Any]) -> AttemptResult:
    said = json.dumps({name: each for name, each in message.items() if name != "at"})
    return AttemptResult(
        _STATUS_BY_CODE[message["code"]] if message["type"] == "error" else 200, {}, said
    )
