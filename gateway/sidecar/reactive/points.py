"""What a group may commit, and the committing of it: one commit at a time, the latest points.

While commits fail the lanes send nothing new: what is processed beyond the last commit is processed
again by whoever takes over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError, NotOwned

log = logging.getLogger(__name__)

AGAIN = 0.5  # seconds until a commit that failed is tried again

Commit = Callable[[Mapping[TopicPartition, int]], Awaitable[None]]


class Points:
    """commit: raises NotOwned when all others are committed, and other KafkaErrors.

    failing: why nothing can be committed now, empty while it can. good: set while it can.
    """

    def __init__(self, group: str, commit: Commit) -> None:
        self.failing = ""
        self.good = asyncio.Event()
        self.good.set()
        self._group = group
        self._commit = commit
        # In tuples, to tell one that was noted anew after it was forgotten from the one before.
        self._noted: dict[TopicPartition, tuple[int]] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()

    def note(self, points: Mapping[TopicPartition, int]) -> None:
        """The next offsets; they may be committed from now on."""
        for tp, offset in points.items():
            if self._noted.get(tp, (self._committed.get(tp),)) != (offset,):
                self._noted[tp] = (offset,)
        if self._noted:
            self._wake.set()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """They are another's."""
        for tp in tps:
            self._noted.pop(tp, None)
            self._committed.pop(tp, None)

    def committed(self, tp: TopicPartition) -> int | None:
        """What was last; None where nothing was yet."""
        return self._committed.get(tp)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.flush()
            except KafkaError as error:
                self._failed(str(error))
                self._wake.set()
                await asyncio.sleep(AGAIN)

    async def flush(self, tps: Collection[TopicPartition] | None = None) -> None:
        """Commit what is noted (of those). Raises KafkaError: it stays noted then."""
        async with self._lock:
            noted = self._noted
            wanted = {tp: at for tp, at in noted.items() if tps is None or tp in tps}
            if not wanted:
                if not noted:  # what could not be committed is another's now
                    self._recover()
                return
            try:
                await self._commit({tp: at for tp, (at,) in wanted.items()})
            except NotOwned as error:
                log.info("group %s: %s", self._group, error)
            for tp, at in wanted.items():
                if noted.get(tp) is at:  # else it was lost meanwhile, or went on
                    del noted[tp]
                    self._committed[tp] = at[0]
            self._recover()

    def _recover(self) -> None:
        if self.failing:
            log.info("group %s: offsets can be committed again", self._group)
        self.failing = ""
        self.good.set()

    def _failed(self, why: str) -> None:
        if not self.failing:
            log.warning("group %s: nothing is committed: %s", self._group, why)
        self.failing = why
        self.good.clear()
