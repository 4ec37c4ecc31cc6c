"""Count requests to the sidecar, and measure how long they take, by endpoint."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry import catalog
from gateway.telemetry.counts import Histogram
from gateway.telemetry.samples import MetricSamples

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
