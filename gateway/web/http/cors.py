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
from gateway.web.websocket.origin import is_listed_origin

SIMPLE_METHODS = frozenset({"GET", "HEAD", "POST"})  # Fetch 2.2.1
SIMPLE_HEADERS = frozenset({"accept", "accept-language", "content-language", "content-type"})
ALL_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
GATEWAY_HEADERS = frozenset({"last-event-id"})
"""Libraries on fetch set it and are preflighted for it (Fetch 4.8). Chromium's EventSource never
is, however long its id."""

RawHeaders = Sequence[tuple[bytes, bytes]]


class CorsPolicy:
    """One `access-control`."""

    def __init__(self, access: AccessControl) -> None:
        allow = access.allow
        self._access = access
        self._allows_any_origin = not allow.origins or "*" in allow.origins
        self._allowed_methods = frozenset(name.upper() for name in allow.methods)
        self._allowed_headers = frozenset(name.lower() for name in allow.headers)
        more: list[tuple[str, str]] = []
        if allow.credentials:
            more.append(("Access-Control-Allow-Credentials", "true"))
        if access.expose.headers:
            exposed = ", ".join(access.expose.headers)
            more.append(("Access-Control-Expose-Headers", exposed))
        self._extra_headers = _encode_headers(more)

    @property
    def allows_cross_origin(self) -> bool:
        """May any other site do anything?"""
        return self._access.policy == "cross-origin"

    def allows_origin(self, origin: str) -> bool:
        return self.allows_cross_origin and is_listed_origin(self._access, origin)

    def build_headers(self, origin: str) -> RawHeaders:
        """Of each answer to a page that it allows."""
        told = "*" if self._allows_any_origin else origin
        return (*_encode_headers([("Access-Control-Allow-Origin", told)]), *self._extra_headers)

    def respond_preflight(self, origin: str, method: str, header_names: str) -> Response:
        """names: of the headers that the page would send. Raises HTTPException 400."""
        asked = frozenset(name.strip().lower() for name in header_names.split(",") if name.strip())
        if not self.allows_origin(origin):
            raise HTTPException(400, "pages of this origin may not ask; see access-control")
        if self._allowed_methods and method not in self._allowed_methods | SIMPLE_METHODS:
            raise HTTPException(400, f"pages may not {method}; see access-control")
        denied = (
            asked - self._allowed_headers - SIMPLE_HEADERS - GATEWAY_HEADERS
            if self._allowed_headers
            else ()
        )
        if denied:
            said = ", ".join(sorted(denied))
            raise HTTPException(400, f"pages may not send {said}; see access-control")
        told = {
            "Access-Control-Allow-Methods": ", ".join(
                sorted(self._allowed_methods | SIMPLE_METHODS)
            )
            if self._allowed_methods
            else ALL_METHODS,
            "Access-Control-Max-Age": str(int(self._access.max_age)),
            "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        }
        allowed = (
            header_names
            if not self._allowed_headers
            else ", ".join(sorted(self._allowed_headers | GATEWAY_HEADERS))
        )
        if allowed:
            told["Access-Control-Allow-Headers"] = allowed
        answer = Response("OK", 200, told, "text/plain")
        answer.raw_headers.extend(self.build_headers(origin))
        return answer


class CorsPolicies:
    """The policies of a gateway."""

    def __init__(self, listen: AccessControl, routes: Iterable[Route]) -> None:
        self._default_policy = CorsPolicy(listen)
        self._route_policies = {
            id(route): (route, CorsPolicy(route.access_control))
            for route in routes
            if route.access_control is not None
        }

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """None where no page of another site may do anything."""
        listen, routes = settings.listen.access_control, settings.routes
        every = [listen, *(route.access_control for route in routes)]
        if all(access is None or access.policy == "same-origin" for access in every):
            return None
        return cls(listen, routes)

    def get_policy(self, route: Route | None) -> CorsPolicy:
        """Of a route, or of the pages."""
        found = self._route_policies.get(id(route))
        return self._default_policy if found is None else found[1]

    def get_shared_policy(self, origin: str) -> CorsPolicy:
        """One that allows this origin, if any does."""
        every = (self._default_policy, *(policy for _, policy in self._route_policies.values()))
        return next(
            (policy for policy in every if policy.allows_origin(origin)), self._default_policy
        )


class CorsRequest:
    """A request of a page: from where, and what it asks before it asks."""

    def __init__(self, origin: str, scope: Scope) -> None:
        told = {
            name: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _PREFLIGHT_HEADERS
        }
        method: str = scope["method"]
        asks_first = method == "OPTIONS" and _REQUEST_METHOD in told
        self.origin = origin
        self.method = told[_REQUEST_METHOD] if asks_first else method
        self.header_names: str | None = told.get(_REQUEST_HEADERS, "") if asks_first else None


_REQUEST_METHOD, _REQUEST_HEADERS = (
    b"access-control-request-method",
    b"access-control-request-headers",
)
_PREFLIGHT_HEADERS = frozenset({_REQUEST_METHOD, _REQUEST_HEADERS})


def parse_cors_request(scope: Scope) -> CorsRequest | None:
    """None for what comes from no page, or says not from which."""
    for name, value in scope["headers"]:
        if name == b"origin":
            return CorsRequest(value.decode("latin-1"), scope)
    return None


def add_cors_headers(send: Send, headers: RawHeaders) -> Send:
    """Send the answer so that the page may read it."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            before = list(message.get("headers", ()))
            message = {**message, "headers": [*before, *headers, *_build_vary(before)]}
        await send(message)

    return send_with_headers


def _build_vary(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """`Vary: Origin`, unless that is said."""
    said = [value.lower() for name, value in headers if name.lower() == b"vary"]
    named = {each.strip() for value in said for each in value.split(b",")}
    return () if named & {b"origin", b"*"} else ((b"vary", b"Origin"),)


def _encode_headers(headers: Iterable[tuple[str, str]]) -> RawHeaders:
    return tuple((name.lower().encode(), value.encode("latin-1")) for name, value in headers)
