"""Who may write and read: the scopes kafka:w and kafka:r of the contract.

Who knows clients is above this floor, so it is handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request

WRITE_SCOPE = "kafka:w"
READ_SCOPE = "kafka:r"
AUTHENTICATED = ""  # no scope: for whoever the guards know


class Authorizer(Protocol):
    """`await scope(request, WRITE, ["orders"])`, before anything is done.

    Returns who asks, empty where nobody is asked. Raises NotGranted 401 and 403, and
    GuardUnavailable 503.
    """

    async def __call__(
        self, request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
    ) -> str: ...


async def allow_anyone(
    request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
) -> str:
    """For whoever reaches the port."""
    return ""
