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

from support.asgi_servers import running_uvicorn

DELIMITED_TYPE = "application/vnd.ksqlapi.delimited.v1"
COLUMN_NAMES, COLUMN_TYPES = ("ID", "NAME"), ("BIGINT", "STRING")


@dataclass
class KsqldbRequest:
    """A request that came in."""

    path: str
    body: Mapping[str, Any]
    http_version: str
    headers: Mapping[str, str]


@dataclass
class FakeKsqldb:
    """The server's side.

    asked: requests, in order. closed: ids given to /close-query. running: push queries open.
    old: it has no /query-stream. array: rows come as one JSON array, whatever was asked for.
    """

    url: str = ""
    lacks_query_stream: bool = False
    always_sends_array: bool = False
    requests: list[KsqldbRequest] = field(default_factory=list)
    closed_query_ids: list[str] = field(default_factory=list)
    open_query_count: int = 0
    error_response: tuple[int, Mapping[str, Any]] | None = None
    output: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def send_row(self, *values: Any) -> None:
        """To whoever has a push query open, or opens one; in the form that it asked for."""
        self.output.put_nowait(json.dumps(list(values)).encode())

    def send_error(self, code: int, message: str) -> None:
        """In the middle of rows."""
        self.output.put_nowait(json.dumps({"error_code": code, "message": message}).encode())

    def send_final(self, message: str) -> None:
        """`POST /query` only."""
        self.output.put_nowait(json.dumps({"finalMessage": message}).encode())

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.output.put_nowait(b"\0" + data)

    def end_query(self) -> None:
        """The server ends the query."""
        self.output.put_nowait(None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = json.loads(await _read_body(receive) or b"{}")
        self.requests.append(KsqldbRequest(scope["path"], body, scope["http_version"], headers))
        if self.error_response is not None:
            status, told = self.error_response
            await _send_response(send, status, json.dumps(told).encode())
        elif scope["path"] == "/query-stream" and not self.lacks_query_stream:
            form = "" if self.always_sends_array else headers.get("accept", "")
            await self._stream_rows(form, receive, send)
        elif scope["path"] == "/query":
            await self._stream_rows("old", receive, send)
        elif scope["path"] == "/close-query" and not self.lacks_query_stream:
            self.closed_query_ids.append(body["queryId"])
            await _send_response(send, 200, b"")
        else:
            await _send_response(send, 404, b"<html>not found</html>")

    async def _stream_rows(self, output_format: str, receive: Any, send: Any) -> None:
        number = sum(each.path in ("/query-stream", "/query") for each in self.requests)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await _send_body_part(send, _build_header(output_format, f"query_{number}"))
        self.open_query_count += 1
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            while not leaving.done():
                saying = asyncio.ensure_future(self.output.get())
                await asyncio.wait({saying, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not saying.done():
                    saying.cancel()
                    return
                said = saying.result()
                if said is None:
                    break
                await _send_body_part(send, _encode_output(output_format, said))
            if not leaving.done():
                await _send_body_part(
                    send, b"" if output_format == DELIMITED_TYPE else b"]", has_more=False
                )
        finally:
            self.open_query_count -= 1
            leaving.cancel()


def _build_header(output_format: str, query_id: str) -> bytes:
    if output_format == "old":
        pairs = zip(COLUMN_NAMES, COLUMN_TYPES, strict=True)
        columns = ", ".join(f"`{name}` {type}" for name, type in pairs)
        return b"[" + json.dumps({"header": {"queryId": query_id, "schema": columns}}).encode()
    told = {"queryId": query_id, "columnNames": COLUMN_NAMES, "columnTypes": COLUMN_TYPES}
    return (
        json.dumps(told).encode() + b"\n"
        if output_format == DELIMITED_TYPE
        else b"[" + _encode_json(told)
    )


def _encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _encode_output(output_format: str, data: bytes) -> bytes:
    if data.startswith(b"\0"):
        return data[1:]
    if output_format == DELIMITED_TYPE:
        return data + b"\n"
    if output_format != "old":
        return b"," + data
    element = json.loads(data)
    if isinstance(element, list):
        element = {"row": {"columns": element}}
    elif "error_code" in element:
        element = {"errorMessage": element}
    return b",\n" + _encode_json(element)


async def _read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_body_part(send: Any, data: bytes, has_more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": has_more})


async def _send_response(send: Any, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await _send_body_part(send, body, has_more=False)


@asynccontextmanager
async def running_ksqldb(*, certificate: Path | None = None) -> AsyncIterator[FakeKsqldb]:
    """On hypercorn: HTTP/1.1 and HTTP/2, by prior knowledge, or with a certificate by ALPN."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    ksqldb = FakeKsqldb()
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
async def running_ksqldb_without_http2() -> AsyncIterator[FakeKsqldb]:
    """A server that knows nothing of HTTP/2, such as a proxy in front may be."""
    ksqldb = FakeKsqldb(lacks_query_stream=True)
    async with running_uvicorn(ksqldb, lifespan="off") as url:
        ksqldb.url = url
        yield ksqldb


def get_names(rows: Iterable[Mapping[str, Any]]) -> Sequence[Any]:
    return [row["NAME"] for row in rows]
