"""Log what of Kafka cannot be used for now, once for each change of state.

Most things that fail do so because a broker or the whole cluster is away, and the line about that
says it for all of them: a topic, a group or a replay gets a line of its own only if it fails for
another reason, or if it fails for `GRACE_S` although its broker answers others.

Of several processes with the same clusters, each reports the same. `OutageReport` is therefore data
that can be sent to a process that logs for all of them (`web.workers.outage_log`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.core.error_code import code_from_error
from gateway.core.log.recovery import Cause, cause_from_code
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError

from .failures import unwrap_error

log = logging.getLogger(__name__)

REPEAT_INTERVAL_S = 60.0  # from one line to the next while an outage lasts
# Until something that fails for want of a connection gets a line, while no outage of a broker is
# known. It is longer than `Metadata` needs to find that a broker is away.
GRACE_S = 5.0
CLUSTER_LABEL = "Kafka"
_BROKER_LABEL_START = "broker="
# A broker that goes away refuses connections at first and gives no answers later, or the reverse.
_SAME_KIND: Mapping[str, str] = {Cause.TIMEOUT: Cause.CONNECTION}


def format_topic_label(name: str) -> str:
    """Return the name under which the outage of a topic is reported."""
    return f"topic={name}"


def format_broker_label(node: int) -> str:
    """Return the name under which the outage of a broker is reported."""
    return f"{_BROKER_LABEL_START}{node}"


def is_broker_label(what: str) -> bool:
    """Return whether an outage of this name is that of a broker."""
    return what.startswith(_BROKER_LABEL_START)


class OutageReport(NamedTuple):
    """A change of state that is worth a log line, or a reminder that it lasts.

    Attributes:
        what: What it is about, as the log line names it.
        cause: The kind of failure; None if it works.
        text: Why it fails, or the verb of the line if it works.
        extra: Fields of the log line where lines are JSON.
        is_first: Whether the cluster is reached for the first time.
    """

    what: str
    cause: str | None
    text: str
    extra: Mapping[str, Any] = {}
    is_first: bool = False


@dataclass(slots=True)
class _Outage:
    """Something that fails now. Times are in seconds of the clock of `Outages`."""

    cause: str
    why: str
    extra: Mapping[str, Any]
    since: float
    logged_at: float | None  # None while nothing has been logged about it


class Outages:
    """The brokers, topics and partitions of one cluster that fail now.

    Created and owned by `Cluster`; whoever uses a part of the cluster reports its failures and
    successes here. A warning is logged when something begins to fail or fails for another cause,
    again every minute while it lasts, and one line when it is over, however often it was tried and
    however many partitions it has.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        cluster: str = "",
        repeat_interval: float = REPEAT_INTERVAL_S,
    ) -> None:
        """Create it without outages.

        Args:
            now: The current time in seconds of any monotonic clock.
            cluster: The name of the cluster, which begins each line; empty where there is only one.
            repeat_interval: Seconds from one line to the next while an outage lasts.
        """
        self._now = now
        self._prefix = f"{cluster}: " if cluster else ""
        self._repeat_interval = repeat_interval
        self._outages: dict[str, _Outage] = {}
        self._contact: OutageReport | None = None  # the one of `report_contact`
        self._forward: Callable[[OutageReport], object] | None = None

    def forward_to(self, forward: Callable[[OutageReport], object]) -> None:
        """Let somebody else log: from now on, reports are passed on instead.

        Args:
            forward: Called in the event loop. A report that gets lost is made up for by another
                call of it with each of `iter_reports`.
        """
        self._forward = forward

    def iter_reports(self) -> Iterator[OutageReport]:
        """Yield a report of the first contact, and of everything that fails now and was logged."""
        if self._contact is not None and not self._is_logged(CLUSTER_LABEL):
            yield self._contact
        for what, outage in self._outages.items():
            if outage.logged_at is not None:
                yield OutageReport(what, outage.cause, outage.why, outage.extra)

    def forget_all(self) -> None:
        """Forget all outages without a line, because the cluster is not used any more."""
        self._outages.clear()
        self._contact = None

    def report_failure(self, what: str, cause: str, why: str, **extra: object) -> None:
        """Record that something fails, or still fails.

        Args:
            what: What fails, as the log line names it, such as "broker=1".
            cause: The kind of failure; a line is logged when it changes.
            why: The text of the log line.
            extra: Fields of the log line where lines are JSON.
        """
        now, known = self._now(), self._outages.get(what)
        if known is None or known.logged_at is None or _is_other_kind(known.cause, cause):
            # Another cause is the same outage: its duration counts from the first failure.
            since = now if known is None else known.since
            self._outages[what] = _Outage(cause, why, extra, since, now)
            self._log_failure(OutageReport(what, cause, why, extra))
        else:
            known.why, known.extra = why, extra
            if now - known.logged_at >= self._repeat_interval:
                known.cause, known.logged_at = cause, now
                self._log_failure(OutageReport(what, cause, why, extra), now - known.since)

    def report_error(self, what: str, error: KafkaError, **extra: object) -> None:
        """Record that something fails with an error, which gives the cause and the text.

        An error that only says that a broker's backoff lasts is replaced by the failure that began
        the backoff, so that it is not another cause. That a broker or the cluster is away is said
        by the line about the broker or the cluster.

        Args:
            what: What fails, as the log line names it.
            extra: Fields of the log line where lines are JSON.
        """
        reason = unwrap_error(error)
        cause = cause_from_code(code_from_error(reason))
        known = self._outages.get(what)
        if isinstance(reason, (BrokerUnavailable, AuthenticationFailed)) and (
            known is None or known.logged_at is None
        ):
            if self._is_said(reason):
                self._outages.pop(what, None)
                return
            if known is None:
                known = self._outages[what] = _Outage(
                    cause, str(reason), extra, since=self._now(), logged_at=None
                )
            if self._now() - known.since < GRACE_S:
                return
        self.report_failure(what, cause, str(reason), **extra)

    def report_recovery(self, what: str, how: str = "answers again") -> None:
        """Record that something works. Nothing is logged if it did not fail before.

        Args:
            what: What works, as in `report_failure`.
            how: The verb of the log line.
        """
        known = self._outages.pop(what, None)
        if known is not None and known.logged_at is not None:
            self._log_recovery(OutageReport(what, None, how), known)

    def report_contact(self, how: str) -> None:
        """Record that the cluster is reached for the first time; this is always logged.

        Args:
            how: The verb of the log line.
        """
        known = self._outages.pop(CLUSTER_LABEL, None)
        self._contact = OutageReport(CLUSTER_LABEL, None, how, is_first=True)
        self._log_recovery(self._contact, known)

    def _is_said(self, error: KafkaError) -> bool:
        """Return whether the line about a broker or the cluster says why something fails."""
        if self._is_logged(CLUSTER_LABEL):
            return True
        node = getattr(error, "node", None)
        if node is not None:
            return self._is_logged(format_broker_label(node))
        # The error of a login does not carry its broker.
        return isinstance(error, AuthenticationFailed) and any(
            outage.cause == Cause.AUTHENTICATION and is_broker_label(what)
            for what, outage in self._outages.items()
        )

    def _is_logged(self, what: str) -> bool:
        known = self._outages.get(what)
        return known is not None and known.logged_at is not None

    def _log_failure(self, report: OutageReport, seconds: float | None = None) -> None:
        """Log that something fails, for so many seconds already if it is a reminder."""
        if self._forward is not None:
            self._forward(report)
            return
        lasting = "" if seconds is None else f", for {seconds:.0f} s now"
        log.warning(
            "%s%s cause=%s%s: %s", self._prefix, report.what, report.cause, lasting, report.text,
            extra={"cause": report.cause, **report.extra},
        )  # fmt: skip

    def _log_recovery(self, report: OutageReport, outage: _Outage | None) -> None:
        """Log that something works, after an outage if there was one."""
        if self._forward is not None:
            self._forward(report)
            return
        after = "" if outage is None else f" after {self._now() - outage.since:.1f} s of cause="
        cause = "" if outage is None else outage.cause
        log.info("%s%s %s%s%s", self._prefix, report.what, report.text, after, cause)


def _is_other_kind(cause: str, other: str) -> bool:
    return _SAME_KIND.get(cause, cause) != _SAME_KIND.get(other, other)
