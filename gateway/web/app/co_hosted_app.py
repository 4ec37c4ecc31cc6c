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
    """An application that is served next to the gateway.

    Created by a `CoHostedAppFactory` in `create_app`, which runs it until the gateway closes.
    """

    @property
    def app(self) -> ASGIApp:
        """Return the ASGI application, which serves HTTP requests only."""

    def owns_path(self, path: str) -> bool:
        """Return whether a decoded path belongs to this application."""

    def get_body_limits(self, content_type: bytes) -> tuple[float, float]:
        """Return the limits of a request body.

        Returns:
            The most bytes, and the seconds in which all of them must arrive. Infinity means that
            the application enforces the limit itself.
        """

    def format_error(self, error: RequestError) -> tuple[str, bytes]:
        """Return the content type and the body of an error that the gateway detects first.

        Args:
            error: Why the request is refused, such as a body that is too long.
        """

    def is_unlimited(self, path: str) -> bool:
        """Return whether the limits of `listen` do not apply to a path of this application.

        They do not apply to what a page needs, and to health checks.
        """

    async def run(self) -> None:
        """Run with the gateway until cancelled."""

    def drain(self) -> None:
        """Prepare for the end of the server."""

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Add the metrics of this application to a scrape."""


CoHostedAppFactory: TypeAlias = Callable[[Gateway, Guards], CoHostedApp | None]
"""Creates the application; returns None if the settings have none. It must be a function of a
module, so that it can be pickled for workers."""
