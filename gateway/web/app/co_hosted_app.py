"""Another application on the same port, of which nothing is known here but what it is asked.

Who starts the gateway makes it, from what it shares: connections, and who clients are.
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
    """app: serves what it takes, HTTP only."""

    @property
    def app(self) -> ASGIApp: ...

    def owns_path(self, path: str) -> bool:
        """Is a path, decoded, its own?"""

    def get_body_limits(self, content_type: bytes) -> tuple[float, float]:
        """For the body of a request for one of its paths, by its content type: bytes, and seconds
        until it is there. It minds both itself where they are infinite."""

    def format_error(self, error: RequestError) -> tuple[str, bytes]:
        """How a request is refused before it is looked at, such as a body that has no room: content
        type and body."""

    def is_unlimited(self, path: str) -> bool:
        """Is what a path of its own serves a page, or about its health? The limits of `listen` are
        not for these."""

    async def run(self) -> None:
        """Beside the gateway until it is cancelled."""

    def drain(self) -> None:
        """The server is about to end."""

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Adds what a scrape wants to know."""


CoHostedAppFactory: TypeAlias = Callable[[Gateway, Guards], CoHostedApp | None]
"""Makes it; None where the settings have none. Of a module, so that workers find it again."""
