"""Define what the gateway needs of another application that is served on the same port.

`cli` passes a factory, which creates the application from what it shares with the gateway: the
connections to Kafka, and the guards. The sidecar is such an application.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from starlette.types import ASGIApp

from gateway.api.gateway import Gateway
from gateway.errors import RequestError
from gateway.telemetry.samples import MetricSamples
from gateway.web.access.guards import Guards


class CoHostedApp(Protocol):
    """An application that is served next to the gateway, which runs it."""

    @property
    def app(self) -> ASGIApp:
        """The ASGI application, which serves HTTP requests only."""

    def owns_path(self, path: str) -> bool:
        """Return whether a decoded path belongs to this application."""

    def get_body_limits(self, content_type: bytes) -> tuple[float, float]:
        """Return the most bytes of a request body, and the seconds for them to arrive.

        Infinity means that the application enforces the limit itself.
        """

    def format_error(self, error: RequestError) -> tuple[str, bytes]:
        """Return the content type and the body of an error that the gateway detects first."""

    def is_unlimited(self, path: str) -> bool:
        """Return whether a path, of a page or a health check, is exempt from `listen.limits`."""

    async def run(self) -> None: ...

    def drain(self) -> None: ...

    def collect_metrics(self, samples: MetricSamples) -> None: ...


CoHostedAppFactory: TypeAlias = Callable[[Gateway, Guards], CoHostedApp | None]
"""Creates the application; returns None if the settings have none. It must be a function of a
module, so that it can be pickled for workers."""
