"""What a section of the sidecar is to the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from gateway.errors import GatewayError


class NotReady(GatewayError):
    """A part cannot serve now. what: which one; the message says why."""

    def __init__(self, component: str, reason: str) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.reason = reason


class Component(Protocol):
    """One section of the sidecar; made with its `Context`.

    routes: at the root, as the contract has their paths. Their endpoints raise what is wrong,
            which becomes a Status (`status`).
    """

    routes: Sequence[BaseRoute]

    async def run(self) -> None:
        """Beside the application until it is cancelled; starts and closes what it owns. The
        context's producer is there by now."""

    async def check_ready(self) -> None:
        """Raises Unready while it cannot serve."""
