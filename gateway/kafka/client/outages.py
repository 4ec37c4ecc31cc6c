"""What of Kafka cannot be used for now, said in the log once for each change of state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.log.recovery import cause_from_code
from gateway.errors import KafkaError

from .failures import unwrap_error
from .offsets import code_from_error

log = logging.getLogger(__name__)

REPEAT_INTERVAL_S = 60.0  # from one line to the next while an outage lasts


def format_topic_label(name: str) -> str:
    """Return what a line about a topic that cannot be read begins with."""
    return f"topic={name}"


@dataclass(slots=True)
class _Outage:
    cause: str
    since: float
    logged_at: float


class Outages:
    """The brokers, topics and partitions that fail, of one cluster; owned by it.

    There is a warning when one begins to fail or fails for another cause, one a minute while it
    lasts, and a line when it is over, however often it is tried and however many partitions it has.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Create it without any.

        Args:
            now: The current time in seconds of any monotonic clock.
        """
        self._now = now
        self._outages: dict[str, _Outage] = {}

    def report_failure(self, what: str, cause: str, why: str, **extra: object) -> None:
        """Note that something fails, or goes on failing.

        Args:
            what: What it is, as the line names it, such as "broker=1".
            cause: Of what kind the failure is; another one is another line.
            why: What is said in the line.
            extra: Fields of the line where lines are JSON.
        """
        now, known = self._now(), self._outages.get(what)
        if known is None or known.cause != cause:
            since = now if known is None else known.since
            self._outages[what] = _Outage(cause, since, now)
            log.warning("%s cause=%s: %s", what, cause, why, extra={"cause": cause, **extra})
        elif now - known.logged_at >= REPEAT_INTERVAL_S:
            known.logged_at = now
            log.warning(
                "%s cause=%s, for %.0f s now: %s", what, cause, now - known.since, why,
                extra={"cause": cause, **extra},
            )  # fmt: skip

    def report_error(self, what: str, error: KafkaError, **extra: object) -> None:
        """Note that something fails with an error, which tells its cause and what is said.

        That a broker is tried later is no failure of its own: the one before is told.
        """
        reason = unwrap_error(error)
        self.report_failure(what, cause_from_code(code_from_error(reason)), str(reason), **extra)

    def report_recovery(self, what: str, how: str = "answers again") -> None:
        """Note that it does not fail, any more or at all."""
        known = self._outages.pop(what, None)
        if known is not None:
            seconds = self._now() - known.since
            log.info("%s %s after %.1f s of cause=%s", what, how, seconds, known.cause)
