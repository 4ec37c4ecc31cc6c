"""Define what the application needs of each section of the sidecar."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from gateway.errors import GatewayError
from gateway.telemetry.samples import MetricSamples


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


class Component:
    """Serve one section of the sidecar's configuration, or a part of it.

    The application creates it with its `Context`, before there is an event loop, and owns it.

    Attributes:
        routes: Its endpoints, at the root, with the paths of the contract. An endpoint raises what
            is wrong, and `http.status` turns that into a Status.
        middleware: What the application must add for it.
    """

    routes: Sequence[BaseRoute] = ()
    middleware: Sequence[Middleware] = ()

    async def run(self) -> None:
        """Run beside the application until cancelled, owning what it starts.

        The context's producer exists by now. A component closes what it started before it returns.
        By default nothing runs beside the requests.
        """

    async def check_ready(self) -> None:
        """Check that the component can serve; Kafka is checked for all components together.

        Raises:
            NotReady: It cannot serve now.
        """

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Add the samples of the component, if it has any."""
