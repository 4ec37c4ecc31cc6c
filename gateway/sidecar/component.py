"""Define what the application needs of each section of the sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from gateway.errors import GatewayError


class NotReady(GatewayError):
    """Report that a component cannot serve now.

    Attributes:
        component: Which one, by its name in the readiness report.
        reason: Why not, in words for operators.
    """

    def __init__(self, component: str, reason: str) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.reason = reason


class Component(Protocol):
    """Represent one section of the sidecar's configuration.

    The application creates it with its `Context`, before there is an event loop, and owns it.

    Attributes:
        routes: Its endpoints, at the root, with the paths of the contract. An endpoint raises what
            is wrong, and `http.status` turns that into a Status.
    """

    routes: Sequence[BaseRoute]

    async def run(self) -> None:
        """Run beside the application until cancelled, owning what it starts.

        The context's producer exists by now. A component closes what it started before it returns.
        """

    async def check_ready(self) -> None:
        """Check that the component can serve.

        Raises:
            NotReady: It cannot serve now.
        """
