"""Why a connection failed, from what aiokafka and the socket raised."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiokafka import errors as kafka_errors

from gateway.core.recovery import Cause
from gateway.errors import AuthenticationFailed

_REFUSED = (
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    ssl.SSLCertVerificationError,
    AuthenticationFailed,
)
BROKEN = (OSError, EOFError, TimeoutError, kafka_errors.KafkaError, ValueError, AssertionError)


def cause_of(exc: BaseException | None) -> Cause:
    """Why it failed: aiokafka wraps what the socket said as a `__cause__`."""
    timeout = isinstance(exc, TimeoutError)
    while exc is not None:
        if isinstance(exc, _REFUSED):
            return Cause.AUTHENTICATION
        if isinstance(exc, ssl.SSLError) and "ALERT" in (getattr(exc, "reason", None) or ""):
            return Cause.AUTHENTICATION
        exc = exc.__cause__
    return Cause.TIMEOUT if timeout else Cause.CONNECTION


def cancels_caller(other: asyncio.Future[Any]) -> bool:
    """Is this CancelledError the caller's own, or only that of what it waited for? When both
    were cancelled it is the caller's: one that is kept from it never ends."""
    task = asyncio.current_task()
    return not other.cancelled() or (task is not None and task.cancelling() > 0)


def said(exc: BaseException) -> str:
    inner = exc.__cause__ or exc
    return str(inner) or type(inner).__name__
