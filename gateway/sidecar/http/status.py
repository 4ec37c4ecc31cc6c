"""Turn errors into the contract's Status: `{"statusCode", "code", "message", "description"}`.

`code` is a word for programs, `message` says what went wrong, and `description` what to do. An
exception that is not one of ours is answered without its own message, which may hold secrets.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ExceptionHandler

from gateway.errors import (
    AccessDenied,
    FormatError,
    GatewayError,
    KafkaError,
    NotGranted,
    PartitionUnreadable,
    RegistryUnavailable,
    RequestError,
    UnknownTopic,
    WritesFull,
)

log = logging.getLogger(__name__)

DEFAULT_RETRY_AFTER_S = 5.0  # for a 503 whose error has no delay of its own

NO_STORE_HEADERS: Mapping[str, str] = {"Cache-Control": "no-store"}


class NotReady(GatewayError):
    """A component cannot serve now; `reason` is for operators."""

    def __init__(self, component: str, reason: str) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.reason = reason


class StatusError(RequestError):
    """Answer a request with an HTTP status that is no success.

    Args:
        detail: `what went wrong; what to do`.
        code: A word for programs, such as INSTANCE_NOT_FOUND; by default that of the status.
        retry_after: In seconds.
    """

    def __init__(
        self, status: int, detail: str, *, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(status, HTTPStatus(status).phrase, detail, retry_after=retry_after)
        self.code = code or _get_default_code(status)


def build_status(status: int, code: str, detail: str) -> dict[str, Any]:
    """Build the members of a Status; the detail is split at its first semicolon."""
    message, _, description = detail.partition("; ")
    return {
        "statusCode": status,
        "code": code,
        "message": message,
        "description": description or message,
    }


def describe_error(exc: Exception) -> tuple[int, str, str]:
    """Return the HTTP status, the code, and `what went wrong; what to do` of an error."""
    match exc:
        case StatusError():
            return exc.status, exc.code, str(exc)
        case RequestError():
            return exc.status, _get_default_code(exc.status), str(exc)
        case UnknownTopic():
            return 404, "UNKNOWN_TOPIC", str(exc)
        case AccessDenied():
            return 403, "KAFKA_ACCESS_DENIED", str(exc)
        case FormatError():
            return 400, "WRONG_FORMAT", str(exc)
        case RegistryUnavailable():
            return 503, "REGISTRY_UNAVAILABLE", f"{exc}"
        case PartitionUnreadable():
            return 409, "RECORDS_UNREADABLE", str(exc)
        case WritesFull():
            return 503, "WRITES_FULL", str(exc)
        case KafkaError():
            # Kafka's own message may name brokers, so it goes to the log only.
            detail = "Kafka does not answer as it should; try again, the log says why"
            return 503, "KAFKA_UNAVAILABLE", detail
        case NotReady():
            return 503, "NOT_READY", str(exc)
        case HTTPException():
            return (
                exc.status_code,
                _get_default_code(exc.status_code),
                _describe_http_exception(exc),
            )
    return 500, "INTERNAL_ERROR", "the sidecar failed; its log says why"


def build_error_response(exc: Exception) -> Response:
    status, code, detail = describe_error(exc)
    return build_json_response(
        build_status(status, code, detail), status, build_error_headers(exc, status)
    )


def build_error_headers(exc: Exception, status: int) -> dict[str, str]:
    if isinstance(exc, HTTPException):
        return dict(exc.headers or {})
    if isinstance(exc, NotGranted) and exc.challenge is not None:
        return {"WWW-Authenticate": exc.challenge}
    delay: float | None = getattr(exc, "retry_after", None)
    if delay is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        delay = DEFAULT_RETRY_AFTER_S
    return {} if delay is None else {"Retry-After": str(max(1, math.ceil(delay)))}


def build_json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Build a JSON response that caches do not store; bytes are JSON already."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return Response(data, status, {**NO_STORE_HEADERS, **(headers or {})}, "application/json")


async def handle_error(request: Request, exc: Exception) -> Response:
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        exc = HTTPException(405, headers={"Allow": ", ".join(_list_methods(request))})
    if isinstance(exc, KafkaError):
        log.info("%s %s: %s", request.method, request.url.path, exc)
    return build_error_response(exc)


# For the `exception_handlers` of Starlette.
EXCEPTION_HANDLERS: Mapping[Any, ExceptionHandler] = {
    GatewayError: handle_error,
    HTTPException: handle_error,
    Exception: handle_error,
}


def _list_methods(request: Request) -> list[str]:
    """Return the methods of a path; Starlette names those of the first of its routes."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    matching = (route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL)
    return sorted({method for route in matching for method in route.methods or ()})


def _describe_http_exception(exc: HTTPException) -> str:
    if exc.status_code == 404:
        return "nothing is served at this path; GET /docs lists what is"
    if exc.status_code == 405:
        return f"this path has other methods; use {(exc.headers or {}).get('Allow', 'those')}"
    return exc.detail


def _get_default_code(status: int) -> str:
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "CONTENT_TOO_LARGE"  # RFC 9110 15.5.14; Python's own word is another from 3.13 on
    return HTTPStatus(status).phrase.upper().replace(" ", "_").replace("-", "_")
