"""Decide how long records that arrive wait for more, by what it costs to send them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

REST_FACTOR = 16.0  # the rest after a flush or a slice, as a multiple of what it cost
MAX_REST_S = 0.008  # seconds


class BatchPacing:
    """Decide how long records that arrive from Kafka wait for more.

    Each flush and each slice of a round is followed by a rest in proportion to what it cost. A
    flush of a single record is not: the next record most likely arrives alone, too, and would only
    arrive later (200 clients, 100 records a second: p50 1.9 ms instead of 5 ms).

    `Hub` creates one at each start. `SharedReads` and the `Broadcaster` record in it what they do,
    and the fetcher awaits `pause` before it asks Kafka for more.

    Args:
        rest_factor: The rest after a flush or a slice, as a multiple of what it cost.
        clock: Returns the seconds of any monotonic clock; None for the loop's.

    Attributes:
        is_single: The last flush applied a single entry.
        is_behind: Entries that were delivered wait for another flush.
        has_rounds: A round is under way.
        pushes_scheduled: How many pushes were scheduled so far.
        pushes_done: How many of them have run.
    """

    def __init__(
        self, *, rest_factor: float = REST_FACTOR, clock: Callable[[], float] | None = None
    ) -> None:
        self.is_single = self.is_behind = self.has_rounds = False
        self.pushes_scheduled = self.pushes_done = 0
        self._rest_factor = rest_factor
        self._now = clock or asyncio.get_running_loop().time
        self._rest_until = 0.0

    @property
    def remaining_rest(self) -> float:
        """Return the seconds until the rest is over; 0 if there is none."""
        return max(0.0, self._rest_until - self._now())

    async def pause(self) -> None:
        """Wait until what was just delivered is published and written, and the rest is over.

        The fetcher asks Kafka only then, so that what the answer brings can be published at once.
        An answer that arrived during the rest would have to wait until it is over (2,000 clients
        with a filter each, 4,000 records a second: p50 6 ms instead of 14 ms).
        """
        await asyncio.sleep(0)  # let it be flushed
        while self.is_behind:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # let its round begin
        rest = self.remaining_rest
        while rest > 0:
            await asyncio.sleep(rest)
            rest = self.remaining_rest

    def record_cost(self, seconds: float) -> None:
        """Extend the rest in proportion to the seconds that a flush or a slice took."""
        if self.is_single:
            return
        now = self._now()
        rest = self._rest_factor * seconds
        self._rest_until = min(now + MAX_REST_S, max(now, self._rest_until) + rest)
