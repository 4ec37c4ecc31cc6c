"""A configured query: asked as long as the sidecar runs, its rows handed to the back end.

What a push query loses: it has no offsets. Begun again (a connection that broke, a server that
ended it, a restart of the sidecar) with `offset: latest` it does not have what came meanwhile,
with `earliest` it has every row once more; rows that were read and not delivered yet go with the
process. A stream that must not lose any is read from its topic, by a group.
"""

from __future__ import annotations

import asyncio
import logging
import random

import httpx

from gateway.config.sections.kafka import Reconnect
from gateway.config.sections.ksqldb import KsqlQuery, RowsBackend
from gateway.core.delivery.verdict import BackendUnavailable
from gateway.core.log.recovery import Backoff, Cause
from gateway.sidecar.http.ids import CORRELATION_HEADER
from gateway.sidecar.reactive.backend import BackendResponse, post_json

from .client import KsqlClient, KsqlUnavailable, build_query
from .delivery import RowBatcher, RowDelivery
from .rows import KsqlError, RowError, write_row

log = logging.getLogger(__name__)

QUERY_HEADER = "X-Ksqldb-Query"
STEADY_AFTER_S = 10.0  # seconds after which a query that breaks is no repeated failure


class PushQuery:
    """See the module; `run` it.

    begun: how often the query was. broken: why it is not running, None while it is.
    """

    def __init__(
        self, ksql: KsqlClient, settings: KsqlQuery, backend: RowsBackend, reconnect: Reconnect
    ) -> None:
        self.begin_count = 0
        self.failure: str | None = "it has not begun yet"
        self.settings = settings
        self._ksql = ksql
        self._backend = backend
        self._url = httpx.URL(backend.host.rstrip("/") + backend.path)
        self._reconnect = reconnect
        self._client: httpx.AsyncClient
        self.delivery = RowDelivery(
            settings.name, self._post, settings.max_retries, reconnect.initial, reconnect.max
        )

    async def run(self) -> None:
        """Until cancelled; of a pull query, until its rows are delivered."""
        wanted = self.settings.batch
        batches = RowBatcher(wanted.rows, wanted.size, wanted.linger)
        self._client = httpx.AsyncClient(timeout=None, trust_env=False)  # `call` has one
        async with self._client, asyncio.TaskGroup() as group:
            group.create_task(self.delivery.run(batches))
            await self._run_queries(batches)
            batches.end()

    async def _run_queries(self, batches: RowBatcher) -> None:
        backoff = Backoff(self._reconnect.max, random.random, self._reconnect.initial)
        while True:
            began = asyncio.get_running_loop().time()
            try:
                why = await self._run_once(batches)
                if self.settings.query_type == "pull":
                    self.failure = None
                    return
            except (KsqlError, KsqlUnavailable) as error:
                why = str(error)
            if asyncio.get_running_loop().time() - began > STEADY_AFTER_S:
                backoff.reset()
            await self._wait_before_retry(why, backoff.next_delay(Cause.CONNECTION))

    async def _run_once(self, batches: RowBatcher) -> str:
        """Why the rows are over."""
        each = self.settings
        wanted = build_query(
            each.query, each.properties, offset=each.offset, table_scan=each.table_scan_enable
        )
        async with self._ksql.stream(wanted) as answer:
            self.begin_count += 1
            self.failure = None
            log.info(
                "query %s: begun by %s (%.100s)", each.name, answer.path, answer.columns.query_id
            )
            async for row in answer:
                try:
                    text = write_row(row)
                except RowError as error:
                    self.delivery.skip_row(str(error))
                    continue
                await batches.put(text)
            return f"the server ended it ({answer.final_message or 'without a word'})"

    async def _wait_before_retry(self, why: str, delay: float) -> None:
        level = logging.DEBUG if why == self.failure else logging.WARNING  # once, not each time
        self.failure = why
        log.log(level, "query %s: %s; begins again in %.1f s", self.settings.name, why, delay)
        await asyncio.sleep(delay)

    async def _post(self, body: bytes, correlation: str) -> BackendResponse | BackendUnavailable:
        headers = {CORRELATION_HEADER: correlation, QUERY_HEADER: self.settings.name}
        return await post_json(self._client, self._url, body, headers, self._backend.timeout)
