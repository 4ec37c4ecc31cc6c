"""Limit how often one WebSocket asks guards to admit it, and count its wrong tokens.

A stream over HTTP is a request of its own, which `listen.limits.rate` counts for the address it
comes from. On a WebSocket, each `subscribe`, `change`, `produce` and `token` asks guards, too. The
first FREE_ATTEMPTS messages of a socket are not counted, so that a page may open as many streams as
one socket may carry; each one after them counts as a request of its address. A socket whose client
sent a wrong token has no free attempts left.
"""

from __future__ import annotations

from gateway.errors import RequestError

from .limits import Limits

FREE_ATTEMPTS = 100  # messages of one socket; as many as it may have streams
MAX_WRONG_TOKENS = 16  # wrong tokens in a row before the socket is closed
MAX_RATE_LIMITED_IN_A_ROW = 16  # messages beyond the rate before the socket is closed

RATE_LIMITED_MESSAGE = (
    "your address asks more often than it may; wait for so many seconds as `retryAfter` says"
)


class RateLimited(RequestError):
    def __init__(self, retry_after: float | None) -> None:
        super().__init__(429, "Rate limited", RATE_LIMITED_MESSAGE, retry_after=retry_after)


class Attempts:
    """The attempts of one socket. Owned by the socket's session."""

    __slots__ = (
        "_address",
        "_free_left",
        "_has_unproven_token",
        "_limits",
        "_rate_limited_in_a_row",
        "_wrong_tokens",
    )

    def __init__(self, limits: Limits, address: str) -> None:
        self._limits = limits
        self._address = address
        self._free_left = FREE_ATTEMPTS
        self._rate_limited_in_a_row = 0  # messages in a row that were beyond the rate
        self._wrong_tokens = 0  # refused tokens since a guard accepted one
        self._has_unproven_token = False  # the client sent a token that no guard has accepted yet

    async def count_attempt(self) -> None:
        """Count one message before any guard is asked, or raise `RateLimited`."""
        if self._free_left:
            self._free_left -= 1
            return
        wait = await self._limits.count_attempt(self._address)
        if wait is not None:
            self._rate_limited_in_a_row += 1
            raise RateLimited(wait)
        self._rate_limited_in_a_row = 0

    def note_token(self) -> None:
        """Record that the client sent another token, which no guard has checked yet."""
        self._has_unproven_token = True

    def note_admitted(self) -> None:
        self._has_unproven_token = False
        self._wrong_tokens = 0

    def note_refused(self, status: int) -> None:
        # Credentials that came with the handshake cannot be changed on a socket, so a client that
        # is refused with those is not guessing tokens.
        if status == 401 and self._has_unproven_token:
            self._wrong_tokens += 1
            self._free_left = 0

    @property
    def has_guessed(self) -> bool:
        """Whether the client tries one wrong token after the other."""
        return self._wrong_tokens >= MAX_WRONG_TOKENS

    @property
    def is_flooding(self) -> bool:
        """Whether the client keeps sending although it was asked to wait."""
        return self._rate_limited_in_a_row >= MAX_RATE_LIMITED_IN_A_ROW
