"""Log what of Kafka cannot be used for now, once for each change of state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.error_code import code_from_error
from gateway.core.log.recovery import cause_from_code
from gateway.errors import KafkaError

from .failures import unwrap_error

log = logging.getLogger(__name__)

REPEAT_INTERVAL_S = 60.0  # from one line to the next while an outage lasts


def format_topic_label(name: str) -> str:
    """Return the name under which the outage of a topic is reported."""
    return f"topic={name}"


@dataclass(slots=True)
class _Outage:
    """Something that fails now. Times are in seconds of the clock of `Outages`."""

    cause: str
    since: float
    logged_at: float


class Outages:
    """The brokers, topics and partitions of one cluster that fail now.

    Created and owned by `Cluster`; whoever uses a part of the cluster reports its failures and
    successes here. A warning is logged when something begins to fail or fails for another cause,
    again every minute while it lasts, and one line when it is over, however often it was tried and
    however many partitions it has.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Create it without outages.

        Args:
            now: The current time in seconds of any monotonic clock.
        """
        self._now = now
        self._outages: dict[str, _Outage] = {}

    def report_failure(self, what: str, cause: str, why: str, **extra: object) -> None:
        """Record that something fails, or still fails.

        Args:
            what: What fails, as the log line names it, such as "broker=1".
            cause: The kind of failure; a line is logged when it changes.
            why: The text of the log line.
            extra: Fields of the log line where lines are JSON.
        """
        now, known = self._now(), self._outages.get(what)
        if known is None or known.cause != cause:
            # Another cause is the same outage: its duration counts from the first failure.
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
        """Record that something fails with an error, which gives the cause and the text.

        An error that only says that a broker's backoff lasts is replaced by the failure that began
        the backoff, so that it is not another cause.

        Args:
            what: What fails, as the log line names it.
            error: The error.
            extra: Fields of the log line where lines are JSON.
        """
        reason = unwrap_error(error)
        self.report_failure(what, cause_from_code(code_from_error(reason)), str(reason), **extra)

    def report_recovery(self, what: str, how: str = "answers again") -> None:
        """Record that something works. Nothing is logged if it did not fail before.

        Args:
            what: What works, as in `report_failure`.
            how: The verb of the log line.
        """
        known = self._outages.pop(what, None)
        if known is not None:
            seconds = self._now() - known.since
            log.info("%s %s after %.1f s of cause=%s", what, how, seconds, known.cause)
