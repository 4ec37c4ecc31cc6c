"""Name the scopes of the contract (kafka:w to write, kafka:r to read) and who checks them.

The guards belong to `gateway.web`, a layer above this one, so the check is passed in as a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request

WRITE_SCOPE = "kafka:w"
READ_SCOPE = "kafka:r"
AUTHENTICATED = ""  # no scope: any client that the guards know


class Authorizer(Protocol):
    """Check that a client may do what it requests.

    Endpoints call it (`await authorize(request, WRITE_SCOPE, ["orders"])`) before they do anything.
    It returns the client's identity, which is empty where no guard is configured.

    Raises:
        NotGranted: 401 or 403.
        GuardUnavailable: 503, a guard cannot decide now.
    """

    async def __call__(
        self, request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
    ) -> str:
        """Return the identity of the client, or raise why it may not do that.

        Args:
            scope: What the client wants to do: a scope, or `AUTHENTICATED`.
            topics: The topics with which it wants to do it.
            group: The consumer group with which it wants to do it, if any.
        """


async def allow_anyone(
    request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
) -> str:
    """Allow everything to every client that reaches the port."""
    return ""
