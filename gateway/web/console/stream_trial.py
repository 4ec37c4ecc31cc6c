"""Open a stream for the page: the same application answers, with the same guards."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.errors import RequestError
from gateway.web.routing.routes import Routes

from .internal_request import PassedResponse, build_scope

PASSED_HEADERS = (b"accept", b"host", b"last-event-id", b"user-agent")


def open_stream(app: ASGIApp, request: Request, routes: Routes) -> PassedResponse:
    """Return the response of the stream of `url`, as a client would get it."""
    url = request.query_params.get("url", "")
    parts = urlsplit(url)
    if not parts.path.startswith("/") or parts.scheme or parts.netloc or not url.isascii():
        detail = "?url= is the path of a stream with its query, such as /events/orders?from=-5m"
        raise RequestError(400, "Bad request", detail)
    routes.match(parts.path)
    return PassedResponse(app, build_scope(request, parts.path, parts.query, PASSED_HEADERS))
