"""Decide what browsers and pages of other sites may do: CORS, `Origin`, and headers that protect.

A route has its own `access-control`, or else that of `listen`, which is also for the gateway's
pages. The JavaScript module and the renewal of tokens belong to no single route: every origin that
may read some route may use them (Fetch 3.3). It takes 0.4 us of a connect that comes from no page,
and 3 us of one that does. Where no page of another site may do anything, only refusals are logged.

CORS does not apply to WebSockets, and browsers send cookies with every handshake. If the server did
not check the `Origin`, any page could read streams with the cookies of the user who opened it
(RFC 6455 10.2).

A browser tells a page only that its request failed. That an origin is missing in `access-control`
is the most frequent cause of a page that shows nothing, and only the gateway knows it: it logs the
page and the option that would let it in.

The headers of responses forbid browsers to guess a media type, run what is in a response, show it
in a frame of another site, or send its URL, which may hold a token, to the next site. Scripts get
no Content-Security-Policy. A SharedWorker would be bound by the policy of its script's response,
although it connects for pages that may have another policy.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from gateway.config import AccessControl, GuardSection, Route, Settings
from gateway.errors import RequestError

log = logging.getLogger(__name__)

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


LISTEN_OPTION = "listen.access-control"  # what applies to routes that have no option of their own
REPEAT_AFTER_S = 3600.0  # seconds after which an origin that is still refused is logged again
MAX_ORIGINS = 200  # refusals that are remembered; beyond that the one logged first is forgotten
MAX_LINES_PER_MINUTE = 10  # of all origins: any client can send any `Origin`
MAX_LOGGED_CHARS = 200  # characters of an origin or a path


class OriginRefusal(NamedTuple):
    """A page that was refused, by an option such as `listen.access-control`.

    `needs_credentials`: the origin is listed, but its browser sends credentials.
    """

    origin: str
    path: str
    option: str
    needs_credentials: bool = False


class ForeignOriginLog:
    """One line for each origin and option, in bounded number and memory."""

    def __init__(self, get_time: Callable[[], float] = time.monotonic) -> None:
        self._get_time = get_time
        self._logged_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._minute = 0.0
        self._lines = 0

    def report(self, refusal: OriginRefusal) -> None:
        """Log a refused page, unless its origin was logged within the last hour."""
        now = self._get_time()
        origin = refusal.origin[:MAX_LOGGED_CHARS]
        key = origin, refusal.option
        if now - self._logged_at.get(key, float("-inf")) < REPEAT_AFTER_S:
            return
        if now - self._minute >= 60.0 or not self._lines:
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines > MAX_LINES_PER_MINUTE:
            if self._lines == MAX_LINES_PER_MINUTE + 1:
                log.warning("pages of more origins are refused; they are logged in a minute again")
            return
        self._logged_at[key] = now
        self._logged_at.move_to_end(key)
        if len(self._logged_at) > MAX_ORIGINS:
            self._logged_at.popitem(last=False)
        if refusal.needs_credentials:
            remedy = "its browser sends credentials, which allow.credentials of %s would permit"
        else:
            remedy = "to allow it, set policy: cross-origin and list it in allow.origins of %s"
            if refusal.option == LISTEN_OPTION:
                remedy += ", or start with --origin"
        log.warning(
            f"a page of %s was refused on %s; {remedy}",
            origin,
            refusal.path[:MAX_LOGGED_CHARS],
            refusal.option,
        )


def is_foreign_request(origin: str, scope: Scope) -> bool:
    """Return whether a request comes from a page of another origin than its own.

    A browser says so in `Sec-Fetch-Site`, also if a proxy in between rewrites `Host`. It sends that
    header only to https and to localhost, so that else the origin is compared with `Host`.
    """
    headers = dict(reversed(scope["headers"]))
    # Of several, which no browser sends, all have to say the same.
    sites = {value for name, value in scope["headers"] if name == b"sec-fetch-site"}
    if sites and sites != {b"none"}:  # that is of requests without an origin
        return sites != {b"same-origin"}
    return not is_same_origin(origin, headers.get(b"host", b"").decode("latin-1"))


_DEFAULT_PORTS = {"http": "80", "https": "443"}


def is_origin_allowed(
    access: AccessControl, origin: str | None, host: str, *, has_credentials: bool = False
) -> bool:
    """Return whether a request with this `Origin` and `Host` is allowed.

    Args:
        origin: The value of `Origin`. A request without it is allowed: it is a program's.
        has_credentials: Whether the browser may have added the user's credentials by itself. A page
            of another site needs `allow.credentials` then.
    """
    if origin is None or is_same_origin(origin, host):
        return True
    if access.policy == "same-origin" or (has_credentials and not access.allow.credentials):
        return False
    return is_listed_origin(access, origin)


def is_listed_origin(access: AccessControl, origin: str) -> bool:
    """Return whether an origin is listed under `allow.origins`. An empty list allows all."""
    origins = access.allow.origins
    return not origins or "*" in origins or origin in origins


def has_ambient_credentials(headers: Mapping[str, str], guards: Iterable[GuardSection]) -> bool:
    """Return whether a browser may have sent credentials that no page gave it.

    Cookies, a password that the user once entered, or the user's client certificate.
    """
    return (
        "cookie" in headers
        or headers.get("authorization", "")[:6].lower() == "basic "
        or any(guard.has_ambient_credentials for guard in guards)
    )


def refuse_foreign_origin(
    access_controls: Iterable[AccessControl],
    connection: HTTPConnection,
    guards: Iterable[GuardSection],
) -> None:
    """Raise a 403 unless one of the `access-control` sections allows the origin of a WebSocket."""
    headers = connection.headers
    if "origin" not in headers:
        return
    is_ambient = has_ambient_credentials(headers, guards)
    if not any(
        is_origin_allowed(
            access, headers["origin"], headers.get("host", ""), has_credentials=is_ambient
        )
        for access in access_controls
    ):
        detail = "pages of this origin may not connect; see access-control"
        raise RequestError(403, "Foreign origin", detail)


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether an origin has the host and port of `Host`.

    The schemes are not compared: behind a proxy that ends TLS, a page's https is http here.
    """
    scheme, separator, authority = origin.lower().partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        return False
    return _add_port(authority, scheme) == _add_port(host.lower(), scheme)


def _add_port(authority: str, scheme: str) -> str:
    """Return an authority with its port, which is the scheme's default if it has none."""
    name, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):  # no port; the last colon may be an IPv6 address's
        return f"{authority}:{_DEFAULT_PORTS[scheme]}"
    return f"{name}:{port or _DEFAULT_PORTS[scheme]}"


NOSNIFF_HEADERS = {"X-Content-Type-Options": "nosniff"}
PRIVATE_HEADERS = {**NOSNIFF_HEADERS, "Referrer-Policy": "no-referrer"}
PAGE_HEADERS: Mapping[str, str] = {
    **PRIVATE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}
"""Headers of a page whose scripts and styles are separate files, and which connects to its own
gateway. Responses of data have them too, since a browser may show such a response as a page, and
streams can be tried in that page's console."""

_DATA_MEDIA_TYPES = (
    b"application/json",
    b"application/problem+json",
    b"application/openmetrics",
    b"text/plain",
)


def add_security_headers(send: Send, *, varies_by_origin: bool) -> Send:
    """Return a `send` that adds these headers to a response that does not have them."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower(): value for name, value in headers}
            defaults = (
                _RAW_PAGE_HEADERS
                if present.get(b"content-type", b"").startswith(_DATA_MEDIA_TYPES)
                else _RAW_PRIVATE_HEADERS
            )
            headers += [(name, value) for name, value in defaults if name not in present]
            if varies_by_origin and b"origin" not in present.get(b"vary", b"").lower():
                headers.append((b"vary", b"Origin"))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


_RAW_PAGE_HEADERS, _RAW_PRIVATE_HEADERS = (
    _encode_headers(PAGE_HEADERS.items()),
    _encode_headers(PRIVATE_HEADERS.items()),
)
