"""Build the indexes of keys that logs ask for, in slices between which the event loop runs.

Readers of single keys look at every entry meanwhile, as before. An index of 500,000 entries takes
0.2 s, which would hold up everybody if it were built at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Protocol

from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import TopicPartition

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.1  # seconds from one look at all logs to the next
SLICE_S = 0.001  # seconds of building before other tasks get a turn
ENTRIES_PER_CLOCK_CHECK = 512  # entries from one look at the clock to the next: 0.2 ms


class LogHolder(Protocol):
    log: PartitionLog


class KeyIndexBuilder:
    """Build the indexes of keys of one cluster's logs; `reads` may change at any time."""

    def __init__(
        self, reads: Mapping[TopicPartition, LogHolder], on_growth: Callable[[int], None]
    ) -> None:
        self._reads = reads
        self._on_growth = on_growth

    async def build_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.build([read.log for read in self._reads.values()])
            except Exception:  # without indexes clients are slower, but are served
                log.exception("building an index of keys failed")

    async def build(self, logs: Iterable[PartitionLog]) -> None:
        """Do all the work that logs need now, and let other tasks run after each slice of it."""
        for partition_log in logs:
            has_more = True
            while has_more:
                has_more = self._build_slice(partition_log)
                if has_more:
                    await asyncio.sleep(0)

    def _build_slice(self, partition_log: PartitionLog) -> bool:
        """Work on one log for about `SLICE_S`; return whether there is more to do."""
        ends, bytes_before = perf_counter() + SLICE_S, partition_log.bytes
        has_more = partition_log.build_key_index(ENTRIES_PER_CLOCK_CHECK)
        while has_more and perf_counter() < ends:
            has_more = partition_log.build_key_index(ENTRIES_PER_CLOCK_CHECK)
        self._on_growth(max(0, partition_log.bytes - bytes_before))
        return has_more
