"""Wrap all endpoints of the sidecar: scopes, slashes in paths, the end of the process, counts."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from starlette.convertors import StringConvertor
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry import catalog
from gateway.telemetry.counts import Histogram
from gateway.telemetry.samples import MetricSamples

from .status import StatusError, build_error_response

# The scopes of the contract.
WRITE_SCOPE = "kafka:w"
READ_SCOPE = "kafka:r"
ADMIN_SCOPE = "admin"
AUTHENTICATED = ""  # no scope: any client that the guards know


class Authorizer(Protocol):
    """Check that a client may do what it requests.

    The guards belong to `gateway.web`, a layer above this one, so the check is passed in as a
    function.

    Endpoints call it (`await authorize(request, WRITE_SCOPE, ["orders"])`) before they do anything.
    It returns the client's identity, which is empty where no guard is configured. It raises
    NotGranted (401 or 403), or GuardUnavailable (503).
    """

    async def __call__(
        self, request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
    ) -> str: ...


async def allow_anyone(
    request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
) -> str:
    return ""


def has_place(identity: str, holders: Sequence[str], limit: int) -> bool:
    """Return whether a client may take one more of `limit` places.

    An identity has at most as many as are left, so half of them are left to others. Clients without
    an identity are not distinguished, and share all places.

    Args:
        holders: The identity that has each place that is taken.
    """
    return (holders.count(identity) if identity else 0) < limit - len(holders)


_MARK = "\ue02f"  # for private use in Unicode; followed by a digit that says what it stands for
_SLASH, _ITSELF = f"{_MARK}0", f"{_MARK}1"
_ENCODED_SLASH = re.compile(rb"%2f", re.IGNORECASE)


class EncodedSlashMiddleware:
    """Read a `%2F` in a path as a part of a name, such as that of the group `billing/eu`.

    Servers decode the path before it is split at its slashes, so a name with one would be cut in
    two. Encoded slashes are therefore marked, and `NameConvertor` replaces the marks.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = _ENCODED_SLASH.split(scope.get("raw_path") or b"")
        if len(pieces) > 1 or _MARK in scope.get("path", ""):
            texts = (unquote(piece.decode("latin-1")) for piece in pieces)
            # Not in a copy: who counts requests reads from this one which endpoint answered.
            scope["path"] = _SLASH.join(text.replace(_MARK, _ITSELF) for text in texts)
        await self._app(scope, receive, send)


class NameConvertor(StringConvertor):
    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/").replace(_ITSELF, _MARK)


class TrailingSlashRoute(Route):
    """Match a path with or without a slash at its end, and answer no HEAD.

    Starlette answers HEAD by the endpoint of GET, which would move the position of a consumer.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}
        # Starlette compiles the path to a pattern that ends in `$`.
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + "/?$")


RETRY_AFTER_S = 1.0


class DrainMiddleware:
    """Answer requests that have not finished when the sidecar's time to end is over.

    The server cancels them and would answer a bare 500. A client may take a 500 for a refusal,
    where Kafka may have the records.
    """

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_wrapper(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_wrapper)
        except asyncio.CancelledError:
            if scope["type"] != "http" or has_started or not self._is_draining():
                raise
            await build_error_response(_build_error(scope["method"]))(scope, receive, send)


def _build_error(method: str) -> StatusError:
    problem = "the sidecar ends, and the request was not finished in time"
    if method in ("GET", "HEAD"):
        return StatusError(503, f"{problem}; try again", retry_after=RETRY_AFTER_S)
    detail = f"{problem}; it may have been done, and a repeat without an Idempotency-Key may do it"
    return StatusError(504, f"{detail} twice", retry_after=RETRY_AFTER_S)


COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
NO_STATUS = "none"  # the connection was lost before a status
# The statuses that an endpoint has a series of from the start.
EXPECTED_STATUSES = ("200", "400", "401", "403", "404", "429", "500", "503")


class EndpointCounts:
    """Hold the counters of an application's endpoints, for its metrics.

    An endpoint is `METHOD path` with the path as the specification has it, so that ids in paths
    make no new time series. It is empty for a request that no endpoint answers.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._paths: dict[Any, str] = {}
        self._endpoints: dict[str, None] = {}  # as metrics name them, in the order of the routes
        for route in routes:
            if isinstance(route, Route):
                path = self._paths.setdefault(route.endpoint, route.path)
                for method in sorted(COUNTED_METHODS & (route.methods or set()) - {"HEAD"}):
                    self._endpoints[f"{method} {path}"] = None
        self.responses: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)

    def observe_request(self, scope: Mapping[str, Any], status: str, seconds: float) -> None:
        """Count a finished request, with the status as text, or `NO_STATUS`."""
        path = self._paths.get(scope.get("endpoint"))
        method = scope["method"] if scope["method"] in COUNTED_METHODS else "other"
        endpoint = "" if path is None else f"{method} {path}"
        self.responses[endpoint, status] += 1
        self.seconds[endpoint].observe(seconds)

    def collect_metrics(self, samples: MetricSamples) -> None:
        samples.add_counts(catalog.SIDECAR_REQUESTS, self.responses)
        samples.add_zeros(catalog.SIDECAR_REQUESTS, self._endpoints, EXPECTED_STATUSES)
        for endpoint, histogram in self.seconds.items():
            samples.add_histogram(catalog.SIDECAR_SECONDS, histogram, endpoint)


class RequestCountMiddleware:
    """Count every request. It is the outermost middleware, so that refusals count, too."""

    def __init__(self, app: ASGIApp, requests: EndpointCounts) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = NO_STATUS

        async def send_wrapper(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        start = time.perf_counter()
        try:
            await self._app(scope, receive, send_wrapper)
        finally:
            self._requests.observe_request(scope, status, time.perf_counter() - start)
