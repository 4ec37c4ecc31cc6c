"""Define what the application needs of each section of the sidecar."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from gateway.errors import GatewayError
from gateway.telemetry.samples import MetricSamples


class NotReady(GatewayError):
    """A component cannot serve now; `reason` is for operators."""

    def __init__(self, component: str, reason: str) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.reason = reason


class Component:
    """Serve one section of the sidecar's configuration, or a part of it.

    The application creates it with its `Context`, before there is an event loop, and owns it. Its
    routes have the paths of the contract. An endpoint raises its errors, and `http.status` turns
    them into a Status.
    """

    routes: Sequence[BaseRoute] = ()
    middleware: Sequence[Middleware] = ()

    async def run(self) -> None:
        """Run beside the application until cancelled, or return at once if nothing is to run.

        The context's producer exists by now. A component closes what it started before it returns.
        """

    async def check_ready(self) -> None:
        """Raise NotReady if it cannot serve now. Kafka is checked for all components together."""

    def collect_metrics(self, samples: MetricSamples) -> None: ...
