"""Find out why Kafka cannot be used, say it in one sentence with the remedy, and log it once.

`cause_from_exception` finds the kind of a failure, by which it is retried and counted.
`describe_failure` is the only place that words one: the log, `/health/ready`, errors and `check
--cluster` show its sentence. A broker that is asked in another protocol than its listener's closes
the connection without a word, so the sentence depends on how far the connection came. The behaviour
of Kafka 4.3 was observed at each of its listeners (tests/kafka/client/test_listener_failures.py).

`Outages` logs once for each change of state. Most failures are due to a broker or the whole cluster
that is away, and one line about that says it for all: a topic, a group or a replay gets a line of
its own only if it fails for another reason, or if it fails for `GRACE_S` although its broker
answers others.

Of several processes with the same clusters, each reports the same. `OutageReport` is therefore data
that can be sent to a process that logs for all of them (`web.workers.outage_log`).
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
from asyncio import IncompleteReadError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import errors as kafka_errors

from gateway.core.error_code import code_from_error
from gateway.core.log.recovery import Cause, cause_from_code
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError

from .aiokafka_internals import MechanismNotOffered

if TYPE_CHECKING:
    from gateway.config.sections.security import Security

log = logging.getLogger(__name__)

REPEAT_INTERVAL_S = 60.0  # from one line to the next while an outage lasts
# Until something that fails for want of a connection gets a line, while no outage of a broker is
# known. It is longer than `Metadata` needs to find that a broker is away.
GRACE_S = 5.0
CLUSTER_LABEL = "Kafka"
_BROKER_LABEL_START = "broker="
# A broker that goes away refuses connections at first and gives no answers later, or the reverse.
_SAME_KIND: Mapping[str | None, str] = {Cause.TIMEOUT: Cause.CONNECTION}

_AUTHENTICATION_ERRORS = (
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    ssl.SSLCertVerificationError,
    AuthenticationFailed,
)
# What connecting, sending and decoding may raise. aiokafka raises ValueError and AssertionError
# for answers that it does not understand, and so do the decoders of `protocol`.
CONNECTION_ERRORS = (
    OSError,
    EOFError,
    TimeoutError,
    kafka_errors.KafkaError,
    ValueError,
    AssertionError,
)
# OpenSSL's codes of refused certificates (openssl-verification-options).
_NOT_YET_VALID = 9
_EXPIRED = 10
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_NAME_MISMATCH = frozenset({62, 64})  # of a host name, of an IP address
# The first four bytes of a Kafka response are its size. These are the size that the beginning of a
# TLS alert (RFC 8446 5.1: type 21, version 3.x) and of an HTTP response seem to announce.
_SIZES_OF_TLS_ALERTS = range(0x1503_0000, 0x1503_0500)
_SIZE_OF_HTTP = int.from_bytes(b"HTTP")


@dataclass(frozen=True, slots=True)
class OptionNames:
    """The names of a cluster's options in messages.

    Attributes:
        section: The section of the configuration, such as `kafka` or `kafka.east`.
        servers: The option with the bootstrap servers; empty for that of the section.
        location: Text behind the name of an option, such as ` in a file for --config`.
    """

    section: str = "kafka"
    servers: str = ""
    location: str = ""

    def name_servers(self) -> str:
        return self.servers or f"{self.section}.servers"

    def name_security(self, option: str) -> str:
        return f"{self.section}.security.{option}{self.location}"


DEFAULT_OPTION_NAMES = OptionNames()
"""The names of the options of the only cluster of a configuration."""


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The use that a cluster's connections make of TLS and SASL, and the names of its options.

    Attributes:
        ca: Whether certificate authorities are configured, in place of those of the system.
        mechanism: The SASL mechanism, as brokers write it; empty without a login.
    """

    names: OptionNames = DEFAULT_OPTION_NAMES
    tls: bool = False
    ca: bool = False
    certificate: bool = False
    mechanism: str = ""

    @classmethod
    def from_config(
        cls, security: Security | None, names: OptionNames = DEFAULT_OPTION_NAMES
    ) -> SecurityOptions:
        tls = security.tls if security is not None else None
        sasl = security.sasl if security is not None else None
        return cls(
            names,
            tls is not None,
            tls is not None and tls.ca is not None,
            tls is not None and tls.certificate is not None,
            sasl.mechanism.upper() if sasl is not None else "",
        )


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """How far a connection came before it failed.

    Attributes:
        is_bootstrap: Whether the configuration names this address; the cluster does otherwise.
        has_answered: Whether a request to this broker was ever answered.
        is_connected: Whether the broker had told its API versions and accepted the login.
    """

    host: str
    is_bootstrap: bool = True
    has_answered: bool = False
    is_connected: bool = False


def cause_from_exception(exc: BaseException | None) -> Cause:
    """Return the kind of a failure. aiokafka wraps the socket's error as a `__cause__`."""
    timeout = isinstance(exc, TimeoutError)
    while exc is not None:
        if isinstance(exc, _AUTHENTICATION_ERRORS):
            return Cause.AUTHENTICATION
        # A TLS alert is how a broker refuses a client certificate.
        if isinstance(exc, ssl.SSLError) and "ALERT" in (getattr(exc, "reason", None) or ""):
            return Cause.AUTHENTICATION
        exc = exc.__cause__
    return Cause.TIMEOUT if timeout else Cause.CONNECTION


def is_unexpected(exc: BaseException) -> bool:
    return not isinstance(exc, (*CONNECTION_ERRORS, KafkaError))


def unwrap_error(exc: KafkaError) -> KafkaError:
    """Return the failure that began a backoff, where an error only says that one lasts."""
    return exc.__cause__ if isinstance(exc.__cause__, KafkaError) else exc


def describe_failure(
    exc: BaseException, attempt: FailedAttempt, options: SecurityOptions | None = None
) -> str:
    """Return the failure and its remedy as a sentence without a subject."""
    return _Description(exc, attempt, options or SecurityOptions()).describe()


class _Description:
    """The sentence of one failure. Each method returns None if it does not know the failure."""

    def __init__(
        self, exc: BaseException, attempt: FailedAttempt, options: SecurityOptions
    ) -> None:
        self._exc = exc
        # aiokafka and asyncio say in the innermost error what happened.
        self._inner = exc
        while self._inner.__cause__ is not None:
            self._inner = self._inner.__cause__
        self._attempt = attempt
        self._options = options
        self._name_option = options.names.name_security
        self._servers = options.names.name_servers()

    def describe(self) -> str:
        return (
            self._describe_preparation()
            or self._describe_login()
            or self._describe_certificate()
            or self._describe_alert()
            or self._describe_other_protocol()
            or self._describe_address()
        )

    def _describe_preparation(self) -> str | None:
        """Describe a failure of the gateway itself: missing certificates or tokens, or a bug."""
        if isinstance(self._exc, KafkaError):
            return f"is not connected to: {self._exc}"
        if is_unexpected(self._exc):
            return f"is not connected to: an unexpected {self._exc!r}; see the log, and report it"
        return None

    def _describe_login(self) -> str | None:
        inner = self._inner
        if isinstance(inner, kafka_errors.IllegalSaslStateError):
            return (
                "takes no login on this port, its listener has no SASL; "
                f"remove {self._name_option('sasl')}, or use the port of a listener with SASL"
            )
        if isinstance(self._exc, MechanismNotOffered):
            offered = ", ".join(self._exc.offered) or "none"
            return (
                f"does not offer the SASL mechanism {self._options.mechanism}, but {offered}; "
                f"correct {self._name_option('sasl.mechanism')}"
            )
        if isinstance(inner, kafka_errors.SaslAuthenticationFailed):
            said = f" ({inner.args[0]})" if inner.args and inner.args[0] else ""
            if self._options.mechanism == "OAUTHBEARER":
                sasl = self._name_option("sasl")
                return f"refuses the token{said}; check {sasl} and what the broker expects"
            options = self._name_option("sasl.username and password")
            return f"refuses the login{said}; correct {options}"
        return None

    def _describe_certificate(self) -> str | None:
        inner = self._inner
        if not isinstance(inner, ssl.SSLCertVerificationError):
            return None
        code = inner.verify_code
        if code == _EXPIRED:
            return "has a certificate that has expired; renew it at the broker"
        if code == _NOT_YET_VALID:
            return "has a certificate that is not valid yet; check the clocks of both machines"
        if code in _NAME_MISMATCH:
            advertised = "the broker's advertised.listeners"
            where = self._servers if self._attempt.is_bootstrap else advertised
            return (
                f"has a certificate for other names than {self._attempt.host}; "
                f"use one of its names in {where}, or add this name to the certificate"
            )
        if code in _UNKNOWN_AUTHORITY:
            doubt = (
                f"correct {self._name_option('tls.ca')}, which has another one"
                if self._options.ca
                else f"set {self._name_option('tls.ca')} to a PEM file with this authority"
            )
            return f"has a certificate of an authority that the gateway does not trust; {doubt}"
        what = f"has a certificate that is not valid ({inner.verify_message})"
        return f"{what}; see {self._name_option('tls')}"

    def _describe_alert(self) -> str | None:
        inner = self._inner
        reason = getattr(inner, "reason", None) or ""
        if not isinstance(inner, ssl.SSLError) or "ALERT_" not in reason:
            return None
        alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
        if "protocol version" in alert:
            return "speaks no TLS version that the gateway accepts; enable TLS 1.2 at the broker"
        if not self._options.certificate and alert in ("bad certificate", "certificate required"):
            option = self._name_option("tls.certificate and key")
            return f"requires a client certificate; set {option}"
        if self._options.certificate and ("certificate" in alert or alert == "unknown ca"):
            return (
                f"refuses the gateway's certificate ({alert}); it may have expired, or be of an "
                "authority that the broker does not trust: correct "
                f"{self._name_option('tls.certificate')}"
            )
        return f"refuses the TLS handshake ({alert}); see {self._name_option('tls')}"

    def _describe_other_protocol(self) -> str | None:
        size = self._inner.expected if isinstance(self._inner, IncompleteReadError) else None
        if size in _SIZES_OF_TLS_ALERTS:
            option = self._name_option("tls")
            return f"speaks TLS on this port, and the gateway does not; set {option}"
        if size == _SIZE_OF_HTTP:
            return f"is an HTTP server and not Kafka; correct {self._servers}"
        is_closed = isinstance(
            self._inner, (ConnectionResetError, BrokenPipeError, EOFError, ssl.SSLError)
        )
        if not is_closed or self._attempt.has_answered:
            return None
        # aiokafka wraps what happens once TCP and TLS are established.
        is_established = isinstance(self._exc, kafka_errors.KafkaConnectionError)
        if self._options.tls and not is_established:
            return (
                "ends the TLS handshake, as a port without TLS does; "
                f"remove {self._name_option('tls')}, or use the port of a listener with TLS"
            )
        if self._attempt.is_connected and not self._options.mechanism:
            return (
                "closes the connection at the first request, as a listener that requires a login "
                f"does; set {self._name_option('sasl')}"
            )
        if self._options.tls and not self._options.certificate:
            return (
                "closes the connection after the TLS handshake, as a listener that requires a "
                f"client certificate may do; see {self._name_option('tls.certificate')}"
            )
        if not self._options.tls and not self._attempt.is_connected:
            return (
                "closes the connection without an answer, as a port that expects TLS may do; "
                f"see {self._name_option('tls')}"
            )
        return None

    def _describe_address(self) -> str:
        advice = self._advise_on_address()
        if isinstance(self._exc, TimeoutError):
            return f"gave no answer in time{advice}"
        inner = self._inner
        if isinstance(inner, socket.gaierror):
            return f"cannot be reached: its host name is unknown{advice}"
        if isinstance(inner, EOFError):
            return "cannot be reached: it closed the connection"
        return f"cannot be reached: {_format_socket_error(inner)}{advice}"

    def _advise_on_address(self) -> str:
        if not isinstance(self._exc, OSError) or isinstance(self._exc, ssl.SSLError):
            return ""
        if self._attempt.has_answered:
            return "; see whether the broker runs"
        if not self._attempt.is_bootstrap:
            return (
                "; the cluster tells clients to connect to this address, see the broker's "
                "advertised.listeners"
            )
        if isinstance(self._inner, socket.gaierror):
            return f"; correct {self._servers}"
        return f"; start the broker, or correct {self._servers}"


def _format_socket_error(exc: BaseException) -> str:
    # asyncio puts the errors of several addresses of a name into one text.
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(exc))}
    if isinstance(exc, OSError) and len(numbers) == 1:
        text = os.strerror(numbers.pop())
        return text[0].lower() + text[1:]
    return str(exc) or type(exc).__name__


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
    report: OutageReport  # with the cause that was logged last
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
        for outage in self._outages.values():
            if outage.logged_at is not None:
                yield outage.report

    def forget_all(self) -> None:
        self._outages.clear()
        self._contact = None

    def report_failure(self, what: str, cause: str, why: str, **extra: object) -> None:
        now, known = self._now(), self._outages.get(what)
        report = OutageReport(what, cause, why, extra)
        if known is None or known.logged_at is None or _is_other_kind(known.report.cause, cause):
            # Another cause is the same outage: its duration counts from the first failure.
            since = now if known is None else known.since
            self._outages[what] = _Outage(report, since, now)
            self._log_failure(report)
        elif now - known.logged_at >= self._repeat_interval:
            known.report, known.logged_at = report, now
            self._log_failure(report, now - known.since)
        else:
            known.report = report._replace(cause=known.report.cause)

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
                report = OutageReport(what, cause, str(reason), extra)
                known = self._outages[what] = _Outage(report, self._now(), None)
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
            outage.report.cause == Cause.AUTHENTICATION and is_broker_label(what)
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
        cause = "" if outage is None else outage.report.cause
        log.info("%s%s %s%s%s", self._prefix, report.what, report.text, after, cause)


def _is_other_kind(cause: str | None, other: str | None) -> bool:
    return _SAME_KIND.get(cause, cause) != _SAME_KIND.get(other, other)
