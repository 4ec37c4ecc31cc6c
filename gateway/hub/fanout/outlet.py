"""Define the connection of one client as the hub sees it."""

from __future__ import annotations

from typing import Protocol


class Outlet(Protocol):
    """Take the bytes of one client, or of one stream of a WebSocket, without a task between.

    `gateway.web` implements it for connections. It calls `PushDelivery.on_drained` when it is no
    longer full, and `Client.close` when the connection is lost. Whether an outlet is full may
    change with every write, also with those of other streams on the same connection.
    """

    @property
    def full(self) -> bool:
        """Return whether bytes wait for the other side to take them."""

    def write(self, data: bytes) -> None:
        """Send bytes now; those that the other side does not take wait. Never raises or blocks."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes, and end the response as its protocol does."""

    def hand_over(self) -> None:
        """Release the outlet to another client, which goes on with the stream."""
