"""Convert errors to responses with problem details (RFC 9457).

The message of one of our exceptions becomes the `detail` of the problem. The message of any other
exception is not shown, since it may hold what a client must not see.
"""

from __future__ import annotations

import errno
import json
import math
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from gateway.errors import (
    AccessDenied,
    FormatError,
    GatewayError,
    InvalidRecord,
    KafkaError,
    KeyReused,
    NotGranted,
    RecordRefused,
    RecordTooLarge,
    RegistryUnavailable,
    RequestError,
    TableTooLarge,
    TokenError,
    TokenTooOld,
    TransactionOpen,
    UnknownGroup,
    UnknownTopic,
    WritesFull,
)

from .browsers import PAGE_HEADERS

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
DEFAULT_RETRY_AFTER_S = 5.0
"""Seconds of `Retry-After` for a 503 whose error names no time."""


problem_counts: Counter[int] = Counter()
"""How many problems this process has responded with, by status. `web/admin/metrics.py` reads it."""


def build_problem(exc: Exception, instance: str) -> Response:
    """Return the response for an error, and count it. An error that is not ours becomes a 500."""
    status, title, detail = _describe_error(exc)
    problem_counts[status] += 1
    body: dict[str, Any] = {"title": title, "status": status, "detail": detail}
    # `message` is the same text as `detail`, under the name that WebSocket messages have for it.
    body |= {name: value for name, value in build_members(exc).items() if name != "message"}
    body["instance"] = quote(instance, safe="/:@!$&'()*+,;=", errors="replace")
    return Response(
        json.dumps(body),
        status,
        {"Cache-Control": "no-store", **PAGE_HEADERS, **_build_headers(exc, status)},
        "application/problem+json",
    )


def get_status(exc: Exception) -> int:
    return _describe_error(exc)[0]


def get_code(exc: Exception) -> str:
    """Return the error as a code in kebab case, for wires without an HTTP status."""
    match exc:
        case TokenError() if not isinstance(exc, TokenTooOld):
            return "position-refused"
        case KafkaError() if not isinstance(exc, UnknownTopic | UnknownGroup | AccessDenied):
            return "kafka-unavailable"
        case HTTPException(status_code=404):
            return "unknown-path"
    return _describe_error(exc)[1].lower().replace(" ", "-")


def build_members(exc: Exception) -> dict[str, Any]:
    """Return `message`, and `topic` and `roles` where the error is about these, as JSON members."""
    members: dict[str, Any] = {"message": _describe_error(exc)[2]}
    topic = getattr(exc, "topic", None) if isinstance(exc, GatewayError) else None
    if topic is not None:
        members["topic"] = topic
    if isinstance(exc, NotGranted) and exc.roles:
        members["roles"] = list(exc.roles)
    return members


def _describe_error(exc: Exception) -> tuple[int, str, str]:
    # The order matters: subclasses stand before their bases, such as TokenTooOld before TokenError
    # and UnknownTopic before KafkaError.
    match exc:
        case RequestError():
            return exc.status, exc.title, str(exc)
        case KeyReused():
            return 422, "Idempotency key reused", str(exc)
        case RecordTooLarge():
            return 413, "Content too large", str(exc)
        case InvalidRecord():
            return 400, "Bad request", str(exc)
        case RecordRefused():
            return 422, "Record refused", str(exc)
        case FormatError():
            return 400, "Not of the model", str(exc)
        case RegistryUnavailable():
            return 503, "Registry away", str(exc)
        case TableTooLarge():
            return 503, "Too many keys", str(exc)
        case TokenTooOld():
            return 403, "History is limited", str(exc)
        case TokenError():
            return 400, "Resume token refused", str(exc)
        case UnknownTopic():
            return 404, "Unknown topic", str(exc)
        case UnknownGroup():
            return 404, "Unknown group", str(exc)
        case AccessDenied():
            return 403, "Access denied", str(exc)
        case TransactionOpen():
            return 503, "Transaction open", str(exc)
        case WritesFull():
            return 503, "Busy", str(exc)
        case KafkaError():
            return 503, "Kafka is unavailable", "Kafka does not answer as it should; try again"
        case HTTPException(status_code=404):
            return 404, "Unknown path", _describe_http_error(exc)
        case HTTPException():
            return exc.status_code, HTTPStatus(exc.status_code).phrase, _describe_http_error(exc)
        # A file, a connection or a module that a request is the first to need cannot be opened.
        case OSError() if exc.errno in _NO_DESCRIPTOR:
            return 503, "Busy", "the gateway has no free file descriptor; try again"
    return 500, "Internal error", "the gateway failed; its log says why"


def _describe_http_error(exc: HTTPException) -> str:
    if exc.status_code == 404 and exc.detail == HTTPStatus.NOT_FOUND.phrase:
        return "no route has this path; see the routes of the configuration"
    if exc.status_code == 405:
        return f"this path answers to {(exc.headers or {}).get('Allow', 'other methods')}"
    return exc.detail


def _build_headers(exc: Exception, status: int) -> Mapping[str, str]:
    if isinstance(exc, HTTPException):
        return exc.headers or {}
    retry_after_s: float | None = getattr(exc, "retry_after", None)
    if retry_after_s is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after_s = DEFAULT_RETRY_AFTER_S
    # A 401 must name the authentication scheme (RFC 9110 11.6.1).
    if isinstance(exc, NotGranted) and exc.challenge is not None:
        return {"WWW-Authenticate": exc.challenge}
    if retry_after_s is None:
        return {}
    return {"Retry-After": str(max(1, math.ceil(retry_after_s)))}


async def handle_error(request: Request, exc: Exception) -> Response:
    """Return the problem for an error of a request. It is a Starlette exception handler."""
    return build_problem(exc, request.url.path)


EXCEPTION_HANDLERS: Mapping[Any, ExceptionHandler] = {
    GatewayError: handle_error,
    HTTPException: handle_error,
    Exception: handle_error,
}
"""The `exception_handlers` of a Starlette application, so that every error becomes a problem."""
