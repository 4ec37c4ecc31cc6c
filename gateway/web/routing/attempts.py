"""How often one socket asks to be let in, and what it may cost before it is refused.

A stream over HTTP is a request of its own, which `listen.limits.rate` counts for the address it
comes from. On a socket `subscribe`, `change`, `produce` and `token` ask the same of guards. The
first FREE_ATTEMPTS of a socket count as nothing, so that a page may open all the streams that a
socket has room for; each one after them counts as a request of its address. A socket whose client
told a wrong token has none free any more.
"""

from __future__ import annotations

from gateway.errors import RequestError

from .limits import Limits

FREE_ATTEMPTS = 100  # messages of one socket, as many as it may have streams
MAX_WRONG_TOKENS = 16  # told in a row before the socket is closed
MAX_RATE_LIMITED_IN_A_ROW = 16  # messages beyond the rate before the socket is closed

RATE_LIMITED_MESSAGE = (
    "your address asks more often than it may; wait for so many seconds as `retryAfter` says"
)


class RateLimited(RequestError):
    """A message came sooner than the rate of its address allows."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__(429, "Rate limited", RATE_LIMITED_MESSAGE, retry_after=retry_after)


class Attempts:
    """The attempts of one socket; created by its session with the first of them.

    address: what its connection counts under in `Limits.attempt`.
    """

    __slots__ = (
        "_address",
        "_free_left",
        "_has_unproven_token",
        "_limits",
        "_rate_limited_in_a_row",
        "_wrong_tokens",
    )

    # `_unproven`: a token was told that no guard has taken yet.
    # `_wrong`:    how often guards refused such a token since they took one.
    # `_refused`:  messages in a row that were beyond the rate.

    def __init__(self, limits: Limits, address: str) -> None:
        self._limits = limits
        self._address = address
        self._free_left = FREE_ATTEMPTS
        self._rate_limited_in_a_row = self._wrong_tokens = 0
        self._has_unproven_token = False

    async def count_attempt(self) -> None:
        """Count one message, before anybody is asked for it. Raises RateLimited."""
        if self._free_left:
            self._free_left -= 1
            return
        wait = await self._limits.count_attempt(self._address)
        if wait is not None:
            self._rate_limited_in_a_row += 1
            raise RateLimited(wait)
        self._rate_limited_in_a_row = 0

    def note_token(self) -> None:
        """Record that the client told another token, which nobody has looked at."""
        self._has_unproven_token = True

    def note_admitted(self) -> None:
        """Record that guards let the client in."""
        self._has_unproven_token = False
        self._wrong_tokens = 0

    def note_refused(self, status: int) -> None:
        """Record that guards did not. Credentials that came with the handshake cannot be changed
        on a socket, so who was refused with them guesses nothing."""
        if status == 401 and self._has_unproven_token:
            self._wrong_tokens += 1
            self._free_left = 0

    @property
    def has_guessed(self) -> bool:
        """Whether the client tries one token after the other."""
        return self._wrong_tokens >= MAX_WRONG_TOKENS

    @property
    def is_flooding(self) -> bool:
        """Whether the client goes on although it was told to wait."""
        return self._rate_limited_in_a_row >= MAX_RATE_LIMITED_IN_A_ROW
