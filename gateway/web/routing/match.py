"""A route that a request matched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.config import PathPattern, Route, Settings
from gateway.web.access import NO_GRANTS, Granted


class Match(NamedTuple):
    """A route that a request matched, and the client that asks.

    Created by `Routes`. Without `granted`, nobody is admitted yet.

    Attributes:
        pattern: The path pattern; None if the route was not looked up by a path.
        values: The values of its parameters, in their order. Each stream keeps its match for as
            long as it runs, and a dict of one parameter takes 130 bytes more.
        path: The path, percent-encoded as it came.
        is_reply: Whether the path is where a client fetches the reply of an earlier request.
        purpose: The lookup of the path: by an HTTP method, for a stream (None), or WRITE_PURPOSE.
        settings: The configuration at the lookup; None if it was not looked up.
        method: The client's action for guards, as an HTTP method on any wire.
    """

    route: Route
    pattern: PathPattern | None = None
    values: tuple[str, ...] = ()
    granted: Granted = NO_GRANTS
    path: str = ""
    is_reply: bool = False
    purpose: str | None = None
    settings: Settings | None = None
    method: str = "GET"

    @property
    def params(self) -> Mapping[str, str]:
        names = () if self.pattern is None else self.pattern.params
        return dict(zip(names, self.values, strict=True))
