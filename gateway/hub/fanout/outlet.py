"""Where one client's bytes go: a connection, without a task in between."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Outlet(Protocol):
    """One connection, as far as the hub knows it. It tells the client (`Client.drained`) when
    it is no longer full, and (`Client.close`) when it is lost."""

    @property
    def full(self) -> bool:
        """Something waits for the other side to take it."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection itself; None where another server has it."""

    def write(self, data: bytes) -> None:
        """Send now; what the other side does not take waits. Never raises, never blocks."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes, and end the answer as its protocol does."""

    def hand_over(self) -> None:
        """The client writes nothing more: another goes on in its place."""
