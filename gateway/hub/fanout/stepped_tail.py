"""Publish a topic set in steps, at most one per interval (a route's `interval`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from gateway.core.log.partition_log import estimate_entry_size
from gateway.core.log.record import Entry, Ready, Record
from gateway.core.log.tail import Tail

from .shared_tail import SharedTail

MAX_STEP_BYTES = 16 << 20  # bytes of entries that cause a step before the interval is over


class SteppedTail(SharedTail):
    """Publish everything that arrives within an interval as one update.

    `Hub` creates one for the views of routes with an `interval`. Its tail is conflated: of an
    update, channels send only the latest record of each key. Entries that arrive after a quiet
    interval are published at once and start the next interval. So does a `Ready`, because clients
    may be waiting for it to begin. Between calls, a timer is set if entries are held back.
    """

    def __init__(
        self,
        tail: Tail,
        interval: float,
        on_unreadable: Callable[[Record], None] = lambda record: None,
        *,
        max_step_bytes: int = MAX_STEP_BYTES,
    ) -> None:
        super().__init__(tail, on_unreadable)
        self._interval = interval
        self._max_step_bytes = max_step_bytes
        self._loop = asyncio.get_running_loop()
        self._pending_entries: list[Entry] = []
        self._pending_bytes = 0
        self._next_step_at = 0.0  # when the next step may be taken, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, entries: Iterable[Entry], wall: int) -> None:
        """Hold entries back until the next step is due. Its time counts, not `wall`."""
        ready = False
        for entry in entries:
            self._pending_entries.append(entry)
            self._pending_bytes += estimate_entry_size(entry)
            ready = ready or type(entry) is Ready
        if (
            ready
            or self._pending_bytes >= self._max_step_bytes
            or self._loop.time() >= self._next_step_at
        ):
            self._publish_step()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_step_at, self._publish_step)

    def _publish_step(self) -> None:
        if self._timer is not None:  # also if this is its call: cancelling it has no effect then
            self._timer.cancel()
            self._timer = None
        entries, self._pending_entries, self._pending_bytes = self._pending_entries, [], 0
        self._next_step_at = self._loop.time() + self._interval
        super().publish(entries, int(time.time()))
