"""Send push and pull queries to a ksqlDB server, over HTTP/2 if the server speaks it.

`POST /query-stream` needs HTTP/2: by prior knowledge without TLS, by ALPN with it. A server without
that path, or without HTTP/2, gets `POST /query`, which every version has.

Every query has a connection of its own. Closing it ends the query at servers of all versions, and a
query that is not read does not block others that share a flow control window (httpcore returns the
bytes of an unread stream neither to the stream's window nor to the connection's). A client that
does not read holds the server back: only requested rows are kept here.
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

from gateway.http_client import create_closed_jar

from .rows import Columns, KsqlError, KsqlProtocolError, KsqlRow, ResponseParser, parse_error

log = logging.getLogger(__name__)

DELIMITED = "application/vnd.ksqlapi.delimited.v1"
KSQL_V1_TYPE = "application/vnd.ksql.v1+json"
BEGIN_TIMEOUT_S = 30.0  # for the columns of a query, which ksqlDB has to plan first
MAX_ERROR_BYTES = 1 << 20  # of a response that is no 200
CLOSE_TIMEOUT_S = 2.0  # for /close-query, which is optional
FALLBACK_S = 600.0  # before a server without /query-stream is asked for it again
OFFSET_RESET_PROPERTY = "auto.offset.reset"
TABLE_SCAN_PROPERTY = "ksql.query.pull.table.scan.enabled"

_NO_SUCH_PATH = frozenset({404, 405, 501, 505})
# A push query may be silent for days, so the kernel probes whether the peer is still there. A host
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
    """ksqlDB cannot be reached, does not answer in time, or broke off its answer."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A query. `sql` ends in a semicolon, `properties` are ksqlDB's own."""

    sql: str
    properties: Mapping[str, Any] = field(default_factory=dict)


def build_query(
    sql: str,
    properties: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    table_scan: bool | None = None,
) -> QueryRequest:
    """Build a query. `offset` (`earliest`, `latest`) and `table_scan` override the properties."""
    merged: dict[str, Any] = dict(properties or {})
    if offset is not None:
        merged[OFFSET_RESET_PROPERTY] = offset
    if table_scan is not None:
        merged[TABLE_SCAN_PROPERTY] = table_scan
    statement = sql.strip()
    return QueryRequest(statement if statement.endswith(";") else f"{statement};", merged)


@dataclass(frozen=True, slots=True)
class QueryResult:
    path: str
    _parser: ResponseParser
    _rows: AsyncIterator[KsqlRow]

    @property
    def columns(self) -> Columns:
        return self._parser.columns or Columns(())

    @property
    def final_message(self) -> str | None:
        """Return the server's last message, once the rows are over; None if there is none."""
        return self._parser.final_message

    def __aiter__(self) -> AsyncIterator[KsqlRow]:
        return self._rows


class KsqlClient:
    """Send queries to a ksqlDB server, or to several behind one address.

    The component creates it. It holds no connection between queries.
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
        """Run a query while the context is entered, and close it at the server afterwards.

        Entering, and reading each row, may raise KsqlError (the query is refused, a row is
        unreadable) or KsqlUnavailable.
        """
        async with contextlib.AsyncExitStack() as stack:
            result = await self._open(query, stack)
            try:
                yield result
            finally:
                await self._close_query(result)

    async def _open(self, query: QueryRequest, stack: contextlib.AsyncExitStack) -> QueryResult:
        now = asyncio.get_running_loop().time
        if now() >= self._fallback_until:
            opening = stack.enter_async_context(self._open_path("/query-stream", query, http2=True))
            try:
                return await opening
            except _QueryStreamMissing as exc:
                log.debug("%s has no /query-stream (%s); asked by /query", self.url, exc)
                if exc.is_certain:
                    self._fallback_until = now() + FALLBACK_S
        return await stack.enter_async_context(self._open_path("/query", query, http2=False))

    @asynccontextmanager
    async def _open_path(
        self, path: str, query: QueryRequest, *, http2: bool
    ) -> AsyncGenerator[QueryResult]:
        sql_name, properties_name = (
            ("sql", "properties") if http2 else ("ksql", "streamsProperties")
        )
        body = orjson.dumps({sql_name: query.sql, properties_name: dict(query.properties)})
        parser = ResponseParser()
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
                    chunks = response.aiter_raw()
                    first_rows = await _read_columns(parser, chunks)
            yield QueryResult(path, parser, self._iter_rows(parser, first_rows, chunks))

    async def _iter_rows(
        self, parser: ResponseParser, first_rows: list[KsqlRow], chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[KsqlRow]:
        for row in first_rows:
            yield row
        with _translate_errors(self.url):
            parser.raise_pending()
            async for chunk in chunks:
                for row in parser.feed(chunk):
                    yield row
                parser.raise_pending()
            for row in parser.feed_eof():
                yield row

    def _create_client(self, http2: bool) -> httpx.AsyncClient:
        plain = self.url.startswith("http:")
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls if self._tls is not None else True,
            http1=not (http2 and plain),  # without TLS, HTTP/2 alone means prior knowledge
            http2=http2,
            trust_env=False,
            socket_options=_KEEP_ALIVE,
        )
        # No timeout of reads: a push query may be silent for days.
        timeout = httpx.Timeout(None, connect=min(5.0, self._begin_timeout_s), pool=5.0)
        return httpx.AsyncClient(
            base_url=self.url,
            transport=transport,
            auth=self._auth,
            cookies=create_closed_jar(),
            timeout=timeout,
            trust_env=False,
        )

    async def _close_query(self, result: QueryResult) -> None:
        """Close a query as the reference says; closing the connection ends it as well."""
        if not result.columns.query_id or result.path != "/query-stream":
            return
        body = orjson.dumps({"queryId": result.columns.query_id})
        with contextlib.suppress(httpx.HTTPError, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._create_client(True) as client:
                closing = client.stream(
                    "POST", "/close-query", content=body, headers=_build_headers("*/*")
                )
                async with closing:
                    pass  # whatever the server answers


class _QueryStreamMissing(Exception):
    """The server has no /query-stream, or no HTTP/2.

    Without `is_certain`, the connection broke, which the next one need not do.
    """

    def __init__(self, reason: str, *, is_certain: bool = False) -> None:
        super().__init__(reason)
        self.is_certain = is_certain


def _build_headers(accept: str) -> Mapping[str, str]:
    # identity: a row must not wait in a compressor for later ones
    return {
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Content-Type": KSQL_V1_TYPE if accept == KSQL_V1_TYPE else "application/json",
    }


@contextlib.contextmanager
def _translate_errors(url: str, http2: bool = False) -> Any:
    """Convert httpx's errors. With `http2`, a server may have broken off for lack of HTTP/2."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise KsqlUnavailable(f"{url} cannot be reached: {_describe(error)}") from None
    except (httpx.HTTPError, OSError, KsqlProtocolError) as error:
        error_class: type[Exception] = _QueryStreamMissing if http2 else KsqlUnavailable
        raise error_class(f"{url} broke off: {_describe(error)}") from None
    except TimeoutError:
        raise KsqlUnavailable(f"{url} did not start the query in time") from None


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _check_response(response: httpx.Response, http2: bool) -> None:
    """Raise KsqlError, or _QueryStreamMissing, unless a response is a 200."""
    if response.status_code == 200:
        if http2 and response.http_version != "HTTP/2":
            raise _QueryStreamMissing(f"it speaks {response.http_version}", is_certain=True)
        return
    body = await _read_error_body(response)
    element = _parse_object(body)
    error = parse_error(element) if element is not None else None
    if error is None and http2 and response.status_code in _NO_SUCH_PATH:
        raise _QueryStreamMissing(f"{response.status_code}", is_certain=True)
    raise error or KsqlError(
        f"ksqlDB answers {response.status_code} {body[:200].decode(errors='replace')}".strip(),
        response.status_code * 100,
    )


async def _read_error_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ERROR_BYTES:
            break
    return bytes(body)


def _parse_object(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


async def _read_columns(parser: ResponseParser, chunks: AsyncIterator[bytes]) -> list[KsqlRow]:
    """Read until the columns are known, and return the rows that came with them."""
    async for chunk in chunks:
        rows = parser.feed(chunk)
        if parser.columns is not None:
            return rows
    rows = parser.feed_eof()
    if parser.columns is None:
        raise KsqlProtocolError("the answer ended before it said what the columns are")
    return rows
