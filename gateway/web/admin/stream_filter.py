"""Select streams for an operator."""

from __future__ import annotations

from typing import NamedTuple

from gateway.web.access import Granted
from gateway.web.streams.open_streams import OpenStream


class StreamFilter(NamedTuple):
    """Selects the streams that match all of its members that are not None."""

    route: str | None = None
    identity: str | None = None
    guard: str | None = None
    address: str | None = None

    def matches(self, stream: OpenStream) -> bool:
        return (
            (self.route is None or any(m.route.name == self.route for m in stream.matches))
            and (self.address is None or stream.address == self.address)
            and any(has_grant(match.granted, self.guard, self.identity) for match in stream.matches)
        )


def has_grant(granted: Granted, guard: str | None, identity: str | None) -> bool:
    """Return whether a guard knows the client as this identity; None stands for any."""
    if guard is None and identity is None:
        return True
    return any(
        guard in (None, name) and identity in (None, grant.identity)
        for name, grant in granted.items()
    )
