"""Answer queries of clients, and run the configured ones.

`POST /ksqldb/active` answers with the rows as a JSON array, each an object by column name: all rows
of a pull query, or those of a push query until `limit` or `timeout`. With `Accept:
application/x-ndjson` it answers with a row a line as they come, until the client disconnects; an
error after the first line is a line of its own, a Status.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from functools import partial
from sys import getsizeof
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.client_memory import ClientMemory, GrowingReservation, HeldPart
from gateway.config.types.address import create_trusting_context
from gateway.sidecar.context import Component, Context
from gateway.sidecar.http.middleware import READ_SCOPE
from gateway.sidecar.http.requests import check_lifetime, wait_for_disconnect, wait_for_expiry
from gateway.sidecar.http.status import (
    NO_STORE_HEADERS,
    NotReady,
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
MAX_BODY_BYTES = 256 << 10
ROW_OUTCOMES = ("delivered", "dropped")
MAX_ARRAY_BYTES = 32 << 20  # of a response that is one array
TOO_MANY_ROWS_MESSAGE = (
    f"the rows are over {MAX_ARRAY_BYTES >> 20} MiB; add a limit, or accept {NDJSON}"
)
# The limits of a push query where the request has none.
PUSH_TIMEOUT_MS = 10_000
DEFAULT_PUSH_ROWS = 1000


class KsqldbComponent(Component):
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
            tls=create_trusting_context(settings.ca),
            begin_timeout_s=settings.begin_timeout,
        )
        self.push_queries = [
            PushQuery(self._ksql, query, query.backend or settings.backend, settings.reconnect)
            for query in settings.queries
        ]
        self.routes = [
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
        for push in self.push_queries:
            name = push.settings.name
            samples.add(catalog.KSQLDB_QUERY_RUNNING, float(push.failure is None), name)
            samples.add(catalog.KSQLDB_QUERY_BEGUN, push.begin_count, name)
            for outcome, rows in push.delivery.outcomes.items():
                samples.add(catalog.KSQLDB_ROWS, rows, name, outcome)
            samples.add_zeros(catalog.KSQLDB_ROWS, [name], ROW_OUTCOMES)

    async def _run_query(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        parameters = self._operation.parse_parameters(request)
        body = await self._operation.read_body(request, MAX_BODY_BYTES)
        query = _parse_query(body)
        is_push = body.get("queryType", "pull") == "push"
        # The query is left when the stack is closed: here for an array, by the response for lines.
        stack = AsyncExitStack()
        try:
            rows = await stack.enter_async_context(self._ksql.stream(query))
        except (KsqlError, KsqlUnavailable) as error:
            raise to_status_error(error) from error
        ends: list[Callable[[], Coroutine[Any, Any, object]]] = [
            self._context.draining.wait, partial(wait_for_expiry, request.scope)
        ]  # fmt: skip
        check = partial(check_lifetime, request.scope)
        if NDJSON in request.headers.get("accept", ""):
            limit, timeout = parameters.get("limit"), _to_seconds(parameters.get("timeout"))
            limited_rows = _iter_rows(rows, limit, timeout, *ends, check_lifetime=check)
            return NdjsonRowsResponse(limited_rows, stack)
        limit = parameters.get("limit", DEFAULT_PUSH_ROWS if is_push else None)
        timeout = _to_seconds(parameters.get("timeout", PUSH_TIMEOUT_MS if is_push else None))
        ends.append(partial(wait_for_disconnect, request.scope, request.receive))
        limited_rows = _iter_rows(rows, limit, timeout, *ends, check_lifetime=check)
        async with stack, aclosing(limited_rows):
            return await _build_array_response(limited_rows, self._context.client_memory)


def to_status_error(error: KsqlError | KsqlUnavailable) -> StatusError:
    """Convert an error of ksqlDB: a 4xx if the client can correct its query, else a 503."""
    if isinstance(error, KsqlUnavailable):
        return StatusError(503, f"{error}; try again", code="KSQLDB_UNAVAILABLE", retry_after=1.0)
    if isinstance(error, RowError):
        return StatusError(error.status, str(error), code="KSQLDB_ROW")
    if error.status in (400, 404, 409, 422):
        return StatusError(error.status, str(error), code=f"KSQLDB_{error.code}")
    if error.status == 403:
        detail = f"ksqlDB does not allow that to the sidecar: {error}; grant it to its user"
        return StatusError(403, detail, code=f"KSQLDB_{error.code}")
    detail = f"ksqlDB: {error}"
    if error.status == 401:
        detail = f"{detail}; correct sidecar.ksqldb.username and password"
    return StatusError(503, detail, code=f"KSQLDB_{error.code}", retry_after=1.0)


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
    rows: QueryResult,
    limit: int | None,
    timeout_s: float | None,
    *ends: Callable[[], Coroutine[Any, Any, object]],
    check_lifetime: Callable[[], None],
) -> AsyncGenerator[bytes]:
    """Yield rows as JSON until the limit or the time is over, or one of `ends` returns.

    `check_lifetime` raises StatusError 401 once the token has expired.
    """
    loop = asyncio.get_running_loop()
    deadline = math.inf if timeout_s is None else loop.time() + timeout_s
    ending = [asyncio.create_task(end()) for end in ends]
    source, count = aiter(rows), 0
    next_row: asyncio.Future[Any] | None = None
    try:
        while limit is None or count < limit:
            # A task for each row: a timeout around `anext` would cancel the generator, which could
            # not go on afterwards.
            next_row = asyncio.ensure_future(anext(source))
            remaining_s = max(0.0, deadline - loop.time())
            await asyncio.wait(
                [next_row, *ending],
                timeout=None if remaining_s == math.inf else remaining_s,
                return_when="FIRST_COMPLETED",
            )
            check_lifetime()
            if not next_row.done():
                return
            try:
                row = next_row.result()
            except StopAsyncIteration:
                return
            yield write_row(row)
            count += 1
    finally:
        for task in ending:
            task.cancel()
        if next_row is not None and not next_row.done():
            next_row.cancel()
            await asyncio.wait({next_row})


async def _build_array_response(
    rows: AsyncIterator[bytes], client_memory: ClientMemory
) -> Response:
    items: list[bytes] = []
    size = 0
    with GrowingReservation(client_memory, HeldPart.RESPONSES) as held:
        try:
            async for row in rows:
                items.append(row)
                held.grow(2 * getsizeof(row))  # as a row, and in the response
                size += len(row) + 1
                if size > MAX_ARRAY_BYTES:
                    raise StatusError(413, TOO_MANY_ROWS_MESSAGE)
        except (KsqlError, KsqlUnavailable) as error:
            raise to_status_error(error) from error
        return build_json_response(b"[" + b",".join(items) + b"]")


class NdjsonRowsResponse(StreamingResponse):
    """Send a row a line, and end the query by closing the stack, also if nothing was received."""

    def __init__(self, rows: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(_iter_lines(rows), headers=dict(NO_STORE_HEADERS), media_type=NDJSON)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _iter_lines(rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield rows as lines, and an error as the last line: the status is sent by then."""
    try:
        async for row in rows:
            yield row + b"\n"
    except (KsqlError, KsqlUnavailable) as error:
        yield orjson.dumps(build_status(*describe_error(to_status_error(error)))) + b"\n"
    except StatusError as error:
        yield orjson.dumps(build_status(*describe_error(error))) + b"\n"
