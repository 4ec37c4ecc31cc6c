"""Another application on the same port, of which nothing is known here but what it is asked.

Who starts the gateway makes it, from what it shares: connections, and who clients are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from starlette.types import ASGIApp

from gateway.api.gateway import Gateway
from gateway.errors import RequestError
from gateway.telemetry.figures import Figures
from gateway.web.access.guards import Guards


class Neighbour(Protocol):
    """app: serves what it takes, HTTP only."""

    @property
    def app(self) -> ASGIApp: ...

    def takes(self, path: str) -> bool:
        """Is a path, decoded, its own?"""

    def room(self, kind: bytes) -> tuple[float, float]:
        """For the body of a request for one of its paths, by its content type: bytes, and seconds
        until it is there. It minds both itself where they are infinite."""

    def refusal(self, error: RequestError) -> tuple[str, bytes]:
        """How a request is refused before it is looked at, such as a body that has no room: content
        type and body."""

    def free(self, path: str) -> bool:
        """Is what a path of its own serves a page, or about its health? The limits of `listen` are
        not for these."""

    async def run(self) -> None:
        """Beside the gateway until it is cancelled."""

    def drain(self) -> None:
        """The server is about to end."""

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""


Beside: TypeAlias = Callable[[Gateway, Guards], Neighbour | None]
"""Makes it; None where the settings have none. Of a module, so that workers find it again."""
