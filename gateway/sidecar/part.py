"""What a section of the sidecar is to the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from gateway.errors import GatewayError


class Unready(GatewayError):
    """A part cannot serve now. what: which one; the message says why."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why


class Part(Protocol):
    """One section of the sidecar; made with its `Context`.

    routes: at the root, as the contract has their paths. Their endpoints raise what is wrong,
            which becomes a Status (`status`).
    """

    routes: Sequence[BaseRoute]

    async def run(self) -> None:
        """Beside the application until it is cancelled; starts and closes what it owns. The
        context's producer is there by now."""

    async def check(self) -> None:
        """Raises Unready while it cannot serve."""
