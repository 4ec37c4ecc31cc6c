"""Run one job from its start to its end, and start its query again after some failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from gateway.config.sections.job import Job
from gateway.errors import CheckpointRefused, GatewayError, PipelineError, PipelineUnavailable
from gateway.pipeline import failures
from gateway.pipeline.checkpoint.repair import is_damage_error
from gateway.pipeline.failures import ExceptionCause, QueryFailure
from gateway.pipeline.job_settings import retires_itself
from gateway.pipeline.spark import internals
from gateway.telemetry.logs import log_context

log = logging.getLogger(__name__)

INITIAL_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 60.0  # before another attempt, doubled each time
STEADY_AFTER_S = 60.0  # a query that ran for so long resets the delay


class JobRun:
    """The run of a job: its query, and the attempts to start it again.

    The runner creates one for each job and calls `poll` until `is_done`. There is at most one query
    at a time, and none while the run waits for the next attempt or is done.

    Attributes:
        failure_reason: Why the job failed permanently; None if it did not.
        state_error: Why the last query could not read its state; None once that is repaired.
    """

    def __init__(
        self,
        job: Job,
        start: Callable[[JobRun], Any],
        clock: Callable[[], float] = time.monotonic,
        *,
        finish: Callable[[], None] = lambda: None,
        find_recreated: Callable[[], PipelineError | None] = lambda: None,
        on_waiting: Callable[[], None] = lambda: None,
        ensure_ownership: Callable[[], bool] = lambda: False,
        retire: Callable[[Any], None] = internals.retire_query,
        is_waiting: Callable[[Any], bool] = internals.is_waiting,
        is_idle: Callable[[Any], bool] = internals.is_idle,
        list_causes: Callable[[Any], Sequence[ExceptionCause]] = failures.list_query_causes,
    ) -> None:
        """Prepare the run; the first `poll` starts the query.

        Args:
            finish: Does the remaining work when a query has ended without failure, or was stopped
                between two batches.
            find_recreated: Returns the error if a topic of the running query was recreated.
            on_waiting: Called by each `poll` that finds the query waiting for records.
            ensure_ownership: Returns whether no other process has taken the job over since this
                one has, or raises.
        """
        self.job = job
        self.failure_reason: str | None = None
        self.is_done = False
        self.state_error: str | None = None
        self._start, self._clock = start, clock
        self._finish = finish
        self._find_recreated = find_recreated
        self._on_waiting = on_waiting
        self._ensure_ownership = ensure_ownership
        self._retire, self._is_query_waiting, self._is_query_idle = retire, is_waiting, is_idle
        self._list_causes = list_causes
        self._query: Any = None
        self._retry_at = self._started_at = clock()
        self._retry_delay_s = INITIAL_RETRY_DELAY_S
        self.resources = ExitStack()

    def poll(self) -> None:
        if self.is_done:
            return
        if self._query is None:
            if self._clock() >= self._retry_at:
                self._try_start()
        elif not self._query.isActive:
            # A batch that has retired its query may still have to be committed.
            if self._is_query_idle(self._query):
                causes = self._list_causes(self._query)
                self._query = None
                if causes:
                    self._on_failed(self._classify_failure(causes))
                else:
                    self._on_finished()
        elif (error := self._find_recreated()) and self._can_stop():
            self._query.stop()
            self._query = None
            self.fail(str(error))
        elif self.job.trigger != "realtime" and self._is_query_waiting(self._query):
            with log_context(job=self.job.name):
                self._on_waiting()

    def mark_state_readable(self) -> None:
        """Record that the state was repaired, although the rest of the start may still fail."""
        self.state_error = None

    def retire(self) -> None:
        """Let the query begin no more batches. Call it until the query is idle.

        If its batches do so themselves (see `retires_itself`), this only acts while it waits.
        """
        if self._query is None or self.job.trigger == "realtime" or not self._query.isActive:
            return
        if self._can_stop():
            self._retire(self._query)

    def is_idle(self) -> bool:
        """Return whether no batch is running. In real-time mode this is always so."""
        if self._query is None or self.job.trigger == "realtime":
            return True
        return self._is_query_idle(self._query)

    def stop(self) -> None:
        """Stop the query now, even in the middle of a batch. `end` follows."""
        if self._query is not None:
            self._query.stop()

    def end(self, *, is_over: bool) -> None:
        """End the job after `stop`, and do the remaining work of a query unless time is over."""
        if self._query is not None and not is_over:
            try:
                with log_context(job=self.job.name):
                    self._finish()
            except Exception as error:
                reason = classify_error(error).reason
                log.warning("job %s: the next start does the rest: %s", self.job.name, reason)
        self._query = None
        self._close()

    def fail(self, reason: str) -> None:
        self.failure_reason = reason
        log.error("job %s failed: %s", self.job.name, reason)
        self._close()

    def _can_stop(self) -> bool:
        """Return whether the query may be ended from outside of its batches.

        Batches that end in Python retire their query and check their topics themselves, so they
        must not be interrupted.
        """
        return not retires_itself(self.job) or self._is_query_waiting(self._query)

    def _try_start(self) -> None:
        self._started_at = self._clock()
        try:
            with log_context(job=self.job.name):
                self._query = self._start(self)
        except CheckpointRefused as error:
            self.fail(str(error))
        except Exception as error:
            self._on_failed(classify_error(error))

    def _classify_failure(self, causes: Sequence[ExceptionCause]) -> QueryFailure:
        failure = failures.classify_causes(causes)
        text = "\n".join(cause.message for cause in causes)
        if failures.CONCURRENT_UPDATE.search(text):
            # Which process is the first to write a batch to the checkpoint does not say which of
            # them runs the job.
            try:
                failure = failure._replace(is_transient=self._ensure_ownership())
            except Exception as error:
                reason, is_transient = classify_error(error)
                failure = QueryFailure(f"{failure.reason} {reason}", is_transient)
        if not failure.is_transient and is_damage_error(text):
            # The next start repairs the state, and fails if that is impossible.
            self.state_error = failure.reason
            failure = failure._replace(is_transient=True)
        return failure

    def _on_finished(self) -> None:
        try:
            self._finish()
        except Exception as error:
            self._on_failed(classify_error(error))
        else:
            self._close()

    def _on_failed(self, failure: QueryFailure) -> None:
        if not failure.is_transient:
            self.fail(failure.reason)
            return
        now = self._clock()
        if now - self._started_at > STEADY_AFTER_S:
            self._retry_delay_s = INITIAL_RETRY_DELAY_S
        self._retry_at = now + self._retry_delay_s
        log.warning(
            "job %s begins again in %g s: %s", self.job.name, self._retry_delay_s, failure.reason
        )
        self._retry_delay_s = min(2 * self._retry_delay_s, MAX_RETRY_DELAY_S)

    def _close(self) -> None:
        self.is_done = True
        self.resources.close()


def classify_error(error: Exception) -> QueryFailure:
    if isinstance(error, PipelineError):
        return QueryFailure(str(error), isinstance(error, PipelineUnavailable))
    failure = failures.classify_causes(failures.list_causes(error))
    return failure._replace(reason=str(error)) if isinstance(error, GatewayError) else failure
