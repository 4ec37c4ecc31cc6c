"""Find out why a connection failed, and say it in one sentence with the remedy.

`cause_from_exception` finds the kind of a failure, by which it is retried and counted.
`describe_failure` is the only place that words one: the log, `/health/ready`, errors and `check
--cluster` show its sentence. A broker that is asked in another protocol than its listener's closes
the connection without a word, so the sentence depends on how far the connection came. The behaviour
of Kafka 4.3 was observed at each of its listeners (tests/kafka/client/test_listener_failures.py).
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from asyncio import IncompleteReadError
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiokafka import errors as kafka_errors

from gateway.core.log.recovery import Cause
from gateway.errors import AuthenticationFailed, KafkaError

from .aiokafka_internals import MechanismNotOffered

if TYPE_CHECKING:
    from gateway.config.sections.security import Security

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
    description = _Description(exc, attempt, options or SecurityOptions())
    return description.describe()


class _Description:
    """The sentence of one failure. Each method returns None if it does not know the failure."""

    def __init__(
        self, exc: BaseException, attempt: FailedAttempt, options: SecurityOptions
    ) -> None:
        self._exc = exc
        # aiokafka and asyncio say in the innermost error what happened.
        self._inner = list(_iter_causes(exc))[-1]
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
            where = (
                self._servers if self._attempt.is_bootstrap else "the broker's advertised.listeners"
            )
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
            return (
                f"requires a client certificate; set {self._name_option('tls.certificate and key')}"
            )
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
            return (
                f"speaks TLS on this port, and the gateway does not; set {self._name_option('tls')}"
            )
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


def _iter_causes(exc: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = exc
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _format_socket_error(exc: BaseException) -> str:
    # asyncio puts the errors of several addresses of a name into one text.
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(exc))}
    if isinstance(exc, OSError) and len(numbers) == 1:
        text = os.strerror(numbers.pop())
        return text[0].lower() + text[1:]
    return str(exc) or type(exc).__name__
