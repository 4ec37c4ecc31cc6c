"""Keep a configured query running as long as the sidecar runs, and deliver its rows.

A push query has no offsets, so rows may be lost or repeated. When it is started again (after a
broken connection, an end by the server, a restart of the sidecar), `offset: latest` misses the rows
in between, and `earliest` repeats every row. Undelivered rows are lost with the process. Read a
stream that must not lose any from its topic, by a group.

Rows are delivered in batches, in order, one batch at a time.
A back end that is unavailable (it refuses connections, is too slow, or answers 401, 404, 429 or
5xx) is tried for ever: no row is skipped because of it, and meanwhile the query is held back at
ksqlDB. Only the status of a response counts, but all of it must arrive in time. A refused batch
(400, 409, 413, 422) is tried again a few times, then halved until the refused row is alone. That
row is logged, counted and dropped, as rows have no dead letters.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx

from gateway.config.sections.kafka import Reconnect
from gateway.config.sections.ksqldb import KsqlQuery, RowsBackend
from gateway.config.types.address import join_url
from gateway.core.delivery.verdict import BackendUnavailable
from gateway.core.log.recovery import Backoff, Cause
from gateway.sidecar.http.requests import CORRELATION_HEADER
from gateway.sidecar.reactive.backend import BackendResponse, create_http_client, post_json

from .client import KsqlClient, KsqlUnavailable, build_query
from .rows import KsqlError, RowError, write_row

log = logging.getLogger(__name__)

QUERY_HEADER = "X-Ksqldb-Query"
STEADY_AFTER_S = 10.0  # of running, after which the delay of retries starts small again


class PushQuery:
    """Run one configured query, and start it again whenever it ends.

    The component creates it and runs `run`. `failure` is None while the query is running.
    """

    def __init__(
        self, ksql: KsqlClient, settings: KsqlQuery, backend: RowsBackend, reconnect: Reconnect
    ) -> None:
        self.begin_count = 0
        self.failure: str | None = "it has not started yet"
        self.settings = settings
        self._ksql = ksql
        self._backend = backend
        self._url = httpx.URL(join_url(backend.host, backend.path))
        self._reconnect = reconnect
        self._client: httpx.AsyncClient
        self.delivery = RowDelivery(
            settings.name, self._post, settings.max_retries, reconnect.initial, reconnect.max
        )

    async def run(self) -> None:
        """Run until cancelled; a pull query until its rows are delivered."""
        limits = self.settings.batch
        batches = RowBatcher(limits.rows, limits.size, limits.linger)
        self._client = create_http_client()
        async with self._client, asyncio.TaskGroup() as group:
            group.create_task(self.delivery.run(batches))
            await self._run_queries(batches)
            batches.end()

    async def _run_queries(self, batches: RowBatcher) -> None:
        backoff = Backoff(self._reconnect.max, random.random, self._reconnect.initial)
        while True:
            started_at = asyncio.get_running_loop().time()
            try:
                reason = await self._run_once(batches)
                if self.settings.query_type == "pull":
                    self.failure = None
                    return
            except (KsqlError, KsqlUnavailable) as error:
                reason = str(error)
            # A query that ran for a while is no sign of a server that is down.
            if asyncio.get_running_loop().time() - started_at > STEADY_AFTER_S:
                backoff.reset()
            await self._wait_before_retry(reason, backoff.next_delay(Cause.CONNECTION))

    async def _run_once(self, batches: RowBatcher) -> str:
        settings = self.settings
        query = build_query(
            settings.query,
            settings.properties,
            offset=settings.offset,
            table_scan=settings.table_scan_enable,
        )
        async with self._ksql.stream(query) as result:
            self.begin_count += 1
            self.failure = None
            log.info(
                "query %s: started by %s (%.100s)",
                settings.name,
                result.path,
                result.columns.query_id,
            )
            async for row in result:
                try:
                    row_json = write_row(row)
                except RowError as error:
                    # The row is complete, so those after it can still be read.
                    self.delivery.skip_row(str(error))
                    continue
                await batches.put(row_json)
            return f"the server ended it ({result.final_message or 'without a message'})"

    async def _wait_before_retry(self, reason: str, delay: float) -> None:
        """Wait, and log why the query is started again; the same reason is not logged twice."""
        level = logging.DEBUG if reason == self.failure else logging.WARNING
        self.failure = reason
        log.log(level, "query %s: %s; starts again in %.1f s", self.settings.name, reason, delay)
        await asyncio.sleep(delay)

    async def _post(self, body: bytes, correlation: str) -> BackendResponse | BackendUnavailable:
        headers = {CORRELATION_HEADER: correlation, QUERY_HEADER: self.settings.name}
        return await post_json(self._client, self._url, body, headers, self._backend.timeout)


REJECTED_STATUSES = frozenset({400, 409, 413, 422})
MAX_LOGGED_BYTES = 200  # of a row, or of a response

PostBatch = Callable[[bytes, str], Awaitable[BackendResponse | BackendUnavailable]]


class RowBatcher:
    """Collect rows into batches, between the reader of a query and its delivery.

    It holds at most one batch and one row: `put` waits then, and with it the reader of the query. A
    row waits `linger` seconds for others. A row larger than `size` is a batch of its own.
    """

    def __init__(self, rows: int, size: int, linger: float) -> None:
        self._max_rows = rows
        self._max_bytes = size
        self._linger = linger
        self._rows: deque[tuple[float, bytes]] = deque()  # with the time when each was added
        self._bytes = 0  # of the rows that wait, each with its comma
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_ended = False

    async def put(self, row: bytes) -> None:
        while self._is_full():
            await self._wait_for_change(None)
        self._rows.append((_now(), row))
        self._bytes += len(row) + 1
        self._notify_change()

    def end(self) -> None:
        """Note that no more rows come; those that wait are still taken."""
        self._is_ended = True
        self._notify_change()

    async def take_batch(self) -> Sequence[bytes]:
        """Return the next batch once it is full or its first row has waited; nothing at the end."""
        while not self._rows:
            if self._is_ended:
                return ()
            await self._wait_for_change(None)
        due = self._rows[0][0] + self._linger
        while not self._is_ended and not self._is_full() and _now() < due:
            await self._wait_for_change(due - _now())
        taken = [self._rows.popleft()[1] for _ in range(self._count_batch())]
        self._bytes -= sum(len(row) + 1 for row in taken)
        self._notify_change()
        return taken

    def _is_full(self) -> bool:
        return len(self._rows) >= self._max_rows or self._bytes > self._max_bytes

    def _count_batch(self) -> int:
        size = 0
        for index, (_, row) in enumerate(self._rows):
            size += len(row) + 1
            if index and (size > self._max_bytes or index >= self._max_rows):
                return index
        return len(self._rows)

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        # A future for each waiter: with one Event that both sides clear, a change between clearing
        # and waiting would be lost.
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    def _notify_change(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(slots=True)
class RowDelivery:
    """Deliver batches of rows, and count the outcomes (`delivered`, `dropped`).

    `PushQuery` creates it and runs `run`.

    Attributes:
        post: Sends a body to the back end, with an id that is the same at every attempt.
        retries: How often a batch that is refused is tried again.
        initial: The first delay of retries, in seconds.
        max: The longest delay of retries, in seconds.
        failure: Why rows wait; None while they are delivered.
    """

    name: str
    post: PostBatch
    retries: int
    initial: float
    max: float
    outcomes: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    _has_skipped: bool = False

    async def run(self, batches: RowBatcher) -> None:
        while rows := await batches.take_batch():
            await self._deliver(rows)

    def skip_row(self, reason: str) -> None:
        """Count a row that cannot be delivered, and log the first one of the query."""
        self.outcomes["dropped"] += 1
        if not self._has_skipped:
            self._has_skipped = True
            notice = "rows that cannot be handed on are passed over and counted"
            log.error("query %s: %s; the first: %s", self.name, notice, reason)

    async def _deliver(self, rows: Sequence[bytes]) -> None:
        refusal = await self._post_until_answered(rows)
        if refusal is None:
            self.outcomes["delivered"] += len(rows)
        elif len(rows) > 1:
            middle = len(rows) // 2
            await self._deliver(rows[:middle])
            await self._deliver(rows[middle:])
        else:
            self.outcomes["dropped"] += 1
            shown = rows[0][:MAX_LOGGED_BYTES].decode(errors="replace")
            log.error("query %s: the back end refuses a row (%s): %s", self.name, refusal, shown)

    async def _post_until_answered(self, rows: Sequence[bytes]) -> str | None:
        backoff = Backoff(self.max, random.random, self.initial)
        body, id, refusals = b"[" + b",".join(rows) + b"]", str(uuid.uuid4()), 0
        while True:
            response = await self.post(body, id)
            if isinstance(response, BackendUnavailable):
                status, reason = 0, response.reason
            else:
                shown = response.body[:MAX_LOGGED_BYTES].decode(errors="replace")
                status, reason = response.status, f"{response.status} {shown}".strip()
            is_rejected = status in REJECTED_STATUSES  # the back end is well, and means the rows
            self._note_failure(None if is_rejected or 200 <= status < 300 else reason)
            if 200 <= status < 300:
                return None
            refusals += is_rejected
            if refusals > self.retries:
                return reason
            delay = backoff.next_delay(Cause.CONNECTION)
            await asyncio.sleep(max(response.retry_after, delay))

    def _note_failure(self, reason: str | None) -> None:
        if reason is not None and self.failure is None:
            log.warning("query %s: the back end is away (%s); its rows wait", self.name, reason)
        elif reason is None and self.failure is not None:
            log.info("query %s: the back end is back", self.name)
        self.failure = reason


def _now() -> float:
    return asyncio.get_running_loop().time()
