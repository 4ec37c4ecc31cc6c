"""A double of a ksqlDB server, as the public reference of its HTTP API describes one: no server of
its own can be had in the tests.

async with running_ksqldb() as ksqldb:
    ksqldb.rows("SELECT * FROM ORDERS EMIT CHANGES;", [1, "a"])
    Ksql(ksqldb.url)
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from support.servers import under_uvicorn

DELIMITED = "application/vnd.ksqlapi.delimited.v1"
NAMES, TYPES = ("ID", "NAME"), ("BIGINT", "STRING")


@dataclass
class Asked:
    """A request that came in."""

    path: str
    body: Mapping[str, Any]
    http: str
    headers: Mapping[str, str]


@dataclass
class Ksqldb:
    """The server's side.

    asked: requests, in order. closed: ids given to /close-query. running: push queries open.
    old: it has no /query-stream. array: rows come as one JSON array, whatever was asked for.
    """

    url: str = ""
    old: bool = False
    array: bool = False
    asked: list[Asked] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    running: int = 0
    refusing: tuple[int, Mapping[str, Any]] | None = None
    says: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def row(self, *values: Any) -> None:
        """To whoever has a push query open, or opens one; in the form that it asked for."""
        self.says.put_nowait(json.dumps(list(values)).encode())

    def error(self, code: int, message: str) -> None:
        """In the middle of rows."""
        self.says.put_nowait(json.dumps({"error_code": code, "message": message}).encode())

    def final(self, message: str) -> None:
        """`POST /query` only."""
        self.says.put_nowait(json.dumps({"finalMessage": message}).encode())

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.says.put_nowait(b"\0" + data)

    def over(self) -> None:
        """The server ends the query."""
        self.says.put_nowait(None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = json.loads(await _body(receive) or b"{}")
        self.asked.append(Asked(scope["path"], body, scope["http_version"], headers))
        if self.refusing is not None:
            status, told = self.refusing
            await _whole(send, status, json.dumps(told).encode())
        elif scope["path"] == "/query-stream" and not self.old:
            form = "" if self.array else headers.get("accept", "")
            await self._stream(form, receive, send)
        elif scope["path"] == "/query":
            await self._stream("old", receive, send)
        elif scope["path"] == "/close-query" and not self.old:
            self.closed.append(body["queryId"])
            await _whole(send, 200, b"")
        else:
            await _whole(send, 404, b"<html>not found</html>")

    async def _stream(self, form: str, receive: Any, send: Any) -> None:
        number = sum(each.path in ("/query-stream", "/query") for each in self.asked)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await _piece(send, _header(form, f"query_{number}"))
        self.running += 1
        leaving = asyncio.ensure_future(_left(receive))
        try:
            while not leaving.done():
                saying = asyncio.ensure_future(self.says.get())
                await asyncio.wait({saying, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not saying.done():
                    saying.cancel()
                    return
                said = saying.result()
                if said is None:
                    break
                await _piece(send, _written(form, said))
            if not leaving.done():
                await _piece(send, b"" if form == DELIMITED else b"]", more=False)
        finally:
            self.running -= 1
            leaving.cancel()


def _header(form: str, query: str) -> bytes:
    if form == "old":
        pairs = zip(NAMES, TYPES, strict=True)
        columns = ", ".join(f"`{name}` {type}" for name, type in pairs)
        return b"[" + json.dumps({"header": {"queryId": query, "schema": columns}}).encode()
    told = {"queryId": query, "columnNames": NAMES, "columnTypes": TYPES}
    return json.dumps(told).encode() + b"\n" if form == DELIMITED else b"[" + _json(told)


def _json(told: Any) -> bytes:
    return json.dumps(told).encode()


def _written(form: str, said: bytes) -> bytes:
    if said.startswith(b"\0"):
        return said[1:]
    if form == DELIMITED:
        return said + b"\n"
    if form != "old":
        return b"," + said
    element = json.loads(said)
    if isinstance(element, list):
        element = {"row": {"columns": element}}
    elif "error_code" in element:
        element = {"errorMessage": element}
    return b",\n" + _json(element)


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _piece(send: Any, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _whole(send: Any, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await _piece(send, body, more=False)


@asynccontextmanager
async def running_ksqldb(*, certificate: Path | None = None) -> AsyncIterator[Ksqldb]:
    """On hypercorn: HTTP/1.1 and HTTP/2, by prior knowledge, or with a certificate by ALPN."""
    ksqldb = Ksqldb()
    over = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    ksqldb.url = f"http{'s' * bool(certificate)}://127.0.0.1:{listening.getsockname()[1]}"
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.graceful_timeout = 0.1
    config.loglevel = "CRITICAL"
    if certificate is not None:
        config.certfile = config.keyfile = str(certificate)
    running = asyncio.create_task(serve(ksqldb, config, shutdown_trigger=over.wait))
    try:
        yield ksqldb
    finally:
        over.set()
        await asyncio.wait_for(running, 30)


@asynccontextmanager
async def without_http2() -> AsyncIterator[Ksqldb]:
    """A server that knows nothing of HTTP/2, such as a proxy in front may be."""
    ksqldb = Ksqldb(old=True)
    async with under_uvicorn(ksqldb, lifespan="off") as url:
        ksqldb.url = url
        yield ksqldb


def names(rows: Iterable[Mapping[str, Any]]) -> Sequence[Any]:
    return [row["NAME"] for row in rows]
