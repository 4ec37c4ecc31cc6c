"""A topic set whose views move in steps: at most one in an interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from gateway.core.log.partition_log import estimate_entry_size
from gateway.core.log.record import Entry, Ready
from gateway.core.log.tail import Tail

from .shared_tail import SharedTail

MAX_STEP_BYTES = 16 << 20  # bytes of entries after which a step is taken early


class SteppedTail(SharedTail):
    """A shared tail that takes over what came within an interval in one turn.

    What comes after a quiet time goes out at once, and starts the interval. So does a partition
    that can be read (again): who waits for it is not to wait longer.
    """

    def __init__(self, tail: Tail, interval: float) -> None:
        super().__init__(tail)
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._pending_entries: list[Entry] = []
        self._pending_bytes = 0
        self._next_step_at = 0.0  # when the next step may be taken, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        ready = False
        for entry in entries:
            self._pending_entries.append(entry)
            self._pending_bytes += estimate_entry_size(entry)
            ready = ready or type(entry) is Ready
        if (
            ready
            or self._pending_bytes >= MAX_STEP_BYTES
            or self._loop.time() >= self._next_step_at
        ):
            self._publish_step()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_step_at, self._publish_step)

    def _publish_step(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._pending_entries, self._pending_bytes = self._pending_entries, [], 0
        self._next_step_at = self._loop.time() + self._interval
        super().publish(held, int(time.time()))
