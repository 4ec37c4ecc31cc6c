"""Guards that ask the application: it sees the cookie or token that came, and says whose it is.

    GET {url}                       forwarded headers and parameters, X-Forwarded-Method: what the
                                    client wants to do, X-Forwarded-Uri: with which path
    200 {"identity": "ada", "roles": ["orders:read"], "attributes": {"tenant": "acme"},
         "expires": 1790000000}     granted; all but `identity` may be left out
    401, 403                        denied
    anything else, or nothing       nobody is let in, and told to come back (503)

The method is that of the request. A stream over WebSocket is a GET; a record written there has the
method of the route that takes it (POST where that is a stream's), or DELETE if it has no value. A
token that renews a stream is asked about with the stream's own GET.

What it says holds for `cache`, by the method, the path and all that was forwarded, and is asked
once however many come with the same at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

from gateway.config import Http

from .claims import format_claim, parse_roles
from .credentials import get_subprotocol_token
from .external_http import ExternalHttp, ExternalHttpError, Headers
from .grant import Grant
from .guard import AccessRequest
from .guard_errors import GuardErrors

MAX_CACHED_DECISIONS = 10_000  # answers

_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]+")  # what can stand in a header without being another

log = logging.getLogger(__name__)

DeniedStatus: TypeAlias = Literal[401, 403]


class ApplicationRequest(NamedTuple):
    """What the application is asked with."""

    url: str
    headers: Headers

    @property
    def digest(self) -> bytes:
        return sha256(repr(self).encode()).digest()


class HttpGuard:
    """See the module."""

    def __init__(self, name: str, settings: Http, realm: str, external_http: ExternalHttp) -> None:
        self._name = name
        self._settings = settings
        self._external_http = external_http
        self._cache: OrderedDict[bytes, tuple[float, Grant | DeniedStatus]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Grant | DeniedStatus]] = {}
        self._is_available = True  # the last time
        self.is_renewable = "authorization" in settings.forward.headers
        shown = [*settings.forward.headers, *(f"?{each}=" for each in settings.forward.query)]
        self.errors = GuardErrors(name, realm, f"log in to the application ({' or '.join(shown)})")

    async def grant(self, request: AccessRequest) -> Grant:
        shown = self._build_application_request(request)
        if shown is None:
            raise self.errors.build_missing_credentials()
        try:
            said = await self._get_decision(shown)
        except ExternalHttpError as exc:
            raise self.errors.build_unavailable("the application does not say who you are") from exc
        if said == 401:
            raise self.errors.build_invalid_token("the application does not know you")
        if said == 403:
            raise self.errors.build_access_denied()
        return said

    def _build_application_request(self, request: AccessRequest) -> ApplicationRequest | None:
        """None if there is nothing to show."""
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
        wanted = [
            (b"x-forwarded-method", request.method.encode("latin-1")),
            (b"x-forwarded-uri", request.path.encode()),
        ]
        return ApplicationRequest(url, (*headers, *wanted))

    async def _get_decision(self, application_request: ApplicationRequest) -> Grant | DeniedStatus:
        """Raises Away."""
        digest = application_request.digest
        until, known = self._cache.get(digest, (0.0, 401))
        if until > time.time():
            self._cache.move_to_end(digest)
            return known
        asking = self._pending.get(digest)
        if asking is None:
            asking = asyncio.create_task(self._request_decision(application_request, digest))
            self._pending[digest] = asking
            asking.add_done_callback(lambda task: self._on_decision_done(task, digest))
        return await asyncio.shield(asking)

    def _on_decision_done(self, task: asyncio.Task[Any], digest: bytes) -> None:
        del self._pending[digest]
        if not task.cancelled():
            task.exception()  # is told to those who wait, if any still does

    async def _request_decision(
        self, application_request: ApplicationRequest, digest: bytes
    ) -> Grant | DeniedStatus:
        try:
            within = self._settings.timeout
            reply = await self._external_http.get(
                application_request.url, application_request.headers, timeout_s=within
            )
            said = self._parse_response(reply.status, reply.body)
        except ExternalHttpError as exc:
            if self._is_available:
                log.warning("guard %s: the application cannot be asked: %s", self._name, exc)
            self._is_available = False
            raise
        self._is_available = True
        self._cache_decision(digest, said)
        return said

    def _cache_decision(self, digest: bytes, decision: Grant | DeniedStatus) -> None:
        until = time.time() + self._settings.cache
        if isinstance(decision, Grant) and decision.expires is not None:
            until = min(until, decision.expires)
        self._cache[digest] = until, decision
        self._cache.move_to_end(digest)
        if len(self._cache) > MAX_CACHED_DECISIONS:
            self._cache.popitem(last=False)

    def _parse_response(self, status: int, body: bytes) -> Grant | DeniedStatus:
        if status == 401 or status == 403:
            return 401 if status == 401 else 403
        if not 200 <= status < 300:
            raise ExternalHttpError(f"it answers {status}; 200, 401 and 403 are understood")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise ExternalHttpError("its answer is no JSON") from None
        identity = format_claim(said.get("identity")) if isinstance(said, Mapping) else None
        if identity is None:
            raise ExternalHttpError("its answer names no identity")
        expires = _parse_expiry(said.get("expires"))
        if expires is not None and expires <= time.time():
            return 401
        return Grant(
            self._name,
            identity,
            parse_roles(said.get("roles")),
            self._parse_attributes(said.get("attributes")),
            expires,
        )

    def _parse_attributes(self, value: object) -> dict[str, str]:
        found = value if isinstance(value, Mapping) else {}
        texts = [(name, format_claim(found.get(name))) for name in self._settings.attributes]
        return {name: text for name, text in texts if text is not None}


def _get_forwarded_headers(name: str, request: AccessRequest) -> Headers:
    """A header as it came; a token that came otherwise stands in authorization."""
    connection = request.connection
    if name == "authorization":
        bare = "authorization" not in connection.headers
        token = request.token or (get_subprotocol_token(connection) if bare else None)
        if token is not None:
            return [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    wanted = name.encode()
    return [(key, value) for key, value in connection.scope["headers"] if key == wanted]


def _parse_expiry(value: object) -> float | None:
    """Seconds since 1970, or ISO 8601; without an offset it is UTC. Raises Away."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ExternalHttpError("its answer expires at no time that is understood")
