"""Define what responds to the requests of a capability."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.requests import Request
from starlette.responses import Response

from gateway.config import With
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes


class Exchange(ABC):
    """A capability whose requests have one response; stateless, and listed in `kinds`."""

    @abstractmethod
    def describe(self, with_: With) -> str: ...

    @abstractmethod
    async def respond(self, routes: Routes, match: Match, request: Request) -> Response:
        """Return the response to a request.

        Raises:
            RequestError: The request is refused.
            KafkaError: Kafka does not answer.
            ClientDisconnected: The client has disconnected.
        """
