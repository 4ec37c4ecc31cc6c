"""One job from its start to its end: its query, begun again where that may help."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gateway.config.pipeline import Job
from gateway.errors import CheckpointRefused, GatewayError, PipelineError, PipelineUnavailable
from gateway.telemetry.about import about

from . import failures, query
from .failures import Cause, Failure
from .state.repair import damaged_by

log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 60.0  # s before trying again, doubled each time
STEADY = 60.0  # s that a query must have run for the next wait to be the first again


class Run:
    """start: gives a StreamingQuery, or raises. clock: seconds of any monotonic one. finish: what
    is left to be done once a query has ended by itself. retire: see `query.retire`."""

    def __init__(
        self,
        job: Job,
        start: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
        *,
        finish: Callable[[], None] = lambda: None,
        retire: Callable[[Any], None] = query.retire,
    ) -> None:
        self.job = job
        self.reason: str | None = None  # why it failed for good
        self.done = False
        self.damaged = False  # did the last query end as its state could not be read?
        self._start, self._clock = start, clock
        self._finish, self._retire = finish, retire
        self._query: Any = None
        self._due = self._began = clock()
        self._wait = FIRST
        self.held = ExitStack()  # what is let go with the job

    @property
    def waits(self) -> bool:
        """Is it between two tries?"""
        return not self.done and self._query is None

    def look(self) -> None:
        """Begin what is due, and take note of what ended."""
        if self.done:
            return
        if self._query is None:
            if self._clock() >= self._due:
                self._begin()
        elif not self._query.isActive:
            chain = failures.chain(self._query)
            self._query = None
            if chain:
                self.damaged = damaged_by("\n".join(each.message for each in chain))
                failure = failures.of(chain)
                # The next start mends state, or says that it cannot.
                self._failed(failure._replace(transient=failure.transient or self.damaged))
            else:
                self._finished()

    def retire(self) -> None:
        """Begin no batch after the one under way."""
        if self._query is not None and self.job.trigger != "realtime":
            self._retire(self._query)

    def idle(self) -> bool:
        """Is no batch under way?"""
        if self._query is None or self.job.trigger == "realtime":
            return True
        return not self._query.status["isTriggerActive"]

    def stop(self) -> None:
        """Now, whatever is under way."""
        if self._query is not None:
            self._query.stop()
        self._query = None
        self._end()

    def fail(self, reason: str) -> None:
        """For good."""
        self.reason = reason
        log.error("job %s failed: %s", self.job.name, reason)
        self._end()

    def _begin(self) -> None:
        self._began = self._clock()
        try:
            with about(job=self.job.name):
                self._query = self._start()
                self.damaged = False
        except CheckpointRefused as error:
            self.fail(str(error))
        except Exception as error:
            self._failed(failure_of(error))

    def _finished(self) -> None:
        try:
            self._finish()
        except Exception as error:
            self._failed(failure_of(error))
        else:
            self._end()

    def _failed(self, failure: Failure) -> None:
        if not failure.transient:
            self.fail(failure.reason)
            return
        now = self._clock()
        if now - self._began > STEADY:
            self._wait = FIRST
        self._due = now + self._wait
        log.warning("job %s begins again in %g s: %s", self.job.name, self._wait, failure.reason)
        self._wait = min(2 * self._wait, LONGEST)

    def _end(self) -> None:
        self.done = True
        self.held.close()


def failure_of(error: Exception) -> Failure:
    """Of what was raised here: by us, or by Spark's JVM."""
    if isinstance(error, GatewayError) and not isinstance(error, PipelineError):
        known = f"{type(error).__name__}: {error}"
        return Failure(str(error), failures.of([Cause("", known)]).transient)
    if isinstance(error, PipelineError):
        return Failure(str(error), isinstance(error, PipelineUnavailable))
    return failures.of(failures.causes(error))
