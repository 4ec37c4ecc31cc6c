"""Queries of a ksqlDB server, push and pull, over HTTP/2 where it speaks it.

`POST /query-stream` over HTTP/2: by prior knowledge without TLS, by ALPN with it. A server that
has no such path, or no HTTP/2, is asked by `POST /query`, which every version has.

Every query has a connection of its own: closing it ends the query at servers of all versions,
and a query that is left takes no part of a window that others share (httpcore gives bytes of a
stream that nobody reads back to neither the stream nor the connection). Whoever does not read
holds back the server: no row is kept here but those that were asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from .rows import Columns, Garbled, KsqlError, Reading, Row, refusal

log = logging.getLogger(__name__)

DELIMITED = "application/vnd.ksqlapi.delimited.v1"
OLD = "application/vnd.ksql.v1+json"
BEGIN = 30.0  # seconds until a query says what its columns are: ksqlDB plans it first
LONGEST_REFUSAL = 1 << 20  # bytes of an answer that is no 200
CLOSE = 2.0  # seconds for /close-query, which is a courtesy
FORGET = 600.0  # seconds after which a server that had no /query-stream is asked for it again
OFFSET = "auto.offset.reset"
TABLE_SCAN = "ksql.query.pull.table.scan.enabled"

_NO_SUCH_PATH = frozenset({404, 405, 501, 505})
# A push query may be silent for days: the kernel asks whether the peer is still there, and a host
# that vanished is noticed after 15 + 3 * 5 s.
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class KsqlAway(Exception):
    """No connection, no answer in time, or an answer that was cut."""


@dataclass(frozen=True, slots=True)
class Query:
    """properties: as ksqlDB has them, each a text or a number, such as `auto.offset.reset`."""

    sql: str
    properties: Mapping[str, Any] = field(default_factory=dict)


def query(
    sql: str,
    properties: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    table_scan: bool | None = None,
) -> Query:
    """offset: earliest or latest, where a push query begins. table_scan: whether a pull query may
    read a whole table. Both stand over the same property."""
    named: dict[str, Any] = dict(properties or {})
    if offset is not None:
        named[OFFSET] = offset
    if table_scan is not None:
        named[TABLE_SCAN] = table_scan
    text = sql.strip()
    return Query(text if text.endswith(";") else f"{text};", named)


class Answer:
    """Rows of a query that has begun.

    columns: what is in them. path: `/query-stream` or `/query`.
    """

    def __init__(self, path: str, reading: Reading, rows: AsyncIterator[Row]) -> None:
        self.path = path
        self._reading = reading
        self._rows = rows

    @property
    def columns(self) -> Columns:
        return self._reading.columns or Columns(())

    @property
    def final(self) -> str | None:
        """The server's last word, once the rows are over."""
        return self._reading.final

    def __aiter__(self) -> AsyncIterator[Row]:
        return self._rows


class Ksql:
    """A server, or several behind one address.

    url: such as `http://localhost:8088`. user and password: basic authentication.
    tls: for https. begin: seconds until a query has begun.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        begin: float = BEGIN,
    ) -> None:
        self.url = url.rstrip("/")
        self._auth = None if user is None else httpx.BasicAuth(user, password or "")
        self._tls = tls
        self._begin = begin
        self._old_until = 0.0

    @asynccontextmanager
    async def ask(self, wanted: Query) -> AsyncGenerator[Answer]:
        """The query while it is entered, closed at the server when it is left.

        Entering, and each row, raise KsqlError where ksqlDB refuses, KsqlAway where it cannot be
        asked, or goes away.
        """
        async with contextlib.AsyncExitStack() as stack:
            answer = await self._opened(wanted, stack)
            try:
                yield answer
            finally:
                await self._close_query(answer)

    async def _opened(self, wanted: Query, stack: contextlib.AsyncExitStack) -> Answer:
        now = asyncio.get_running_loop().time
        if now() >= self._old_until:
            new = stack.enter_async_context(self._asked("/query-stream", wanted, http2=True))
            try:
                return await new
            except _NotThere as why:
                log.debug("%s has no /query-stream (%s); asked by /query", self.url, why)
                if why.sure:
                    self._old_until = now() + FORGET
        return await stack.enter_async_context(self._asked("/query", wanted, http2=False))

    @asynccontextmanager
    async def _asked(self, path: str, wanted: Query, *, http2: bool) -> AsyncGenerator[Answer]:
        sql, properties = ("sql", "properties") if http2 else ("ksql", "streamsProperties")
        body = orjson.dumps({sql: wanted.sql, properties: dict(wanted.properties)})
        reading = Reading()
        async with self._client(http2) as client, contextlib.AsyncExitStack() as stack:
            with _telling(self.url, http2):
                async with asyncio.timeout(self._begin):
                    request = client.stream(
                        "POST", path, content=body, headers=_headers(DELIMITED if http2 else OLD)
                    )
                    response = await stack.enter_async_context(request)
                    await _accepted(response, http2)
                    pieces = response.aiter_raw()
                    first = await _begun(reading, pieces)
            yield Answer(path, reading, self._rows(reading, first, pieces))

    async def _rows(
        self, reading: Reading, first: list[Row], pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[Row]:
        for row in first:
            yield row
        with _telling(self.url):
            reading.check()
            async for piece in pieces:
                for row in reading.take(piece):
                    yield row
                reading.check()
            for row in reading.end():
                yield row

    def _client(self, http2: bool) -> httpx.AsyncClient:
        plain = self.url.startswith("http:")
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls if self._tls is not None else True,
            http1=not (http2 and plain),  # plain and HTTP/2 alone is prior knowledge
            http2=http2,
            trust_env=False,
            socket_options=_KEEP_ALIVE,
        )
        quiet = httpx.Timeout(None, connect=min(5.0, self._begin), pool=5.0)
        return httpx.AsyncClient(
            base_url=self.url, transport=transport, auth=self._auth, timeout=quiet, trust_env=False
        )

    async def _close_query(self, answer: Answer) -> None:
        """As the reference has it. Closing the connection, which follows, ends it as well."""
        if not answer.columns.query or answer.path != "/query-stream":
            return
        body = orjson.dumps({"queryId": answer.columns.query})
        with contextlib.suppress(httpx.HTTPError, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE), self._client(True) as client:
                closing = client.stream(
                    "POST", "/close-query", content=body, headers=_headers("*/*")
                )
                async with closing:
                    pass  # whatever it says


class _NotThere(Exception):
    """The server has no /query-stream, or speaks no HTTP/2. sure: it said so; otherwise the
    connection broke, which another one need not do."""

    def __init__(self, why: str, *, sure: bool = False) -> None:
        super().__init__(why)
        self.sure = sure


def _headers(accept: str) -> Mapping[str, str]:
    # identity: a row must not wait in a compressor for more of them
    return {
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Content-Type": OLD if accept == OLD else "application/json",
    }


@contextlib.contextmanager
def _telling(url: str, http2: bool = False) -> Any:
    """httpx's errors as ours. http2: one before any answer may be of a server without it."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise KsqlAway(f"{url} cannot be reached: {_said(error)}") from None
    except (httpx.HTTPError, OSError, Garbled) as error:
        kind: type[Exception] = _NotThere if http2 else KsqlAway
        raise kind(f"{url} broke off: {_said(error)}") from None
    except TimeoutError:
        raise KsqlAway(f"{url} did not begin the query in time") from None


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _accepted(response: httpx.Response, http2: bool) -> None:
    """Raises KsqlError with what the server says, _NotThere."""
    if response.status_code == 200:
        if http2 and response.http_version != "HTTP/2":
            raise _NotThere(f"it speaks {response.http_version}", sure=True)
        return
    body = await _beginning(response)
    told = _object(body)
    found = refusal(told) if told is not None else None
    if found is None and http2 and response.status_code in _NO_SUCH_PATH:
        raise _NotThere(f"{response.status_code}", sure=True)
    raise found or KsqlError(
        f"ksqlDB answers {response.status_code} {body[:200].decode(errors='replace')}".strip(),
        response.status_code * 100,
    )


async def _beginning(response: httpx.Response) -> bytes:
    """Return what a refusal says, of a body of any length."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > LONGEST_REFUSAL:
            break
    return bytes(body)


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return told if isinstance(told, dict) else None


async def _begun(reading: Reading, pieces: AsyncIterator[bytes]) -> list[Row]:
    """Reads until the columns are known; the rows that came with them."""
    async for piece in pieces:
        rows = reading.take(piece)
        if reading.columns is not None:
            return rows
    rows = reading.end()
    if reading.columns is None:
        raise Garbled("the answer was over before it said what the columns are")
    return rows
