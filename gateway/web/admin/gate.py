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
from gateway.web.routing.limits import Limits, address_of

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

PAGE = "a page of a browser may ask for nothing here; use curl, or a program"
OFTEN = "your address asks more often than listen.limits.rate says; come back later"
NAME = "ask by an address of this machine, such as http://127.0.0.1; or add admin.guarded"


class Gate:
    """See the module. Where guards are asked, `listen.limits.rate` holds here, too; operators are
    counted apart from clients, so that a flood of those keeps no operator out."""

    def __init__(self, guards: Guards, limits: Limits) -> None:
        self._guards = guards
        self._limits = limits

    def guarded(self, handler: Handler) -> Handler:
        """Only for those who may ask."""

        async def admitted(request: Request) -> Response:
            request.state.who = await self._admit(request)
            return await handler(request)

        return admitted

    async def _admit(self, request: Request) -> Granted:
        """Raises RequestError 401, 403, 429 and 503."""
        if "origin" in request.headers:
            raise RequestError(403, "Forbidden", PAGE)
        address = address_of(request.scope)
        if self._guards.ask_operators and address:
            wait = await self._limits.attempt(f"operator {address}")
            if wait is not None:
                raise RequestError(429, "Busy", OFTEN, retry_after=wait)
        who = await self._guards.operator(request)
        if not who and not is_loopback(_named(request)):
            raise RequestError(403, "Forbidden", NAME)
        return who


def _named(request: Request) -> str | None:
    """By what host it was asked; None where that is not to be read."""
    try:
        return request.url.hostname
    except ValueError:
        return None


def note(request: Request, action: str, **about: Any) -> None:
    """A line of the log: what was done, to what, and who asked."""
    told = " ".join(f"{key}={value!r}" for key, value in about.items() if value is not None)
    address = request.client.host if request.client else ""
    log.info("admin: %s %s by=%s address=%s", action, told, name_of_who(request), address)


def name_of_who(request: Request) -> str:
    """Who asked, as each guard knows them."""
    who: Granted = request.state.who
    return " ".join(f"{guard}:{name}" for guard, name in who.identities.items()) or "anyone"
