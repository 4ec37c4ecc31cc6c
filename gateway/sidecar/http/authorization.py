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
    It returns the client's identity, which is empty where no guard is configured. It raises
    NotGranted (401 or 403), or GuardUnavailable (503).
    """

    async def __call__(
        self, request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
    ) -> str: ...


async def allow_anyone(
    request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
) -> str:
    return ""
