"""What a guard is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from starlette.requests import HTTPConnection

from ...config import Route
from .grant import Grant
from .refusal import Refusals


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client comes with, and what it wants.

    token: of a `token` message, which beats what the connection has; None if none came.
    """

    route: Route
    params: Mapping[str, str]
    connection: HTTPConnection
    token: str | None = None

    @property
    def path(self) -> str:
        """The path of the route, its parameters filled in, percent-encoded; `/*` for a rest. A
        WebSocket has many streams, and its own path is none of theirs."""
        for when in self.route.when:
            pattern = when.pattern
            if set(pattern.params) == self.params.keys():
                filled = [
                    quote(self.params[each[1:-1]], safe="") if each[:1] == "{" else each
                    for each in pattern.segments
                ]
                return "/" + "/".join([*filled, "*"] if pattern.rest else filled)
        return self.route.when[0].path


class Guard(Protocol):
    """Says who a client is."""

    @property
    def refusals(self) -> Refusals:
        """Its words for those that it does not let in."""

    @property
    def renewable(self) -> bool:
        """A `token` message is for it, too."""

    async def grant(self, asked: Asked) -> Grant:
        """Raises NotGranted and GuardUnavailable."""
