"""Say how long to wait before something that failed is tried again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

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


class _Pause(NamedTuple):
    failures: int
    ends_at: float


@dataclass(slots=True)
class ContentionBackoff(Generic[K]):
    """The pauses of this process for what other processes have taken from it.

    For processes that can only fence each other: where each takes back at once what it has lost,
    none finishes whose work takes longer than that. A pause that ended `max_delay` ago is
    forgotten. Sans-I/O: callers pass the time, in seconds of any monotonic clock.
    """

    policy: BackoffPolicy
    random: Callable[[], float]
    _pauses: dict[K, _Pause] = field(default_factory=dict)

    def note_loss(self, key: K, now: float) -> None:
        for other, pause in list(self._pauses.items()):
            if pause.ends_at + self.policy.max_delay < now:
                del self._pauses[other]
        failures = self._pauses.get(key, _Pause(0, now)).failures + 1
        delay = self.policy.compute_delay(failures, self.random)
        self._pauses[key] = _Pause(failures, now + delay)

    def note_success(self, key: K) -> None:
        self._pauses.pop(key, None)

    def get_remaining(self, key: K, now: float) -> float:
        """Return the seconds for which the key must be left to others; 0.0 if it need not."""
        pause = self._pauses.get(key)
        return max(0.0, pause.ends_at - now) if pause is not None else 0.0
