"""One job from its start to its end: its query, begun again where that may help."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gateway.config.sections.job import Job
from gateway.errors import CheckpointRefused, GatewayError, PipelineError, PipelineUnavailable
from gateway.pipeline.state.repair import is_damage_error
from gateway.telemetry.log_context import log_context

from . import failures, query
from .failures import ExceptionCause, QueryFailure, UnreadableOffset

log = logging.getLogger(__name__)

INITIAL_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 60.0  # s before trying again, doubled each time
STEADY_AFTER_S = 60.0  # s that a query must have run for the next wait to be the first again
MAX_SKIP_STARTS = (
    2  # starts that it takes to pass over a record: one cuts its batch, one moves the next
)


class JobRun:
    """start: gives a StreamingQuery, or raises. clock: seconds of any monotonic one. finish: what
    is left to be done once a query has ended by itself. have_inputs_changed: were its topics
    recreated since it started? retire, waits, is_idle: as of `query`."""

    def __init__(
        self,
        job: Job,
        start: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
        *,
        finish: Callable[[], None] = lambda: None,
        have_inputs_changed: Callable[[], bool] = lambda: False,
        retire: Callable[[Any], None] = query.retire_query,
        is_waiting: Callable[[Any], bool] = query.is_waiting,
        is_idle: Callable[[Any], bool] = query.is_idle,
    ) -> None:
        self.job = job
        self.failure_reason: str | None = None  # why it failed for good
        self.is_done = False
        self.has_damaged_state = False  # did the last query end as its state could not be read?
        self._record_to_skip: UnreadableOffset | None = None  # what the next start passes over
        self._last_unreadable: UnreadableOffset | None = None  # what the last queries ended by
        self._repeat_count = 0  # how many in a row ended by that
        self._start, self._clock = start, clock
        self._finish = finish
        self._have_inputs_changed = have_inputs_changed
        self._retire, self._is_query_waiting, self._is_query_idle = retire, is_waiting, is_idle
        self._query: Any = None
        self._retry_at = self._started_at = clock()
        self._retry_delay_s = INITIAL_RETRY_DELAY_S
        self.resources = ExitStack()  # what is let go with the job

    @property
    def is_waiting(self) -> bool:
        """Is it between two tries?"""
        return not self.is_done and self._query is None

    def poll(self) -> None:
        """Begin what is due, and take note of what ended."""
        if self.is_done:
            return
        if self._query is None:
            if self._clock() >= self._retry_at:
                self._try_start()
        elif not self._query.isActive:
            chain = failures.list_query_causes(self._query)
            self._query = None
            if (found := failures.find_unreadable(chain)) and self.job.trigger != "realtime":
                self._restart_behind(found)
            elif chain:
                self.has_damaged_state = is_damage_error("\n".join(each.message for each in chain))
                failure = failures.classify_causes(chain)
                # The next start mends state, or says that it cannot.
                self._on_failed(
                    failure._replace(is_transient=failure.is_transient or self.has_damaged_state)
                )
            else:
                self._on_finished()
        elif self._have_inputs_changed() and self._can_stop():
            self._query.stop()
            self._query = None
            self._on_failed(QueryFailure("a topic was recreated while the job read it", True))

    def mark_state_readable(self) -> None:
        """Note that the state can be read again, though the rest of the start may still fail."""
        self.has_damaged_state = False

    def take_record_to_skip(self) -> UnreadableOffset | None:
        """Return the record that the next start passes over, if there is one; once.

        If that start fails, the next query ends by the same record, and it is asked for again.
        """
        found, self._record_to_skip = self._record_to_skip, None
        return found

    def retire(self) -> None:
        """Begin no batch after the one under way. To be called until it is idle.

        Where batches end in Python they see to it themselves, unless none comes any more.
        """
        if self._query is None or self.job.trigger == "realtime" or not self._query.isActive:
            return
        if not query.retires_itself(self.job) or self._is_query_waiting(self._query):
            self._retire(self._query)

    def is_idle(self) -> bool:
        """Is no batch under way?"""
        if self._query is None or self.job.trigger == "realtime":
            return True
        return self._is_query_idle(self._query)

    def stop(self) -> None:
        """Now, whatever is under way."""
        if self._query is not None:
            self._query.stop()
        self._query = None
        self._close()

    def fail(self, reason: str) -> None:
        """For good."""
        self.failure_reason = reason
        log.error("job %s failed: %s", self.job.name, reason)
        self._close()

    def _can_stop(self) -> bool:
        """Return whether no batch is cut off; one in Python looks at its topics by itself."""
        return not query.retires_itself(self.job) or self._is_query_waiting(self._query)

    def _try_start(self) -> None:
        self._started_at = self._clock()
        try:
            with log_context(job=self.job.name):
                self._query = self._start()
        except CheckpointRefused as error:
            self.fail(str(error))
        except Exception as error:
            self._on_failed(classify_error(error))

    def _restart_behind(self, record: UnreadableOffset) -> None:
        """Begin again behind a record that Spark cannot read: at once, unless that did not help."""
        same = self._last_unreadable == record
        self._repeat_count = self._repeat_count + 1 if same else 1
        self._record_to_skip = self._last_unreadable = record
        if self._repeat_count > MAX_SKIP_STARTS:
            self._on_failed(QueryFailure(record.reason, True))
        else:
            self._try_start()

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
    """Of what was raised here: by us, or by Spark's JVM."""
    if isinstance(error, GatewayError) and not isinstance(error, PipelineError):
        known = f"{type(error).__name__}: {error}"
        return QueryFailure(
            str(error), failures.classify_causes([ExceptionCause("", known)]).is_transient
        )
    if isinstance(error, PipelineError):
        return QueryFailure(str(error), isinstance(error, PipelineUnavailable))
    return failures.classify_causes(failures.list_causes(error))
