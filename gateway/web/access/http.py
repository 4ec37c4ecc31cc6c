"""Guard streams by asking the application, which gets the client's cookie or token.

    GET {url}                       with forwarded headers and parameters, X-Forwarded-Method (what
                                    the client wants to do) and X-Forwarded-Uri (with which path)
    200 {"identity": "ada", "roles": ["orders:read"], "attributes": {"tenant": "acme"},
         "expires": 1790000000}     granted; everything but `identity` is optional
    401, 403                        denied
    400, 413, 414, 431              the client sent what the application cannot read (401 or 431)
    anything else, or nothing       the client is refused, and asked to come back (503)

The method is that of the request. A stream over WebSocket is a GET; a record that is written there
has the method of the route that takes it (POST if that is a stream's route), or DELETE if it has no
value. A token that renews a stream is checked with the stream's own GET.

A response is cached for `cache`, by the method, the path and all that was forwarded. The
application is asked once for all clients that send the same at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

from gateway.config import Http
from gateway.config.sections.guard_section import CREDENTIALS_PLACEHOLDER
from gateway.config.types.template import find_field
from gateway.core.times import parse_time

from .external_http import ExternalHttp, ExternalHttpError, Headers, UnsendableRequest, parse_json
from .grant import Grant, format_claim, get_subprotocol_token, parse_roles
from .guard import (
    BEARER_SCHEME,
    AccessRequest,
    Guard,
    GuardContext,
    GuardErrors,
    SecurityScheme,
    build_api_key,
    build_header_scheme,
)

_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]+")  # tokens that cannot add a header or another value

log = logging.getLogger(__name__)

MAX_EXPIRY_S = 1e11  # seconds; what is larger are milliseconds, or no time
MAX_URL_CHARS = 65_536  # httpx takes no longer ones

DeniedStatus: TypeAlias = Literal[400, 401, 403, 431]
"""400: the application, or HTTP, does not allow what the client sent; 431: it is too large."""


class ApplicationRequest(NamedTuple):
    url: str
    headers: Headers

    @property
    def digest(self) -> bytes:
        """The key of its cached decision; secrets themselves are not kept."""
        return sha256(repr(self).encode()).digest()


class HttpGuard(Guard[Http]):
    """A guard that asks the application.

    Between calls, `_pending` has a task for each decision that is being requested.
    """

    MAX_CACHED_DECISIONS = 10_000

    def __init__(
        self,
        name: str,
        settings: Http,
        realm: str,
        external_http: ExternalHttp,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._name = name
        self._settings = settings
        self._external_http = external_http
        self._cache: OrderedDict[bytes, tuple[float, Grant | DeniedStatus]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Grant | DeniedStatus]] = {}
        self._problem: str | None = None  # why the last request was not answered
        self.is_renewable = "authorization" in settings.forward.headers
        forwarded = [
            *settings.forward.headers, *(f"?{parameter}=" for parameter in settings.forward.query)
        ]  # fmt: skip
        hint = f"log in to the application ({' or '.join(forwarded)})"
        self.errors = GuardErrors(name, realm, hint)

    @classmethod
    def create(cls, section: Http, context: GuardContext) -> HttpGuard:
        return cls(context.name, section, context.realm, context.external_http)

    @classmethod
    def describe(cls, section: Http) -> tuple[SecurityScheme, ...]:
        return tuple(_iter_forwarded_schemes(section))

    def find_problem(self) -> str | None:
        return self._problem

    async def grant(self, request: AccessRequest) -> Grant:
        application_request = self._build_application_request(request)
        if application_request is None:
            raise self.errors.build_missing_credentials()
        try:
            decision = await self._get_decision(application_request)
        except ExternalHttpError as exc:
            raise self.errors.build_unavailable("the application does not say who you are") from exc
        if decision == 431:
            raise self.errors.build_too_large("the application does not take as much as you sent")
        if decision == 400:
            raise self.errors.build_invalid_token("the application does not take what you sent")
        if decision == 401:
            raise self.errors.build_invalid_token("the application does not know you")
        if decision == 403:
            raise self.errors.build_access_denied()
        return decision

    def _build_application_request(self, request: AccessRequest) -> ApplicationRequest | None:
        """Return the request to the application; None if the client sent nothing to forward."""
        if request.token is not None and not _TOKEN_PATTERN.fullmatch(request.token):
            raise self.errors.build_invalid_token("the token is none")
        headers = [
            pair
            for name in self._settings.forward.headers
            for pair in _get_forwarded_headers(name, request)
        ]
        query = [
            (name, value)
            for name in self._settings.forward.query
            for value in request.connection.query_params.getlist(name)
        ]
        if not headers and not query:
            return None
        url = self._settings.url
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        if len(url) > MAX_URL_CHARS:
            raise self.errors.build_too_large("the application does not take as much as you sent")
        action_headers = [
            (b"x-forwarded-method", request.method.encode("latin-1")),
            (b"x-forwarded-uri", request.path.encode()),
        ]
        return ApplicationRequest(url, (*headers, *action_headers))

    async def _get_decision(self, application_request: ApplicationRequest) -> Grant | DeniedStatus:
        digest = application_request.digest
        until, decision = self._cache.get(digest, (0.0, 401))
        if until > self._clock():
            self._cache.move_to_end(digest)
            return decision
        task = self._pending.get(digest)
        if task is None:
            task = asyncio.create_task(self._request_decision(application_request, digest))
            self._pending[digest] = task
            task.add_done_callback(lambda done: self._on_decision_done(done, digest))
        # Shielded: when one client leaves, the others still wait for the same task.
        return await asyncio.shield(task)

    def _on_decision_done(self, task: asyncio.Task[Any], digest: bytes) -> None:
        del self._pending[digest]
        if not task.cancelled():
            task.exception()  # asyncio would log it as never retrieved if all who waited are gone

    async def _request_decision(
        self, application_request: ApplicationRequest, digest: bytes
    ) -> Grant | DeniedStatus:
        try:
            timeout_s = self._settings.timeout
            response = await self._external_http.get(
                application_request.url, application_request.headers, timeout_s=timeout_s
            )
            decision = self._parse_response(response.status, response.body)
        except UnsendableRequest:  # by the client's fault, as the application could not be asked
            return 400
        except ExternalHttpError as exc:
            if self._problem is None:
                log.warning(
                    "guard %s: the application at %s cannot be asked: %s",
                    self._name,
                    self._settings.url,
                    exc,
                )
            # Clients may read it, so it does not name the URL.
            self._problem = f"the application cannot be asked: {exc}"
            raise
        if decision not in (400, 431):  # which a server before the application may answer
            self._problem = None
        self._cache_decision(digest, decision)
        return decision

    def _cache_decision(self, digest: bytes, decision: Grant | DeniedStatus) -> None:
        until = self._clock() + self._settings.cache
        if isinstance(decision, Grant) and decision.expires is not None:
            until = min(until, decision.expires)
        self._cache[digest] = until, decision
        self._cache.move_to_end(digest)
        if len(self._cache) > self.MAX_CACHED_DECISIONS:
            self._cache.popitem(last=False)

    def _parse_response(self, status: int, body: bytes) -> Grant | DeniedStatus:
        match status:
            case 400 | 401 | 403:
                return status
            case 413 | 414 | 431:  # a header or parameter that the gateway takes is too large
                return 431
        if not 200 <= status < 300:
            raise ExternalHttpError(f"it answers {status}; 200, 401 and 403 are understood")
        try:
            answer = parse_json(body)
        except ValueError as exc:
            raise ExternalHttpError(f"its answer cannot be used: {exc}") from None
        identity = format_claim(answer.get("identity")) if isinstance(answer, Mapping) else None
        if identity is None:
            raise ExternalHttpError("its answer names no identity")
        expires = _parse_expiry(answer.get("expires"))
        if expires is not None and expires <= self._clock():
            return 401
        return Grant(
            self._name,
            identity,
            parse_roles(answer.get("roles")),
            self._parse_attributes(answer.get("attributes")),
            expires,
        )

    def _parse_attributes(self, value: object) -> dict[str, str]:
        attributes = value if isinstance(value, Mapping) else {}
        texts = [
            (name, format_claim(find_field(attributes, name))) for name in self._settings.attributes
        ]
        return {name: text for name, text in texts if text is not None}


def _get_forwarded_headers(name: str, request: AccessRequest) -> Headers:
    """Return a header as it came; for `authorization`, the token if that came in another way.

    Whitespace around a value is no part of it (RFC 9110 5.5), and no client may send it on.
    """
    connection = request.connection
    if name == "authorization":
        has_no_header = "authorization" not in connection.headers
        token = request.token or (get_subprotocol_token(connection) if has_no_header else None)
        if token is not None:
            return [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    encoded_name = name.encode()
    values = [value for key, value in connection.scope["headers"] if key == encoded_name]
    return [(encoded_name, value.strip(b" \t")) for value in values]


def _parse_expiry(value: object) -> float | None:
    """Return a time in seconds since 1970 from a number, or from text."""
    match value:
        case None:
            return None
        case str():
            with suppress(ValueError):
                return parse_time(value) / 1000
        case int() | float() if not isinstance(value, bool) and value < MAX_EXPIRY_S:  # not NaN
            return float(value)
    raise ExternalHttpError("its answer expires at no time that is understood")


def _iter_forwarded_schemes(section: Http) -> Iterator[SecurityScheme]:
    for name in section.forward.headers:
        if name == "authorization":
            yield build_header_scheme(name, f"Bearer {CREDENTIALS_PLACEHOLDER}", BEARER_SCHEME)
        else:
            yield build_header_scheme(name, "NAME=VALUE" if name == "cookie" else "VALUE")
    for name in section.forward.query:
        yield SecurityScheme(build_api_key("query", name), query=f"{name}=VALUE")
