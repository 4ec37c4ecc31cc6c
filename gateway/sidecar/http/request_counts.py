"""What is asked of the sidecar, counted by endpoint."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry import catalog
from gateway.telemetry.histogram import Histogram
from gateway.telemetry.samples import MetricSamples

COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
NO_STATUS = "none"  # the connection was lost before a status


class EndpointCounts:
    """By endpoint, which is `METHOD path` as the specification has them; empty for no endpoint."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._paths: dict[Any, str] = {}
        for route in routes:
            if isinstance(route, Route):
                self._paths.setdefault(route.endpoint, route.path)
        self.responses: Counter[tuple[str, str]] = Counter()  # endpoint, status
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)

    def observe_request(self, scope: Mapping[str, Any], status: str, seconds: float) -> None:
        path = self._paths.get(scope.get("endpoint"))
        method = scope["method"] if scope["method"] in COUNTED_METHODS else "other"
        endpoint = "" if path is None else f"{method} {path}"
        self.responses[endpoint, status] += 1
        self.seconds[endpoint].observe(seconds)

    def collect_metrics(self, samples: MetricSamples) -> None:
        samples.add_counts(catalog.SIDECAR_REQUESTS, self.responses)
        for endpoint, histogram in self.seconds.items():
            samples.add_histogram(catalog.SIDECAR_SECONDS, histogram, endpoint)


class RequestCountMiddleware:
    """Middleware around all others: what these refuse counts, too."""

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

        began = time.perf_counter()
        try:
            await self._app(scope, receive, send_wrapper)
        finally:
            self._requests.observe_request(scope, status, time.perf_counter() - began)
