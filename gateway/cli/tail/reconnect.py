"""When to connect again.

First after what the server asked for (`retry:`), then twice as long each time, drawn at random
below that so that many clients do not come at once. `Retry-After` is never undercut.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

INITIAL_DELAY_S, MAX_DELAY_S = 1.0, 30.0  # seconds


@dataclass
class ReconnectBackoff:
    """failures: attempts since a stream was last open. random: draws from [0, 1)."""

    random: Callable[[], float] = random.random
    failures: int = 0

    def reset(self) -> None:
        self.failures = 0

    def next_delay(self, retry: float | None, retry_after: float | None) -> float:
        """Seconds until the next attempt. retry: as told in the stream; after: as told by an
        answer that was none."""
        first = INITIAL_DELAY_S if retry is None else retry
        if self.failures == 0:
            wait = first
        else:
            bound = min(MAX_DELAY_S, max(first, 0.1) * 2.0 ** min(self.failures, 16))
            wait = bound * (0.5 + 0.5 * self.random())
        self.failures += 1
        return max(wait, retry_after or 0.0)
