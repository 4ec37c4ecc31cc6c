"""Define what all sources of a stream have in common: events, and how a connection ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError

RECORD_EVENTS = ("message", "delete")  # the names of events that are records


class StreamEvent(NamedTuple):
    """One event.

    Attributes:
        name: `message`, `delete`, or the name of a control event.
        data: A record in the route's format; JSON for other events.
        position: The position after the event; None if it has none.
    """

    name: str
    data: bytes
    position: str | None = None


class StreamSource(Protocol):
    """A stream that can be connected to many times.

    Attributes:
        retry: The last `retry:` of the server, in seconds; None if there was none.
        display_name: Where the stream is, for messages; without credentials.
    """

    retry: float | None
    display_name: str

    def iter_events(
        self, position: str | None, remaining: int | None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Connect, and yield events in batches until the connection ends.

        Args:
            position: Where to start; None for where the query says.
            remaining: How many records are wanted at most; None for all.

        Raises:
            StreamRefused: Another attempt would not help.
            ConnectionLost: The connection has ended otherwise.
        """
        ...

    async def close(self) -> None:
        """Close what the connections share."""
        ...


class StreamRefused(GatewayError):
    """The server refuses this stream, and another attempt would not help."""


class ConnectionLost(Exception):
    """A connection has ended, or could not be established.

    Attributes:
        retry_after: Seconds to wait at least (`Retry-After`); None if the server does not say.
        was_reached: The server answered; if not, the address may be wrong.
    """

    def __init__(
        self, reason: str, *, retry_after: float | None = None, was_reached: bool = True
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.was_reached = was_reached
