"""Find out why a connection failed, from the exceptions of aiokafka and of the socket."""

from __future__ import annotations

import ssl

from aiokafka import errors as kafka_errors

from gateway.core.log.recovery import Cause
from gateway.errors import AuthenticationFailed, KafkaError

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


def format_error(exc: BaseException) -> str:
    """Return the text of an error's cause, or its own where it has no cause."""
    inner = exc.__cause__ or exc
    if isinstance(inner, kafka_errors.UnsupportedSaslMechanismError):
        return "the broker does not offer this mechanism of kafka.security.sasl"
    return str(inner) or type(inner).__name__


def unwrap_error(exc: KafkaError) -> KafkaError:
    """Return the failure that began a backoff, where an error only says that one lasts.

    While a broker's backoff lasts, each request fails with a new error that carries the first one
    as its cause; the remaining seconds in its text are no news for a log.
    """
    return exc.__cause__ if isinstance(exc.__cause__, KafkaError) else exc


def suggest_listener_setting(exc: BaseException, protocol: str) -> str:
    """Suggest which setting is wrong when a broker closed a connection before it ever answered.

    A broker closes the connection without a word when the client speaks another protocol than its
    listener.

    Args:
        exc: What the attempt to connect raised.
        protocol: The security protocol that the gateway used, such as PLAINTEXT or SASL_SSL.

    Returns:
        The end of a message, beginning with a semicolon; empty where nothing is suggested.
    """
    inner = exc.__cause__ or exc
    if not isinstance(inner, (ConnectionResetError, BrokenPipeError, EOFError, ssl.SSLError)):
        return ""
    if protocol.endswith("SSL"):
        return "; it may not speak TLS on this port, see kafka.security.tls"
    wanted = "TLS" if protocol.startswith("SASL") else "TLS or a login"
    return f"; it may want {wanted} on this port, see kafka.security"
