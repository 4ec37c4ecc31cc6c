"""Authorize operators: by the guards of `admin`, or, without guards, by being on this machine.

Pages of other sites are refused, also on this machine: their requests reach the port. With a host
name that resolves to this machine, their scripts could even read the responses. The page of this
port itself, the console, is admitted by its origin and by a header that a page of another site
cannot send without a preflight request, which nothing here answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.config.types.address import is_loopback
from gateway.errors import NotGranted, RequestError
from gateway.web.access import Granted
from gateway.web.access.guards import Guards
from gateway.web.routing.foreign_origins import is_foreign_request
from gateway.web.routing.limits import Limits, get_client_address
from gateway.wire.host import get_requested_host

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Request], Awaitable[ASGIApp]]
"""Answers a request with a response of Starlette, or with another application that answers it."""

PAGE_REFUSED_MESSAGE = "pages of other sites may not use this API; use /console, curl, or a program"
HEADER_REQUIRED_MESSAGE = "pages must send the header Gateway-Console; /console does"
CONSOLE_HEADER = "gateway-console"
"""The header of every request of the console's scripts. Forms and pages of other sites cannot send
it (Fetch 2.2.2: it is no CORS-safelisted request-header)."""
CONSOLE_CHALLENGE = 'Bearer realm="gateway"'
RATE_LIMITED_MESSAGE = "your address asks more often than listen.limits.rate says; come back later"
HOST_REFUSED_MESSAGE = (
    "use an address of this machine, such as http://127.0.0.1; or add admin.guarded"
)


class OperatorAuthorizer:
    """Decides who may use the admin API.

    If there are guards, `listen.limits.rate` applies to operators, too. They are counted apart from
    clients, so that a flood of clients keeps no operator out.
    """

    def __init__(self, guards: Guards, limits: Limits) -> None:
        self._guards = guards
        self._limits = limits

    def require_operator(self, handler: Handler) -> Handler:
        async def handle_authorized(request: Request) -> ASGIApp:
            request.state.operator = await self._authorize(request)
            return await handler(request)

        return handle_authorized

    async def _authorize(self, request: Request) -> Granted:
        """Return what is known of the operator, or raise a `RequestError`: 401, 403, 429 or 503."""
        _refuse_foreign_page(request)
        address = get_client_address(request.scope)
        if self._guards.has_operator_guards and address:
            wait = await self._limits.count_attempt(f"operator {address}")
            if wait is not None:
                raise RequestError(429, "Busy", RATE_LIMITED_MESSAGE, retry_after=wait)
        try:
            granted = await self._guards.admit_operator(request)
        except NotGranted as exc:
            if CONSOLE_HEADER in request.headers:
                # For `Basic`, the browser would ask in a window of its own, before the page knows.
                exc.challenge = CONSOLE_CHALLENGE
            raise
        # Without guards, a request for any other host name may come from a page by DNS rebinding.
        if not granted and not is_loopback(get_requested_host(request.scope)):
            raise RequestError(403, "Forbidden", HOST_REFUSED_MESSAGE)
        return granted


def _refuse_foreign_page(request: Request) -> None:
    """Refuse requests of pages, except those of the console.

    Browsers send Origin with every request except plain GETs to the same site and GETs whose
    responses a page of another site cannot read. Of the latter, most say so by Sec-Fetch-Site.
    """
    headers = request.headers
    origin = headers.get("origin")
    sites = set(headers.getlist("sec-fetch-site"))
    is_foreign = not sites <= {"same-origin", "none"} or (
        origin is not None and is_foreign_request(origin, request.scope)
    )
    if is_foreign:
        raise RequestError(403, "Forbidden", PAGE_REFUSED_MESSAGE)
    if origin is not None and CONSOLE_HEADER not in headers:
        raise RequestError(403, "Forbidden", HEADER_REQUIRED_MESSAGE)


def log_action(request: Request, action: str, **details: Any) -> None:
    text = " ".join(f"{key}={value!r}" for key, value in details.items() if value is not None)
    address = request.client.host if request.client else ""
    log.info("admin: %s %s by=%s address=%s", action, text, format_operator(request), address)


def format_operator(request: Request) -> str:
    operator: Granted = request.state.operator
    return " ".join(f"{guard}:{name}" for guard, name in operator.identities.items()) or "anyone"
