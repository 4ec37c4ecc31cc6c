"""Compute the delay before the next connection.

The first delay is the server's `retry:`. It doubles with each failed attempt, with jitter, so that
many clients do not reconnect at the same time. A delay is never shorter than `Retry-After`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.backoff import BackoffPolicy

INITIAL_DELAY_S, MAX_DELAY_S = 1.0, 30.0  # seconds


@dataclass
class ReconnectBackoff:
    """The delays of one stream. `failures` counts attempts since it was last open."""

    random: Callable[[], float] = random.random
    failures: int = 0

    def reset(self) -> None:
        self.failures = 0

    def next_delay(self, retry: float | None, retry_after: float | None) -> float:
        """Return the seconds until the next attempt, and count it; the arguments are in seconds."""
        first = INITIAL_DELAY_S if retry is None else retry
        if self.failures == 0:
            delay = first
        else:
            policy = BackoffPolicy(2 * max(first, 0.1), MAX_DELAY_S)
            delay = policy.compute_delay(self.failures, self.random)
        self.failures += 1
        return max(delay, retry_after or 0.0)
