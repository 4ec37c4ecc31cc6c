"""What pages of other sites may do, by CORS (Fetch 3.3): whose answers they may read, and what they
are told before they ask for more (a preflight).

A route has its own `access-control`, or that of `listen`; so have the gateway's pages. What belongs
to streams whatever their route (its module, renewals of tokens) is for whoever may read some route.
In front of WebSockets, to which CORS does not apply, stands `origin`.

Nothing of it is asked where no page of another site may do anything. Where some may, it is 0.4 us
of a connect of whoever is no such page, and 3 us of one that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from gateway.config import AccessControl, Route, Settings
from gateway.web.websocket.origin import is_listed

SIMPLE_METHODS = frozenset({"GET", "HEAD", "POST"})  # Fetch 2.2.1
SIMPLE_HEADERS = frozenset({"accept", "accept-language", "content-language", "content-type"})
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
OWN_HEADERS = frozenset({"last-event-id"})
"""Libraries on fetch set it and are preflighted for it (Fetch 4.8). Chromium's EventSource never
is, however long its id."""

Headers = Sequence[tuple[bytes, bytes]]


class Policy:
    """One `access-control`."""

    def __init__(self, access: AccessControl) -> None:
        allow = access.allow
        self._access = access
        self._every = not allow.origins or "*" in allow.origins
        self._methods = frozenset(name.upper() for name in allow.methods)
        self._names = frozenset(name.lower() for name in allow.headers)
        more: list[tuple[str, str]] = []
        if allow.credentials:
            more.append(("Access-Control-Allow-Credentials", "true"))
        if access.expose.headers:
            exposed = ", ".join(access.expose.headers)
            more.append(("Access-Control-Expose-Headers", exposed))
        self._more = _raw(more)

    @property
    def open(self) -> bool:
        """May any other site do anything?"""
        return self._access.policy == "cross-origin"

    def allows(self, origin: str) -> bool:
        return self.open and is_listed(self._access, origin)

    def headers(self, origin: str) -> Headers:
        """Of each answer to a page that it allows."""
        told = "*" if self._every else origin
        return (*_raw([("Access-Control-Allow-Origin", told)]), *self._more)

    def preflight(self, origin: str, method: str, names: str) -> Response:
        """names: of the headers that the page would send. Raises HTTPException 400."""
        asked = frozenset(name.strip().lower() for name in names.split(",") if name.strip())
        if not self.allows(origin):
            raise HTTPException(400, "pages of this origin may not ask; see access-control")
        if self._methods and method not in self._methods | SIMPLE_METHODS:
            raise HTTPException(400, f"pages may not {method}; see access-control")
        denied = asked - self._names - SIMPLE_HEADERS - OWN_HEADERS if self._names else ()
        if denied:
            said = ", ".join(sorted(denied))
            raise HTTPException(400, f"pages may not send {said}; see access-control")
        told = {
            "Access-Control-Allow-Methods": ", ".join(sorted(self._methods | SIMPLE_METHODS))
            if self._methods
            else METHODS,
            "Access-Control-Max-Age": str(int(self._access.max_age)),
            "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        }
        allowed = names if not self._names else ", ".join(sorted(self._names | OWN_HEADERS))
        if allowed:
            told["Access-Control-Allow-Headers"] = allowed
        answer = Response("OK", 200, told, "text/plain")
        answer.raw_headers.extend(self.headers(origin))
        return answer


class Cors:
    """The policies of a gateway."""

    def __init__(self, listen: AccessControl, routes: Iterable[Route]) -> None:
        self._listen = Policy(listen)
        self._of_routes = {
            id(route): (route, Policy(route.access_control))
            for route in routes
            if route.access_control is not None
        }

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """None where no page of another site may do anything."""
        listen, routes = settings.listen.access_control, settings.routes
        every = [listen, *(route.access_control for route in routes)]
        if all(access is None or access.policy == "same-origin" for access in every):
            return None
        return cls(listen, routes)

    def policy(self, route: Route | None) -> Policy:
        """Of a route, or of the pages."""
        found = self._of_routes.get(id(route))
        return self._listen if found is None else found[1]

    def shared(self, origin: str) -> Policy:
        """One that allows this origin, if any does."""
        every = (self._listen, *(policy for _, policy in self._of_routes.values()))
        return next((policy for policy in every if policy.allows(origin)), self._listen)


class Foreign:
    """A request of a page: from where, and what it asks before it asks."""

    def __init__(self, origin: str, scope: Scope) -> None:
        told = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _ASKED}
        method: str = scope["method"]
        asks_first = method == "OPTIONS" and _METHOD in told
        self.origin = origin
        self.method = told[_METHOD] if asks_first else method
        self.names: str | None = told.get(_NAMES, "") if asks_first else None


_METHOD, _NAMES = b"access-control-request-method", b"access-control-request-headers"
_ASKED = frozenset({_METHOD, _NAMES})


def foreign(scope: Scope) -> Foreign | None:
    """None for what comes from no page, or says not from which."""
    for name, value in scope["headers"]:
        if name == b"origin":
            return Foreign(value.decode("latin-1"), scope)
    return None


def readable(send: Send, headers: Headers) -> Send:
    """Send the answer so that the page may read it."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            before = list(message.get("headers", ()))
            message = {**message, "headers": [*before, *headers, *_varying(before)]}
        await send(message)

    return with_headers


def _varying(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """`Vary: Origin`, unless that is said."""
    said = [value.lower() for name, value in headers if name.lower() == b"vary"]
    named = {each.strip() for value in said for each in value.split(b",")}
    return () if named & {b"origin", b"*"} else ((b"vary", b"Origin"),)


def _raw(headers: Iterable[tuple[str, str]]) -> Headers:
    return tuple((name.lower().encode(), value.encode("latin-1")) for name, value in headers)
