"""Define the events of all sources of a stream, and the end of a connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError

RECORD_EVENTS = ("message", "delete")  # the names of events that are records


class StreamEvent(NamedTuple):
    """One event: a record in the route's format, or a control event as JSON."""

    name: str
    data: bytes
    position: str | None = None


class StreamSource(Protocol):
    """A stream that can be connected to many times.

    Attributes:
        retry: The last `retry:` of the server, in seconds; None if there was none.
        display_name: The location of the stream, for messages; without credentials.
    """

    retry: float | None
    display_name: str

    def iter_events(
        self, position: str | None, remaining: int | None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Connect, and yield events in batches until the connection ends.

        Raises:
            StreamRefused: Another attempt would not help.
            ConnectionLost: The connection has ended otherwise.
        """
        ...

    async def close(self) -> None: ...


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
