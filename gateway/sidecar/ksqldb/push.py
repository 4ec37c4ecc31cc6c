"""Keep a configured query running as long as the sidecar runs, and deliver its rows.

A push query has no offsets, so rows may be lost or repeated. When it is started again (after a
broken connection, an end by the server, a restart of the sidecar), `offset: latest` misses the rows
in between, and `earliest` repeats every row. Undelivered rows are lost with the process. Read a
stream that must not lose any from its topic, by a group.
"""

from __future__ import annotations

import asyncio
import logging
import random

import httpx

from gateway.config.sections.kafka import Reconnect
from gateway.config.sections.ksqldb import KsqlQuery, RowsBackend
from gateway.config.types.address import join_url
from gateway.core.delivery.verdict import BackendUnavailable
from gateway.core.log.recovery import Backoff, Cause
from gateway.sidecar.http.ids import CORRELATION_HEADER
from gateway.sidecar.reactive.backend import BackendResponse, create_http_client, post_json

from .client import KsqlClient, KsqlUnavailable, build_query
from .delivery import RowBatcher, RowDelivery
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
