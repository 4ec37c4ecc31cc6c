"""Commit what a group has settled: one commit at a time, with the latest offsets.

While commits fail the lanes send nothing new: what is processed after the last commit is processed
again by the next owner of the partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError, NotOwned
from gateway.kafka.client.outages import Outages

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5  # before a commit that failed is tried again

CommitOffsets = Callable[[Mapping[TopicPartition, int]], Awaitable[None]]


class OffsetCommitter:
    """Collect offsets of one group, and commit them.

    The group creates it and runs `run`.

    Args:
        group: The name of the group.
        commit: Commits offsets. It raises NotOwned after all others are committed, and other
            KafkaErrors if nothing is.
        outages: Log why nothing can be committed.

    Attributes:
        failure: Why nothing can be committed now; empty while it can.
        can_commit: Set while offsets can be committed.
    """

    def __init__(self, group: str, commit: CommitOffsets, outages: Outages | None = None) -> None:
        self.failure = ""
        self.can_commit = asyncio.Event()
        self.can_commit.set()
        self._group = group
        self._commit = commit
        self._outages = outages or Outages(time.monotonic)
        # In tuples, whose identity distinguishes an offset that was forgotten and added again
        # during a commit from the one before.
        self._pending: dict[TopicPartition, tuple[int]] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()

    def enqueue(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Add the next offsets of partitions, which may be committed from now on."""
        for tp, offset in offsets.items():
            if self._pending.get(tp, (self._committed.get(tp),)) != (offset,):
                self._pending[tp] = (offset,)
        if self._pending:
            self._wake.set()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget partitions that are not this member's any more."""
        for tp in tps:
            self._pending.pop(tp, None)
            self._committed.pop(tp, None)

    def committed(self, tp: TopicPartition) -> int | None:
        """Return the offset that was committed last, or None if none was."""
        return self._committed.get(tp)

    async def run(self) -> None:
        """Commit whenever there is something to commit, and repeat after failures."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.flush()
            except KafkaError as error:
                self._note_failure(error)
                self._wake.set()
                await asyncio.sleep(RETRY_DELAY_S)

    async def flush(self, tps: Collection[TopicPartition] | None = None) -> None:
        """Commit what is pending, now.

        Args:
            tps: Only these partitions; None for all.

        Raises:
            KafkaError: It cannot be committed, and stays pending.
        """
        async with self._lock:
            pending = self._pending
            selected = {tp: entry for tp, entry in pending.items() if tps is None or tp in tps}
            if not selected:
                if not pending:  # what could not be committed belongs to another member now
                    self._recover()
                return
            try:
                await self._commit({tp: entry for tp, (entry,) in selected.items()})
            except NotOwned as error:
                log.info("group %s: %s", self._group, error)
            for tp, entry in selected.items():
                # Otherwise it was forgotten during the commit, or a later offset was added.
                if pending.get(tp) is entry:
                    del pending[tp]
                    self._committed[tp] = entry[0]
            self._recover()

    def _recover(self) -> None:
        """Note that commits work again."""
        self._outages.report_recovery(self._outage_label, "work again")
        self.failure = ""
        self.can_commit.set()

    def _note_failure(self, error: KafkaError) -> None:
        """Note that commits fail."""
        self._outages.report_error(self._outage_label, error, group=self._group)
        self.failure = str(error)
        self.can_commit.clear()

    @property
    def _outage_label(self) -> str:
        return f"commits of group={self._group}"
