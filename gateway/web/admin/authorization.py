"""Who may ask: whom the guards of `admin` know; where it has none, programs of this machine.

A page in a browser of this machine is none of these: it could come from anywhere, and the port is
reached by its requests (and, by a name that leads here, its scripts could read the answers).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from gateway.config.checks.guards import is_loopback
from gateway.errors import RequestError
from gateway.web.access import Granted
from gateway.web.access.guards import Guards
from gateway.web.routing.limits import Limits, get_client_address

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

PAGE_REFUSED_MESSAGE = "a page of a browser may ask for nothing here; use curl, or a program"
RATE_LIMITED_MESSAGE = "your address asks more often than listen.limits.rate says; come back later"
HOST_REFUSED_MESSAGE = (
    "ask by an address of this machine, such as http://127.0.0.1; or add admin.guarded"
)


class OperatorAuthorizer:
    """See the module. Where guards are asked, `listen.limits.rate` holds here, too; operators are
    counted apart from clients, so that a flood of those keeps no operator out."""

    def __init__(self, guards: Guards, limits: Limits) -> None:
        self._guards = guards
        self._limits = limits

    def require_operator(self, handler: Handler) -> Handler:
        """Only for those who may ask."""

        async def handle_authorized(request: Request) -> Response:
            request.state.operator = await self._authorize(request)
            return await handler(request)

        return handle_authorized

    async def _authorize(self, request: Request) -> Granted:
        """Raises RequestError 401, 403, 429 and 503."""
        if "origin" in request.headers:
            raise RequestError(403, "Forbidden", PAGE_REFUSED_MESSAGE)
        address = get_client_address(request.scope)
        if self._guards.has_operator_guards and address:
            wait = await self._limits.count_attempt(f"operator {address}")
            if wait is not None:
                raise RequestError(429, "Busy", RATE_LIMITED_MESSAGE, retry_after=wait)
        who = await self._guards.admit_operator(request)
        if not who and not is_loopback(_get_hostname(request)):
            raise RequestError(403, "Forbidden", HOST_REFUSED_MESSAGE)
        return who


def _get_hostname(request: Request) -> str | None:
    """By what host it was asked; None where that is not to be read."""
    try:
        return request.url.hostname
    except ValueError:
        return None


def log_action(request: Request, action: str, **details: Any) -> None:
    """A line of the log: what was done, to what, and who asked."""
    told = " ".join(f"{key}={value!r}" for key, value in details.items() if value is not None)
    address = request.client.host if request.client else ""
    log.info("admin: %s %s by=%s address=%s", action, told, format_operator(request), address)


def format_operator(request: Request) -> str:
    """Who asked, as each guard knows them."""
    operator: Granted = request.state.operator
    return " ".join(f"{guard}:{name}" for guard, name in operator.identities.items()) or "anyone"
