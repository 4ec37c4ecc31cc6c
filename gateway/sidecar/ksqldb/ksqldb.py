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

from gateway.sidecar.context import Context
from gateway.sidecar.http.body import read
from gateway.sidecar.http.scope import READ
from gateway.sidecar.http.status import UNCACHED, Refusal, answer, status_of, told
from gateway.sidecar.part import Unready
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .client import Answer, Ksql, KsqlAway, Query, query
from .push import Push
from .rows import KsqlError, RowError, write_row

NDJSON = "application/x-ndjson"
LARGEST = 256 << 10  # bytes of a request
MOST = 32 << 20  # bytes of an answer that is one array
TOO_MANY = f"the rows are over {MOST >> 20} MiB; add a limit, or accept {NDJSON}"
PUSH_TIMEOUT = 10_000  # ms that a push query is listened to, where the request says nothing
PUSH_LIMIT = 1000  # rows of it


class KsqlDb:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.ksqldb
        assert settings is not None
        self._context = context
        self._operation = context.spec["ksqldbActive"]
        password = settings.password
        self._ksql = Ksql(
            settings.url,
            user=settings.username,
            password=None if password is None else password.get_secret_value(),
            tls=ssl.create_default_context(cafile=settings.trust and str(settings.trust)),
            begin=settings.begin_timeout,
        )
        self.pushes = [
            Push(self._ksql, each, each.backend or settings.backend, settings.reconnect)
            for each in settings.queries
        ]
        self.routes: Sequence[BaseRoute] = [
            Route("/ksqldb/active", self._active, methods=["POST"], name="ksqldbActive")
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for push in self.pushes:
                group.create_task(push.run())
            await asyncio.Event().wait()

    async def check(self) -> None:
        for push in self.pushes:
            if push.broken is not None:
                raise Unready("ksqldb", f"query {push.settings.name}: {push.broken}")

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        for push in self.pushes:
            name = push.settings.name
            figures.add(catalog.KSQLDB_RUNNING, float(push.broken is None), name)
            figures.add(catalog.KSQLDB_BEGUN, push.begun, name)
            for outcome, rows in push.delivery.outcomes.items():
                figures.add(catalog.KSQLDB_ROWS, rows, name, outcome)

    async def _active(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        given = self._operation.parameters(request)
        data = await read(request, LARGEST)
        body = self._operation.body(data, request.headers.get("content-type"))
        wanted = _wanted(body)
        push = body.get("queryType", "pull") == "push"
        stack = AsyncExitStack()
        try:
            rows = await stack.enter_async_context(self._ksql.ask(wanted))
        except (KsqlError, KsqlAway) as error:
            raise refusal(error) from error
        if NDJSON in request.headers.get("accept", ""):
            limit, timeout = given.get("limit"), _seconds(given.get("timeout"))
            return Lines(_within(rows, limit, timeout, self._context.draining), stack)
        limit = given.get("limit", PUSH_LIMIT if push else None)
        timeout = _seconds(given.get("timeout", PUSH_TIMEOUT if push else None))
        async with stack:
            return await _array(_within(rows, limit, timeout, self._context.draining), push)


def refusal(error: KsqlError | KsqlAway) -> Refusal:
    """As a Status: what ksqlDB says of the query is the caller's, the rest is not."""
    if isinstance(error, KsqlAway):
        return Refusal(503, f"{error}; try again", code="KSQLDB_UNAVAILABLE", retry_after=1.0)
    if isinstance(error, RowError):
        return Refusal(error.status, str(error), code="KSQLDB_ROW")
    if error.status in (400, 404, 409, 422):
        return Refusal(error.status, str(error), code=f"KSQLDB_{error.code}")
    if error.status == 403:
        what = f"ksqlDB does not allow the sidecar that: {error}; grant it to its user"
        return Refusal(403, what, code=f"KSQLDB_{error.code}")
    what = f"ksqlDB: {error}"
    if error.status == 401:
        what = f"{what}; correct sidecar.ksqldb.username and password"
    return Refusal(503, what, code=f"KSQLDB_{error.code}", retry_after=1.0)


def _wanted(body: dict[str, Any]) -> Query:
    return query(
        body["query"],
        body.get("properties"),
        offset=body.get("offset"),
        table_scan=body.get("tableScanEnable"),
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _within(
    rows: Answer, limit: int | None, seconds: float | None, draining: asyncio.Event
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


async def _array(rows: AsyncIterator[bytes], push: bool) -> Response:
    made: list[bytes] = []
    size = 0
    try:
        async for row in rows:
            made.append(row)
            size += len(row) + 1
            if size > MOST:
                raise Refusal(413, TOO_MANY)
    except (KsqlError, KsqlAway) as error:
        raise refusal(error) from error
    return answer(b"[" + b",".join(made) + b"]")


class Lines(StreamingResponse):
    """A row a line. stack: left when the answer is over, also where its client never took it."""

    def __init__(self, rows: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(_lines(rows), headers=dict(UNCACHED), media_type=NDJSON)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _lines(rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for row in rows:
            yield row + b"\n"
    except (KsqlError, KsqlAway) as error:
        yield orjson.dumps(told(*status_of(refusal(error)))) + b"\n"
