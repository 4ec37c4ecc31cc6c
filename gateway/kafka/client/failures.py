"""Why a connection failed, from what aiokafka and the socket raised."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

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
CONNECTION_ERRORS = (
    OSError,
    EOFError,
    TimeoutError,
    kafka_errors.KafkaError,
    ValueError,
    AssertionError,
)


def cause_from_exception(exc: BaseException | None) -> Cause:
    """Why it failed: aiokafka wraps what the socket said as a `__cause__`."""
    timeout = isinstance(exc, TimeoutError)
    while exc is not None:
        if isinstance(exc, _AUTHENTICATION_ERRORS):
            return Cause.AUTHENTICATION
        if isinstance(exc, ssl.SSLError) and "ALERT" in (getattr(exc, "reason", None) or ""):
            return Cause.AUTHENTICATION
        exc = exc.__cause__
    return Cause.TIMEOUT if timeout else Cause.CONNECTION


def is_caller_cancelled(other: asyncio.Future[Any]) -> bool:
    """Is this CancelledError the caller's own, or only that of what it waited for? When both
    were cancelled it is the caller's: one that is kept from it never ends."""
    task = asyncio.current_task()
    return not other.cancelled() or (task is not None and task.cancelling() > 0)


def format_error(exc: BaseException) -> str:
    """Return an error's own words, or those of what caused it."""
    inner = exc.__cause__ or exc
    if isinstance(inner, kafka_errors.UnsupportedSaslMechanismError):
        return "the broker does not offer this mechanism of kafka.security.sasl"
    return str(inner) or type(inner).__name__


def unwrap_error(exc: KafkaError) -> KafkaError:
    """Return the failure for which a request was not even sent, or the error itself.

    While a broker's delay runs, requests to it fail with another error each time, which is no news.
    """
    return exc.__cause__ if isinstance(exc.__cause__, KafkaError) else exc


def suggest_listener_setting(exc: BaseException, protocol: str) -> str:
    """Return what may be wrong where a broker closed a connection before it ever answered.

    Brokers say nothing to those who speak another protocol than their listener does.

    Args:
        exc: What the attempt to connect raised.
        protocol: What the gateway spoke, as Kafka names it: PLAINTEXT, SSL, SASL_SSL.

    Returns:
        The rest of a sentence, or nothing.
    """
    inner = exc.__cause__ or exc
    if not isinstance(inner, (ConnectionResetError, BrokenPipeError, EOFError, ssl.SSLError)):
        return ""
    if protocol.endswith("SSL"):
        return "; it may not speak TLS on this port, see kafka.security.tls"
    wanted = "TLS" if protocol.startswith("SASL") else "TLS or a login"
    return f"; it may want {wanted} on this port, see kafka.security"
