"""Commit the latest settled offsets of a group.

Records that are settled and not committed are sent again by the next owner of the partitions. So of
each partition one batch may be settled and not committed while the next one is sent, and none is
begun once a commit of it has failed or was refused: the new owner of the partition began at the
last accepted one.

A commit that fails for some partitions (their topic was deleted, or may not be read any more) holds
up no other: these are tried again by themselves. At a time there is one commit of those and one of
the others.

A lane that asks for its third batch waits for a round trip to Kafka: a back end that answers after
5 ms gets 9,400 instead of 11,000 records a second in batches of 100.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError, NotOwned
from gateway.kafka.client.outages import Outages

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5  # before a commit that failed is tried again
# Of one partition, when its lane sends nothing more: after a takeover these come again.
MAX_UNCOMMITTED_BATCHES = 2

CommitOffsets = Callable[[Mapping[TopicPartition, int]], Awaitable[None]]


class _SettledOffset(NamedTuple):
    number: int
    offset: int


class OffsetCommitter:
    """Collect offsets of one group, and commit them.

    The group creates it and runs `run`. A KafkaError of `commit` has the partitions for which it
    failed in `partitions`; None if for all.
    """

    def __init__(self, group: str, commit: CommitOffsets, outages: Outages | None = None) -> None:
        self._group = group
        self._commit_offsets = commit
        self._outages = outages or Outages(time.monotonic)
        # Of each partition the last ones that are not committed, at most MAX_UNCOMMITTED_BATCHES.
        # Their numbers distinguish what was forgotten and added again during a commit.
        self._pending: dict[TopicPartition, list[_SettledOffset]] = {}
        self._last_number = 0
        self._committed: dict[TopicPartition, int] = {}
        # Why the last commit of a partition failed. Of one that is said to be another member's the
        # consumer is about to say so, too; should it not, a later commit is accepted.
        self._errors: dict[TopicPartition, KafkaError] = {}
        self._wake = asyncio.Event()
        self._has_errors = asyncio.Event()
        self._retrying: Set[TopicPartition] = frozenset()  # those of `_errors` in a commit now
        self._lock = asyncio.Lock()  # of commits of partitions without an error
        self._retry_lock = asyncio.Lock()  # of the others
        self._waiting: set[Callable[[], None]] = set()

    @property
    def failure(self) -> str:
        return next(
            (str(error) for error in self._errors.values() if not isinstance(error, NotOwned)), ""
        )

    def enqueue(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Add the next offsets of partitions after a batch, which may be committed from now on."""
        for tp, offset in offsets.items():
            settled = self._pending.get(tp, [])
            if (settled[-1].offset if settled else self._committed.get(tp)) != offset:
                self._last_number += 1
                # Lanes that ask `find_held` add no third one; a position without a batch may.
                del settled[MAX_UNCOMMITTED_BATCHES - 1 :]
                self._pending[tp] = [*settled, _SettledOffset(self._last_number, offset)]
        if self._pending:
            self._wake.set()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget partitions that are not this member's any more."""
        for tp in tps:
            self._pending.pop(tp, None)
            self._committed.pop(tp, None)
            self._errors.pop(tp, None)
        self._report_recovery()
        self._wake_waiting()

    def committed(self, tp: TopicPartition) -> int | None:
        return self._committed.get(tp)

    def find_held(
        self, tps: Collection[TopicPartition], wake: Callable[[], None]
    ) -> Set[TopicPartition]:
        """Return the partitions of which no batch may be begun now.

        If there are any, `wake` is called once when it may be time to ask again.
        """
        held = {
            tp
            for tp in tps
            if tp in self._errors or len(self._pending.get(tp, ())) >= MAX_UNCOMMITTED_BATCHES
        }
        if held:
            self._waiting.add(wake)
        return held

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_forever())
            tasks.create_task(self._retry_forever())

    async def _commit_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            async with self._lock:
                await self._commit(self._select(self._pending.keys() - self._list_failing()))

    async def _retry_forever(self) -> None:
        while True:
            await self._has_errors.wait()
            await asyncio.sleep(RETRY_DELAY_S)
            async with self._retry_lock:
                selected = self._select(self._errors)
                self._retrying = selected.keys()
                try:
                    await self._commit(selected)
                finally:
                    self._retrying = frozenset()
            self._wake.set()  # what was added meanwhile had to wait
            if not self._errors:
                self._has_errors.clear()

    async def flush(self, tps: Collection[TopicPartition] | None = None) -> None:
        """Commit pending offsets now; raises KafkaError. Those of another member stay pending."""
        async with self._lock:
            chosen, failing = set(self._pending if tps is None else tps), self._list_failing()
            first = await self._commit(self._select(chosen - failing))
            # Those that fail are last: their commit may take until its timeout.
            async with self._retry_lock:
                second = await self._commit(self._select(chosen & failing))
        for error in (first, second):
            if error is not None and not isinstance(error, NotOwned):
                raise error

    def _list_failing(self) -> Set[TopicPartition]:
        return self._errors.keys() | self._retrying

    def _select(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, _SettledOffset]:
        """Return the pending offsets of partitions.

        No two commits under way may have the same partition: the older offset might be accepted
        last. The holder of `_lock` takes those that do not fail, the holder of `_retry_lock` the
        others.
        """
        return {tp: self._pending[tp][-1] for tp in tps if tp in self._pending}

    async def _commit(self, selected: Mapping[TopicPartition, _SettledOffset]) -> KafkaError | None:
        if not selected:
            return None
        error, failed = None, frozenset[tuple[str, int]]()
        try:
            await self._commit_offsets({tp: latest.offset for tp, latest in selected.items()})
        except KafkaError as exc:
            error = exc
            failed = frozenset(selected) if exc.partitions is None else exc.partitions
        if isinstance(error, NotOwned):
            if not failed <= self._errors.keys():  # else it was said before
                log.info("group %s: %s", self._group, error)
        elif error is not None:
            self._outages.report_error(self._outage_label, error, group=self._group)
        for tp, latest in selected.items():
            self._apply_commit(tp, latest, error if tp in failed else None)
        self._report_recovery()
        if not selected.keys() <= failed:
            self._wake_waiting()
        return error

    def _apply_commit(
        self, tp: TopicPartition, latest: _SettledOffset, error: KafkaError | None
    ) -> None:
        """Apply the result of a commit, unless its offset was forgotten meanwhile."""
        settled = self._pending.get(tp, [])
        left = [each for each in settled if each.number > latest.number]
        if len(left) == len(settled):
            return
        if error is not None:
            self._errors[tp] = error
            self._has_errors.set()
            return
        self._errors.pop(tp, None)
        self._committed[tp] = latest.offset
        if left:
            self._pending[tp] = left
            self._wake.set()  # it may have been added when the partition still had an error
        else:
            del self._pending[tp]

    def _report_recovery(self) -> None:
        if not self.failure:
            self._outages.report_recovery(self._outage_label, "work again")

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            wake()

    @property
    def _outage_label(self) -> str:
        return f"commits of group={self._group}"
