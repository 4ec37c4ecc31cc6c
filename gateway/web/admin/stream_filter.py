"""Which streams an operator means."""

from __future__ import annotations

from typing import NamedTuple

from gateway.web.access import Granted
from gateway.web.routing.match import get_route_name
from gateway.web.streams.open_streams import OpenStream


class StreamFilter(NamedTuple):
    """Streams with all of this; what is None is not looked at. identity: for any guard, or for
    this one."""

    route: str | None = None
    identity: str | None = None
    guard: str | None = None
    address: str | None = None

    def matches(self, stream: OpenStream) -> bool:
        return (
            (
                self.route is None
                or any(get_route_name(m.route) == self.route for m in stream.matches)
            )
            and (self.address is None or stream.address == self.address)
            and any(has_grant(match.granted, self.guard, self.identity) for match in stream.matches)
        )


def has_grant(granted: Granted, guard: str | None, identity: str | None) -> bool:
    """As this, to this guard; None for any."""
    if guard is None and identity is None:
        return True
    return any(
        guard in (None, name) and identity in (None, grant.identity)
        for name, grant in granted.items()
    )
