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

RETRY_DELAY_S = 0.5  # seconds until a commit that failed is tried again

CommitOffsets = Callable[[Mapping[TopicPartition, int]], Awaitable[None]]


class OffsetCommitter:
    """commit: raises NotOwned when all others are committed, and other KafkaErrors.

    failing: why nothing can be committed now, empty while it can. good: set while it can.
    """

    def __init__(self, group: str, commit: CommitOffsets) -> None:
        self.failure = ""
        self.can_commit = asyncio.Event()
        self.can_commit.set()
        self._group = group
        self._commit = commit
        # In tuples, to tell one that was noted anew after it was forgotten from the one before.
        self._pending: dict[TopicPartition, tuple[int]] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()

    def enqueue(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The next offsets; they may be committed from now on."""
        for tp, offset in offsets.items():
            if self._pending.get(tp, (self._committed.get(tp),)) != (offset,):
                self._pending[tp] = (offset,)
        if self._pending:
            self._wake.set()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """They are another's."""
        for tp in tps:
            self._pending.pop(tp, None)
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
                self._note_failure(str(error))
                self._wake.set()
                await asyncio.sleep(RETRY_DELAY_S)

    async def flush(self, tps: Collection[TopicPartition] | None = None) -> None:
        """Commit what is noted (of those). Raises KafkaError: it stays noted then."""
        async with self._lock:
            noted = self._pending
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
        if self.failure:
            log.info("group %s: offsets can be committed again", self._group)
        self.failure = ""
        self.can_commit.set()

    def _note_failure(self, why: str) -> None:
        if not self.failure:
            log.warning("group %s: nothing is committed: %s", self._group, why)
        self.failure = why
        self.can_commit.clear()
