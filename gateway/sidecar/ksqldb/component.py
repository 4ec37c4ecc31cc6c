"""The part `ksqldb`: queries for whoever asks, and configured ones whose rows reach the back end.

`POST /ksqldb/active` answers with the rows as a JSON array, each an object by column name: those of
a pull query, or what a push query has until `limit` or `timeout`. To `Accept: application/x-ndjson`
it answers with a row a line as they come, until the client leaves; what goes wrong behind the first
line is a line of its own, a Status.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.sidecar.component import NotReady
from gateway.sidecar.context import Context
from gateway.sidecar.http.authorization import READ_SCOPE
from gateway.sidecar.http.body import read_body
from gateway.sidecar.http.status import (
    NO_STORE_HEADERS,
    StatusError,
    build_json_response,
    build_status,
    describe_error,
)
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .client import KsqlClient, KsqlUnavailable, QueryRequest, QueryResult, build_query
from .push import PushQuery
from .rows import KsqlError, RowError, write_row

NDJSON = "application/x-ndjson"
MAX_BODY_BYTES = 256 << 10  # bytes of a request
MAX_ARRAY_BYTES = 32 << 20  # bytes of an answer that is one array
TOO_MANY_ROWS_MESSAGE = (
    f"the rows are over {MAX_ARRAY_BYTES >> 20} MiB; add a limit, or accept {NDJSON}"
)
PUSH_TIMEOUT_MS = 10_000  # ms that a push query is listened to, where the request says nothing
DEFAULT_PUSH_ROWS = 1000  # rows of it


class KsqldbComponent:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.ksqldb
        assert settings is not None
        self._context = context
        self._operation = context.spec["ksqldbActive"]
        password = settings.password
        self._ksql = KsqlClient(
            settings.url,
            user=settings.username,
            password=None if password is None else password.get_secret_value(),
            tls=ssl.create_default_context(cafile=settings.trust and str(settings.trust)),
            begin_timeout_s=settings.begin_timeout,
        )
        self.push_queries = [
            PushQuery(self._ksql, each, each.backend or settings.backend, settings.reconnect)
            for each in settings.queries
        ]
        self.routes: Sequence[BaseRoute] = [
            Route("/ksqldb/active", self._run_query, methods=["POST"], name="ksqldbActive")
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for push in self.push_queries:
                group.create_task(push.run())
            await asyncio.Event().wait()

    async def check_ready(self) -> None:
        for push in self.push_queries:
            if push.failure is not None:
                raise NotReady("ksqldb", f"query {push.settings.name}: {push.failure}")

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Adds what a scrape wants to know."""
        for push in self.push_queries:
            name = push.settings.name
            samples.add(catalog.KSQLDB_QUERY_RUNNING, float(push.failure is None), name)
            samples.add(catalog.KSQLDB_QUERY_BEGUN, push.begin_count, name)
            for outcome, rows in push.delivery.outcomes.items():
                samples.add(catalog.KSQLDB_ROWS, rows, name, outcome)

    async def _run_query(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        given = self._operation.parse_parameters(request)
        data = await read_body(request, MAX_BODY_BYTES)
        body = self._operation.parse_body(data, request.headers.get("content-type"))
        wanted = _parse_query(body)
        push = body.get("queryType", "pull") == "push"
        stack = AsyncExitStack()
        try:
            rows = await stack.enter_async_context(self._ksql.stream(wanted))
        except (KsqlError, KsqlUnavailable) as error:
            raise to_status_error(error) from error
        if NDJSON in request.headers.get("accept", ""):
            limit, timeout = given.get("limit"), _to_seconds(given.get("timeout"))
            return NdjsonRowsResponse(
                _iter_rows(rows, limit, timeout, self._context.draining), stack
            )
        limit = given.get("limit", DEFAULT_PUSH_ROWS if push else None)
        timeout = _to_seconds(given.get("timeout", PUSH_TIMEOUT_MS if push else None))
        async with stack:
            return await _build_array_response(
                _iter_rows(rows, limit, timeout, self._context.draining), push
            )


def to_status_error(error: KsqlError | KsqlUnavailable) -> StatusError:
    """As a Status: what ksqlDB says of the query is the caller's, the rest is not."""
    if isinstance(error, KsqlUnavailable):
        return StatusError(503, f"{error}; try again", code="KSQLDB_UNAVAILABLE", retry_after=1.0)
    if isinstance(error, RowError):
        return StatusError(error.status, str(error), code="KSQLDB_ROW")
    if error.status in (400, 404, 409, 422):
        return StatusError(error.status, str(error), code=f"KSQLDB_{error.code}")
    if error.status == 403:
        what = f"ksqlDB does not allow the sidecar that: {error}; grant it to its user"
        return StatusError(403, what, code=f"KSQLDB_{error.code}")
    what = f"ksqlDB: {error}"
    if error.status == 401:
        what = f"{what}; correct sidecar.ksqldb.username and password"
    return StatusError(503, what, code=f"KSQLDB_{error.code}", retry_after=1.0)


def _parse_query(body: dict[str, Any]) -> QueryRequest:
    return build_query(
        body["query"],
        body.get("properties"),
        offset=body.get("offset"),
        table_scan=body.get("tableScanEnable"),
    )


def _to_seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _iter_rows(
    rows: QueryResult, limit: int | None, seconds: float | None, draining: asyncio.Event
) -> AsyncIterator[bytes]:
    """Rows as JSON, until so many, so many seconds, or the sidecar's end."""
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    over = asyncio.ensure_future(draining.wait())
    source, count = aiter(rows), 0
    coming: asyncio.Future[Any] | None = None
    try:
        while limit is None or count < limit:
            coming = asyncio.ensure_future(anext(source))
            left = None if until is None else max(0.0, until - loop.time())
            await asyncio.wait({coming, over}, timeout=left, return_when="FIRST_COMPLETED")
            if not coming.done():
                return
            try:
                row = coming.result()
            except StopAsyncIteration:
                return
            yield write_row(row)
            count += 1
    finally:
        over.cancel()
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait({coming})


async def _build_array_response(rows: AsyncIterator[bytes], push: bool) -> Response:
    made: list[bytes] = []
    size = 0
    try:
        async for row in rows:
            made.append(row)
            size += len(row) + 1
            if size > MAX_ARRAY_BYTES:
                raise StatusError(413, TOO_MANY_ROWS_MESSAGE)
    except (KsqlError, KsqlUnavailable) as error:
        raise to_status_error(error) from error
    return build_json_response(b"[" + b",".join(made) + b"]")


class NdjsonRowsResponse(StreamingResponse):
    """A row a line. stack: left when the answer is over, also where its client never took it."""

    def __init__(self, rows: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(_iter_lines(rows), headers=dict(NO_STORE_HEADERS), media_type=NDJSON)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _iter_lines(rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for row in rows:
            yield row + b"\n"
    except (KsqlError, KsqlUnavailable) as error:
        yield orjson.dumps(build_status(*describe_error(to_status_error(error)))) + b"\n"
