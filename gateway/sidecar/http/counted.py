"""What is asked of the sidecar, counted by endpoint."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures
from gateway.telemetry.histogram import Histogram

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
UNANSWERED = "none"  # the connection was lost before a status


class Requests:
    """By endpoint, which is `METHOD path` as the specification has them; empty for no endpoint."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._paths: dict[Any, str] = {}
        for route in routes:
            if isinstance(route, Route):
                self._paths.setdefault(route.endpoint, route.path)
        self.answered: Counter[tuple[str, str]] = Counter()  # endpoint, status
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)

    def note(self, scope: Mapping[str, Any], status: str, seconds: float) -> None:
        path = self._paths.get(scope.get("endpoint"))
        method = scope["method"] if scope["method"] in METHODS else "other"
        endpoint = "" if path is None else f"{method} {path}"
        self.answered[endpoint, status] += 1
        self.seconds[endpoint].observe(seconds)

    def read(self, figures: Figures) -> None:
        figures.count(catalog.SIDECAR_REQUESTS, self.answered)
        for endpoint, histogram in self.seconds.items():
            figures.observed(catalog.SIDECAR_SECONDS, histogram, endpoint)


class Counted:
    """Middleware around all others: what these refuse counts, too."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = UNANSWERED

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        began = time.perf_counter()
        try:
            await self._app(scope, receive, counted)
        finally:
            self._requests.note(scope, status, time.perf_counter() - began)
