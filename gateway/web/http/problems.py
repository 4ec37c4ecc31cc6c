"""Errors as problem details (RFC 9457).

What went wrong for the client is said in the words of the exception; an exception that is
not one of ours says nothing of itself: its message may hold what a client must not see.
"""

from __future__ import annotations

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
    GatewayError,
    KafkaError,
    NotGranted,
    RequestError,
    TokenError,
    TokenTooOld,
    UnknownTopic,
)

from .security_headers import PAGE_HEADERS

DEFAULT_RETRY_AFTER_S = 5.0
"""Seconds a client is asked to wait when Kafka is away and the error knows no better."""


problem_counts: Counter[int] = Counter()
"""Problems that requests were answered with, by status."""


def build_problem(exc: Exception, instance: str) -> Response:
    """The response for an error. instance: the path that was asked for, percent-decoded."""
    status, title, detail = _describe_error(exc)
    problem_counts[status] += 1
    body: dict[str, Any] = {"title": title, "status": status, "detail": detail}
    body |= {name: told for name, told in build_members(exc).items() if name != "message"}
    body["instance"] = quote(instance, safe="/:@!$&'()*+,;=", errors="replace")
    return Response(
        json.dumps(body),
        status,
        {"Cache-Control": "no-store", **PAGE_HEADERS, **_build_headers(exc, status)},
        "application/problem+json",
    )


def get_status(exc: Exception) -> int:
    """The HTTP status that says it best."""
    return _describe_error(exc)[0]


def get_code(exc: Exception) -> str:
    """The error as a word, for wires without a status."""
    match exc:
        case TokenTooOld() | UnknownTopic() | AccessDenied() | RequestError():
            return _describe_error(exc)[1].lower().replace(" ", "-")
        case TokenError():
            return "position-refused"
        case KafkaError():
            return "kafka-unavailable"
        case HTTPException(status_code=404):
            return "unknown-path"
        case HTTPException():
            return HTTPStatus(exc.status_code).phrase.lower().replace(" ", "-")
    return "internal-error"


def build_members(exc: Exception) -> dict[str, Any]:
    """What else a message about the error says."""
    told: dict[str, Any] = {"message": _describe_error(exc)[2]}
    topic = getattr(exc, "topic", None) if isinstance(exc, GatewayError) else None
    if topic is not None:
        told["topic"] = topic
    if isinstance(exc, NotGranted) and exc.roles:
        told["roles"] = list(exc.roles)
    return told


def _describe_error(exc: Exception) -> tuple[int, str, str]:
    match exc:
        case RequestError():
            return exc.status, exc.title, str(exc)
        case TokenTooOld():
            return 403, "History is limited", str(exc)
        case TokenError():
            return 400, "Resume token refused", str(exc)
        case UnknownTopic():
            return 404, "Unknown topic", str(exc)
        case AccessDenied():
            return 403, "Access denied", str(exc)
        case KafkaError():
            return 503, "Kafka is unavailable", "Kafka does not answer as it should; try again"
        case HTTPException():
            return exc.status_code, HTTPStatus(exc.status_code).phrase, _describe_http_error(exc)
    return 500, "Internal error", "the gateway failed; its log says why"


def _describe_http_error(exc: HTTPException) -> str:
    if exc.status_code == 404:
        return "no route has this path; see the routes of the configuration"
    if exc.status_code == 405:
        return f"this path answers to {(exc.headers or {}).get('Allow', 'other methods')}"
    return exc.detail


def _build_headers(exc: Exception, status: int) -> Mapping[str, str]:
    if isinstance(exc, HTTPException):
        return exc.headers or {}
    wait: float | None = getattr(exc, "retry_after", None)
    if wait is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        wait = DEFAULT_RETRY_AFTER_S
    if isinstance(exc, NotGranted) and exc.challenge is not None:
        return {"WWW-Authenticate": exc.challenge}
    return {} if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}


async def handle_error(request: Request, exc: Exception) -> Response:
    return build_problem(exc, request.url.path)


EXCEPTION_HANDLERS: Mapping[Any, ExceptionHandler] = {
    GatewayError: handle_error,
    HTTPException: handle_error,
    Exception: handle_error,
}
"""For Starlette's `exception_handlers`: every error of an application becomes a problem."""
