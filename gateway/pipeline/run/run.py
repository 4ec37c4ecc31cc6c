"""One job from its start to its end: its query, begun again where that may help."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gateway.config.sections.pipeline import Job
from gateway.errors import CheckpointRefused, GatewayError, PipelineError, PipelineUnavailable
from gateway.pipeline.state.repair import damaged_by
from gateway.telemetry.about import about

from . import failures, query
from .failures import Cause, Failure, Unreadable

log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 60.0  # s before trying again, doubled each time
STEADY = 60.0  # s that a query must have run for the next wait to be the first again
SKIPS = 2  # starts that it takes to pass over a record: one cuts its batch, one moves the next


class Run:
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
        retire: Callable[[Any], None] = query.retire,
        waits: Callable[[Any], bool] = query.waits,
        is_idle: Callable[[Any], bool] = query.is_idle,
    ) -> None:
        self.job = job
        self.reason: str | None = None  # why it failed for good
        self.done = False
        self.damaged = False  # did the last query end as its state could not be read?
        self._unreadable: Unreadable | None = None  # what the next start passes over
        self._skipped: Unreadable | None = None  # what the last queries ended by
        self._ends_by = 0  # how many in a row ended by that
        self._start, self._clock = start, clock
        self._finish = finish
        self._have_inputs_changed = have_inputs_changed
        self._retire, self._query_waits, self._is_idle = retire, waits, is_idle
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
            if (found := failures.find_unreadable(chain)) and self.job.trigger != "realtime":
                self._skip(found)
            elif chain:
                self.damaged = damaged_by("\n".join(each.message for each in chain))
                failure = failures.of(chain)
                # The next start mends state, or says that it cannot.
                self._failed(failure._replace(transient=failure.transient or self.damaged))
            else:
                self._finished()
        elif self._have_inputs_changed() and self._may_stop():
            self._query.stop()
            self._query = None
            self._failed(Failure("a topic was recreated while the job read it", True))

    def note_mended(self) -> None:
        """Note that the state can be read again, though the rest of the start may still fail."""
        self.damaged = False

    def take_unreadable(self) -> Unreadable | None:
        """Return the record that the next start passes over, if there is one; once.

        If that start fails, the next query ends by the same record, and it is asked for again.
        """
        found, self._unreadable = self._unreadable, None
        return found

    def retire(self) -> None:
        """Begin no batch after the one under way. To be called until it is idle.

        Where batches end in Python they see to it themselves, unless none comes any more.
        """
        if self._query is None or self.job.trigger == "realtime" or not self._query.isActive:
            return
        if not query.retires_itself(self.job) or self._query_waits(self._query):
            self._retire(self._query)

    def idle(self) -> bool:
        """Is no batch under way?"""
        if self._query is None or self.job.trigger == "realtime":
            return True
        return self._is_idle(self._query)

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

    def _may_stop(self) -> bool:
        """Return whether no batch is cut off; one in Python looks at its topics by itself."""
        return not query.retires_itself(self.job) or self._query_waits(self._query)

    def _begin(self) -> None:
        self._began = self._clock()
        try:
            with about(job=self.job.name):
                self._query = self._start()
        except CheckpointRefused as error:
            self.fail(str(error))
        except Exception as error:
            self._failed(failure_of(error))

    def _skip(self, found: Unreadable) -> None:
        """Begin again behind a record that Spark cannot read: at once, unless that did not help."""
        same = self._skipped == found
        self._ends_by = self._ends_by + 1 if same else 1
        self._unreadable = self._skipped = found
        if self._ends_by > SKIPS:
            self._failed(Failure(found.reason, True))
        else:
            self._begin()

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
