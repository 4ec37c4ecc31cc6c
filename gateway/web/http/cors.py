"""Decide what pages of other sites may do, by CORS (Fetch 3.3).

A route has its own `access-control`, or else that of `listen`, which is also for the gateway's
pages. The JavaScript module and the renewal of tokens belong to no single route: every origin that
may read some route may use them. CORS does not apply to WebSockets, for which
`web/websocket/handshake.py` checks the origin.

It takes 0.4 us of a connect that comes from no page, and 3 us of one that does. Where no page of
another site may do anything, only refusals are logged (`web/routing/foreign_origins.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from gateway.config import AccessControl, Route, Settings
from gateway.web.websocket.handshake import is_listed_origin

SIMPLE_METHODS = frozenset({"GET", "HEAD", "POST"})  # Fetch 2.2.1
SIMPLE_HEADERS = frozenset({"accept", "accept-language", "content-language", "content-type"})
ALL_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
GATEWAY_HEADERS = frozenset({"last-event-id"})
"""Headers that every policy allows. SSE libraries that use fetch set it, so that their requests
need a preflight (Fetch 4.8). Chromium's EventSource never needs one, however long its id is."""
EXPOSED_HEADERS = ("ETag", "Link", "Location", "Retry-After")
"""Headers of responses that every policy lets pages read (Fetch 4.10): those of documents, pages of
records, asynchronous replies, and of who is to come back later."""

RawHeaders = Sequence[tuple[bytes, bytes]]


class CorsPolicy:
    """One `access-control` section, prepared for requests; it never changes."""

    def __init__(self, access: AccessControl) -> None:
        allow = access.allow
        self._access = access
        self._allows_any_origin = not allow.origins or "*" in allow.origins
        self._allowed_methods = frozenset(name.upper() for name in allow.methods)
        self._allowed_headers = frozenset(name.lower() for name in allow.headers)
        more: list[tuple[str, str]] = []
        if allow.credentials:
            more.append(("Access-Control-Allow-Credentials", "true"))
        exposed = ", ".join([*EXPOSED_HEADERS, *access.expose.headers])
        more.append(("Access-Control-Expose-Headers", exposed))
        self._extra_headers = _encode_headers(more)

    @property
    def allows_cross_origin(self) -> bool:
        return self._access.policy == "cross-origin"

    def allows_origin(self, origin: str) -> bool:
        return self.allows_cross_origin and is_listed_origin(self._access, origin)

    def build_headers(self, origin: str) -> RawHeaders:
        allowed = "*" if self._allows_any_origin else origin
        return (*_encode_headers([("Access-Control-Allow-Origin", allowed)]), *self._extra_headers)

    def respond_preflight(self, origin: str, method: str, header_names: str) -> Response:
        """Return the response to the preflight of this request (Fetch 4.8), or raise a 400."""
        requested = frozenset(
            name.strip().lower() for name in header_names.split(",") if name.strip()
        )
        if not self.allows_origin(origin):
            raise HTTPException(400, "pages of this origin may not ask; see access-control")
        if self._allowed_methods and method not in self._allowed_methods | SIMPLE_METHODS:
            raise HTTPException(400, f"pages may not {method}; see access-control")
        denied = (
            requested - self._allowed_headers - SIMPLE_HEADERS - GATEWAY_HEADERS
            if self._allowed_headers
            else ()
        )
        if denied:
            names = ", ".join(sorted(denied))
            raise HTTPException(400, f"pages may not send {names}; see access-control")
        headers = {
            "Access-Control-Allow-Methods": ", ".join(
                sorted(self._allowed_methods | SIMPLE_METHODS)
            )
            if self._allowed_methods
            else ALL_METHODS,
            "Access-Control-Max-Age": str(int(self._access.max_age)),
            "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        }
        # A policy without a list allows all headers. `*` would not say so to a page that sends
        # credentials (Fetch 4.8), so the names that it asked for are repeated.
        allowed = (
            header_names
            if not self._allowed_headers
            else ", ".join(sorted(self._allowed_headers | GATEWAY_HEADERS))
        )
        if allowed:
            headers["Access-Control-Allow-Headers"] = allowed
        response = Response("OK", 200, headers, "text/plain")
        response.raw_headers.extend(self.build_headers(origin))
        return response


class CorsPolicies:
    """The CORS policies of a gateway: one of `listen`, and those of routes that have their own.

    Created by `Routes`, and replaced as a whole when the settings are reloaded.
    """

    def __init__(self, listen: AccessControl, routes: Iterable[Route]) -> None:
        self._default_policy = CorsPolicy(listen)
        # By identity, as routes are not hashable; the route is kept so that its id stays its own.
        self._route_policies = {
            id(route): (route, CorsPolicy(route.access_control))
            for route in routes
            if route.access_control is not None
        }

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """Return the policies; None where no page of another site may do anything."""
        listen, routes = settings.listen.access_control, settings.routes
        sections = [listen, *(route.access_control for route in routes)]
        if all(access is None or access.policy == "same-origin" for access in sections):
            return None
        return cls(listen, routes)

    def get_policy(self, route: Route | None) -> CorsPolicy:
        """Return the policy of a route; for None, that of the gateway's pages."""
        entry = self._route_policies.get(id(route))
        return self._default_policy if entry is None else entry[1]

    def get_shared_policy(self, origin: str) -> CorsPolicy:
        """Return the first policy that allows an origin, for requests of no single route.

        If none does, return the default policy, which then refuses it.
        """
        policies = (self._default_policy, *(policy for _, policy in self._route_policies.values()))
        return next(
            (policy for policy in policies if policy.allows_origin(origin)), self._default_policy
        )


class CorsRequest:
    """A request with an `Origin`, as far as CORS looks at it.

    For a preflight, `method` and `header_names` are those of the request that it announces.
    """

    def __init__(self, origin: str, scope: Scope) -> None:
        preflight_headers = {
            name: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _PREFLIGHT_HEADERS
        }
        method: str = scope["method"]
        is_preflight = method == "OPTIONS" and _REQUEST_METHOD in preflight_headers
        self.origin = origin
        self.method = preflight_headers[_REQUEST_METHOD] if is_preflight else method
        self.header_names: str | None = (
            preflight_headers.get(_REQUEST_HEADERS, "") if is_preflight else None
        )


_REQUEST_METHOD, _REQUEST_HEADERS = (
    b"access-control-request-method",
    b"access-control-request-headers",
)
_PREFLIGHT_HEADERS = frozenset({_REQUEST_METHOD, _REQUEST_HEADERS})


def parse_cors_request(scope: Scope) -> CorsRequest | None:
    for name, value in scope["headers"]:
        if name == b"origin":
            return CorsRequest(value.decode("latin-1"), scope)
    return None


def add_cors_headers(send: Send, headers: RawHeaders) -> Send:
    """Return a `send` that adds these headers to the response, so that the page may read it."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = list(message.get("headers", ()))
            message = {**message, "headers": [*present, *headers, *_build_vary(present)]}
        await send(message)

    return send_with_headers


def _build_vary(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return `Vary: Origin`, or nothing if these headers say so already."""
    values = [value.lower() for name, value in headers if name.lower() == b"vary"]
    names = {name.strip() for value in values for name in value.split(b",")}
    return () if names & {b"origin", b"*"} else ((b"vary", b"Origin"),)


def _encode_headers(headers: Iterable[tuple[str, str]]) -> RawHeaders:
    return tuple((name.lower().encode(), value.encode("latin-1")) for name, value in headers)
