"""What a stream brings, whatever carries it, and how it may end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError

RECORD_EVENTS = ("message", "delete")


class StreamEvent(NamedTuple):
    """One event. name: `message`, `delete`, or a control event's. data: of a record what the
    route's format makes of it, else JSON. position: after it, where it says so."""

    name: str
    data: bytes
    position: str | None = None


class StreamSource(Protocol):
    """A stream that can be connected to again and again.

    retry: seconds after which to come back, as the server said last; None if it did not.
    shown: where that is, for messages.
    """

    retry: float | None
    display_name: str

    def iter_events(
        self, position: str | None, remaining: int | None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """One connection, from this position on; `left`: so many records are wanted at most.

        Raises Refused if there is no use in trying again, Lost when it is over otherwise.
        """
        ...

    async def close(self) -> None: ...


class StreamRefused(GatewayError):
    """The server will not give this stream; asking again would not help."""


class ConnectionLost(Exception):
    """A connection is over.

    after:    seconds to wait at least, if the server said so (Retry-After).
    answered: the server was there; else the address may be wrong.
    """

    def __init__(
        self, reason: str, *, retry_after: float | None = None, was_reached: bool = True
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.was_reached = was_reached
