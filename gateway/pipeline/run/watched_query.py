"""Look after a query that a program started, until it ends.

The runner polls the queries of jobs; here a thread does it. It writes late dead letters while the
query waits, and the rest once it has ended; it ends a query whose topic was recreated, and reports
open transactions.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack

from pyspark.sql.streaming.query import StreamingQuery

from gateway.pipeline.exactly_once.input_topics import OpenTransactions
from gateway.pipeline.spark.internals import get_java_query, is_waiting
from gateway.telemetry.logs import log_context

from .query import QueryContext

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0


class WatchedQuery(StreamingQuery):
    """A query of PySpark whose `awaitTermination` and `stop` wait for its dead letters, too."""

    def __init__(self, query: StreamingQuery, context: QueryContext, resources: ExitStack) -> None:
        """Start to watch.

        Args:
            resources: Closed when the query has ended and its dead letters are written.
        """
        super().__init__(get_java_query(query))
        self._context = context
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=self._watch, args=(resources,), name=f"query-{context.job.name}", daemon=True
        )
        self._thread.start()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """As of `StreamingQuery`; raise PipelineError if a topic was recreated.

        Raise also the error by which late and invalid records could not be written.
        """
        try:
            is_ended = super().awaitTermination(timeout)
        finally:
            if not self.isActive:
                self._thread.join()
        if self._error is not None:
            raise self._error
        return is_ended

    def stop(self) -> None:
        self._context.stop_event.set()  # so that a batch that Kafka interrupts is not tried again
        super().stop()
        self._thread.join()

    def _watch(self, resources: ExitStack) -> None:
        job = self._context.job.name
        with log_context(job=job):
            try:
                with resources:
                    self._poll_until_ended()
                    side_outputs = self._context.side_outputs
                    if side_outputs is not None and self.exception() is None:
                        side_outputs.finish()
            except Exception as error:  # such as the end of the session
                log.warning("query %s: the next start does the rest: %s", job, error)
                self._error = self._error or error

    def _poll_until_ended(self) -> None:
        transactions = OpenTransactions(self._context.job.name, self._context.reports)
        while not self._await_end():
            try:
                self._poll(transactions)
            except Exception as error:  # Kafka may answer the next time
                log.warning("query %s: %s", self._context.job.name, error)
        transactions.close()

    def _await_end(self) -> bool:
        try:
            return bool(get_java_query(self).awaitTermination(int(POLL_INTERVAL_S * 1000)))
        except Exception:  # the query failed, which its caller is told
            return True

    def _poll(self, transactions: OpenTransactions) -> None:
        context = self._context
        if ends := context.topics.fetch_ends():
            transactions.update(ends)
        if not is_waiting(self):
            return
        if (error := context.topics.find_recreated()) is not None:
            self._error = error
            super().stop()
        elif context.side_outputs is not None:
            context.side_outputs.scan_idle()
