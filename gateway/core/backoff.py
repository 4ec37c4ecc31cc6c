"""Say how long to wait before something that failed is tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MAX_EXPONENT = 32  # 2.0 ** 1024 raises OverflowError


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Delays that double with each failure in a row, up to a limit, and are partly random.

    Without jitter, attempts that failed at the same moment would also be repeated at the same
    moment ("Exponential Backoff And Jitter", Marc Brooker, 2015). It has no state: callers count
    failures.

    Attributes:
        first_delay: The longest delay after the first failure, in seconds.
        max_delay: The longest delay of all, in seconds.
        jitter: The share of a delay that is random: 0.0 for none of it, 0.5 for delays between half
            and all of the longest one, 1.0 for "full jitter", with delays down to 0.
        factor: By how much the longest delay grows with each failure.
    """

    first_delay: float
    max_delay: float
    jitter: float = 0.5
    factor: float = 2.0

    def compute_delay(self, failures: int, random: Callable[[], float]) -> float:
        """Return the seconds to wait after at least one failure; `random` is called once."""
        growth = self.factor ** min(failures - 1, _MAX_EXPONENT)
        longest = min(self.max_delay, self.first_delay * growth)
        return longest * (1.0 - self.jitter + self.jitter * random())
