"""Log which parts of Kafka cannot be used for now, once for each change of state.

Most failures are due to a broker or the whole cluster that is away, and one line about that says it
for all: a topic, a group or a replay gets a line of its own only if it fails for another reason, or
if it fails for `GRACE_S` although its broker answers others.

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
    return f"topic={name}"


def format_broker_label(node: int) -> str:
    return f"{_BROKER_LABEL_START}{node}"


def is_broker_label(what: str) -> bool:
    return what.startswith(_BROKER_LABEL_START)


class OutageReport(NamedTuple):
    """A change of state that is worth a log line, or a reminder that it lasts.

    Attributes:
        what: The subject of the log line.
        cause: The kind of failure; None after a recovery.
        text: The reason of a failure, or the verb of a recovery.
        extra: Fields of the log line where lines are JSON.
    """

    what: str
    cause: str | None
    text: str
    extra: Mapping[str, Any] = {}
    is_first: bool = False


@dataclass(slots=True)
class _Outage:
    cause: str
    why: str
    extra: Mapping[str, Any]
    since: float
    logged_at: float | None  # None while nothing has been logged about it


class Outages:
    """The brokers, topics and partitions of one cluster that fail now.

    Created and owned by `Cluster`; whoever uses a part of the cluster reports its failures and
    successes here. A warning is logged when something begins to fail or fails for another cause,
    again every `repeat_interval` seconds while it lasts, and one line when it is over, however
    often it was tried and however many partitions it has.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        cluster: str = "",
        repeat_interval: float = REPEAT_INTERVAL_S,
    ) -> None:
        self._now = now
        self._prefix = f"{cluster}: " if cluster else ""
        self._repeat_interval = repeat_interval
        self._outages: dict[str, _Outage] = {}
        self._contact: OutageReport | None = None  # the one of `report_contact`
        self._forward: Callable[[OutageReport], object] | None = None

    def forward_to(self, forward: Callable[[OutageReport], object]) -> None:
        """Pass reports on, in the event loop, instead of logging them."""
        self._forward = forward

    def iter_reports(self) -> Iterator[OutageReport]:
        """Yield a report of the first contact, and of every current failure that was logged."""
        if self._contact is not None and not self._is_logged(CLUSTER_LABEL):
            yield self._contact
        for what, outage in self._outages.items():
            if outage.logged_at is not None:
                yield OutageReport(what, outage.cause, outage.why, outage.extra)

    def forget_all(self) -> None:
        self._outages.clear()
        self._contact = None

    def report_failure(self, what: str, cause: str, why: str, **extra: object) -> None:
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
        the backoff, so that it is not another cause. Errors of a broker or cluster that is away are
        left to the line about the broker or the cluster.
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
        known = self._outages.pop(what, None)
        if known is not None and known.logged_at is not None:
            self._log_recovery(OutageReport(what, None, how), known)

    def report_contact(self, how: str) -> None:
        known = self._outages.pop(CLUSTER_LABEL, None)
        self._contact = OutageReport(CLUSTER_LABEL, None, how, is_first=True)
        self._log_recovery(self._contact, known)

    def _is_said(self, error: KafkaError) -> bool:
        """Return whether the line about a broker or the cluster explains this error."""
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
        """Log a failure; `seconds` is its duration so far in a reminder."""
        if self._forward is not None:
            self._forward(report)
            return
        lasting = "" if seconds is None else f", for {seconds:.0f} s now"
        log.warning(
            "%s%s cause=%s%s: %s", self._prefix, report.what, report.cause, lasting, report.text,
            extra={"cause": report.cause, **report.extra},
        )  # fmt: skip

    def _log_recovery(self, report: OutageReport, outage: _Outage | None) -> None:
        if self._forward is not None:
            self._forward(report)
            return
        after = "" if outage is None else f" after {self._now() - outage.since:.1f} s of cause="
        cause = "" if outage is None else outage.cause
        log.info("%s%s %s%s%s", self._prefix, report.what, report.text, after, cause)


def _is_other_kind(cause: str, other: str) -> bool:
    return _SAME_KIND.get(cause, cause) != _SAME_KIND.get(other, other)
