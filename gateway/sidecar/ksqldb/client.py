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

from .rows import Columns, KsqlError, KsqlProtocolError, KsqlRow, ResponseParser, parse_error

log = logging.getLogger(__name__)

DELIMITED = "application/vnd.ksqlapi.delimited.v1"
KSQL_V1_TYPE = "application/vnd.ksql.v1+json"
BEGIN_TIMEOUT_S = 30.0  # seconds until a query says what its columns are: ksqlDB plans it first
MAX_ERROR_BYTES = 1 << 20  # bytes of an answer that is no 200
CLOSE_TIMEOUT_S = 2.0  # seconds for /close-query, which is a courtesy
FALLBACK_S = 600.0  # seconds after which a server that had no /query-stream is asked for it again
OFFSET_RESET_PROPERTY = "auto.offset.reset"
TABLE_SCAN_PROPERTY = "ksql.query.pull.table.scan.enabled"

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


class KsqlUnavailable(Exception):
    """No connection, no answer in time, or an answer that was cut."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """properties: as ksqlDB has them, each a text or a number, such as `auto.offset.reset`."""

    sql: str
    properties: Mapping[str, Any] = field(default_factory=dict)


def build_query(
    sql: str,
    properties: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    table_scan: bool | None = None,
) -> QueryRequest:
    """offset: earliest or latest, where a push query begins. table_scan: whether a pull query may
    read a whole table. Both stand over the same property."""
    named: dict[str, Any] = dict(properties or {})
    if offset is not None:
        named[OFFSET_RESET_PROPERTY] = offset
    if table_scan is not None:
        named[TABLE_SCAN_PROPERTY] = table_scan
    text = sql.strip()
    return QueryRequest(text if text.endswith(";") else f"{text};", named)


class QueryResult:
    """Rows of a query that has begun.

    columns: what is in them. path: `/query-stream` or `/query`.
    """

    def __init__(self, path: str, parser: ResponseParser, rows: AsyncIterator[KsqlRow]) -> None:
        self.path = path
        self._parser = parser
        self._rows = rows

    @property
    def columns(self) -> Columns:
        return self._parser.columns or Columns(())

    @property
    def final_message(self) -> str | None:
        """The server's last word, once the rows are over."""
        return self._parser.final_message

    def __aiter__(self) -> AsyncIterator[KsqlRow]:
        return self._rows


class KsqlClient:
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
        begin_timeout_s: float = BEGIN_TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/")
        self._auth = None if user is None else httpx.BasicAuth(user, password or "")
        self._tls = tls
        self._begin_timeout_s = begin_timeout_s
        self._fallback_until = 0.0

    @asynccontextmanager
    async def stream(self, query: QueryRequest) -> AsyncGenerator[QueryResult]:
        """The query while it is entered, closed at the server when it is left.

        Entering, and each row, raise KsqlError where ksqlDB refuses, KsqlAway where it cannot be
        asked, or goes away.
        """
        async with contextlib.AsyncExitStack() as stack:
            answer = await self._open(query, stack)
            try:
                yield answer
            finally:
                await self._close_query(answer)

    async def _open(self, query: QueryRequest, stack: contextlib.AsyncExitStack) -> QueryResult:
        now = asyncio.get_running_loop().time
        if now() >= self._fallback_until:
            new = stack.enter_async_context(self._open_path("/query-stream", query, http2=True))
            try:
                return await new
            except _QueryStreamMissing as why:
                log.debug("%s has no /query-stream (%s); asked by /query", self.url, why)
                if why.is_certain:
                    self._fallback_until = now() + FALLBACK_S
        return await stack.enter_async_context(self._open_path("/query", query, http2=False))

    @asynccontextmanager
    async def _open_path(
        self, path: str, query: QueryRequest, *, http2: bool
    ) -> AsyncGenerator[QueryResult]:
        sql, properties = ("sql", "properties") if http2 else ("ksql", "streamsProperties")
        body = orjson.dumps({sql: query.sql, properties: dict(query.properties)})
        reading = ResponseParser()
        async with self._create_client(http2) as client, contextlib.AsyncExitStack() as stack:
            with _translate_errors(self.url, http2):
                async with asyncio.timeout(self._begin_timeout_s):
                    request = client.stream(
                        "POST",
                        path,
                        content=body,
                        headers=_build_headers(DELIMITED if http2 else KSQL_V1_TYPE),
                    )
                    response = await stack.enter_async_context(request)
                    await _check_response(response, http2)
                    pieces = response.aiter_raw()
                    first = await _read_columns(reading, pieces)
            yield QueryResult(path, reading, self._iter_rows(reading, first, pieces))

    async def _iter_rows(
        self, parser: ResponseParser, first: list[KsqlRow], pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[KsqlRow]:
        for row in first:
            yield row
        with _translate_errors(self.url):
            parser.raise_pending()
            async for piece in pieces:
                for row in parser.feed(piece):
                    yield row
                parser.raise_pending()
            for row in parser.feed_eof():
                yield row

    def _create_client(self, http2: bool) -> httpx.AsyncClient:
        plain = self.url.startswith("http:")
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls if self._tls is not None else True,
            http1=not (http2 and plain),  # plain and HTTP/2 alone is prior knowledge
            http2=http2,
            trust_env=False,
            socket_options=_KEEP_ALIVE,
        )
        quiet = httpx.Timeout(None, connect=min(5.0, self._begin_timeout_s), pool=5.0)
        return httpx.AsyncClient(
            base_url=self.url, transport=transport, auth=self._auth, timeout=quiet, trust_env=False
        )

    async def _close_query(self, answer: QueryResult) -> None:
        """As the reference has it. Closing the connection, which follows, ends it as well."""
        if not answer.columns.query_id or answer.path != "/query-stream":
            return
        body = orjson.dumps({"queryId": answer.columns.query_id})
        with contextlib.suppress(httpx.HTTPError, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._create_client(True) as client:
                closing = client.stream(
                    "POST", "/close-query", content=body, headers=_build_headers("*/*")
                )
                async with closing:
                    pass  # whatever it says


class _QueryStreamMissing(Exception):
    """The server has no /query-stream, or speaks no HTTP/2. sure: it said so; otherwise the
    connection broke, which another one need not do."""

    def __init__(self, why: str, *, is_certain: bool = False) -> None:
        super().__init__(why)
        self.is_certain = is_certain


def _build_headers(accept: str) -> Mapping[str, str]:
    # identity: a row must not wait in a compressor for more of them
    return {
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Content-Type": KSQL_V1_TYPE if accept == KSQL_V1_TYPE else "application/json",
    }


@contextlib.contextmanager
def _translate_errors(url: str, http2: bool = False) -> Any:
    """httpx's errors as ours. http2: one before any answer may be of a server without it."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise KsqlUnavailable(f"{url} cannot be reached: {_describe(error)}") from None
    except (httpx.HTTPError, OSError, KsqlProtocolError) as error:
        kind: type[Exception] = _QueryStreamMissing if http2 else KsqlUnavailable
        raise kind(f"{url} broke off: {_describe(error)}") from None
    except TimeoutError:
        raise KsqlUnavailable(f"{url} did not begin the query in time") from None


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _check_response(response: httpx.Response, http2: bool) -> None:
    """Raises KsqlError with what the server says, _NotThere."""
    if response.status_code == 200:
        if http2 and response.http_version != "HTTP/2":
            raise _QueryStreamMissing(f"it speaks {response.http_version}", is_certain=True)
        return
    body = await _read_error_body(response)
    told = _parse_object(body)
    found = parse_error(told) if told is not None else None
    if found is None and http2 and response.status_code in _NO_SUCH_PATH:
        raise _QueryStreamMissing(f"{response.status_code}", is_certain=True)
    raise found or KsqlError(
        f"ksqlDB answers {response.status_code} {body[:200].decode(errors='replace')}".strip(),
        response.status_code * 100,
    )


async def _read_error_body(response: httpx.Response) -> bytes:
    """Return what a refusal says, of a body of any length."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_ERROR_BYTES:
            break
    return bytes(body)


def _parse_object(body: bytes) -> Mapping[str, Any] | None:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return told if isinstance(told, dict) else None


async def _read_columns(parser: ResponseParser, pieces: AsyncIterator[bytes]) -> list[KsqlRow]:
    """Reads until the columns are known; the rows that came with them."""
    async for piece in pieces:
        rows = parser.feed(piece)
        if parser.columns is not None:
            return rows
    rows = parser.feed_eof()
    if parser.columns is None:
        raise KsqlProtocolError("the answer was over before it said what the columns are")
    return rows
