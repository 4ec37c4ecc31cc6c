"""Follow a topic of state: read its committed records as they come, and know how far it is read.

The sidecars keep what they have to agree on in topics (claims of requests, replays), which each of
them reads from where its owner says. `hub.writes.idempotency_log` is another thing: it reads
records of clients, committed or not, and only when a request asks for a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import AccessDenied, KafkaError
from gateway.kafka.client.cluster import Cluster

from .bounded_read import read_committed

FETCH_MAX_WAIT_S = 1.0  # for Kafka to answer a fetch without new records
RETRY_DELAY_S = 0.25  # before what failed is tried again
DENIED_RETRY_DELAY_S = 5.0  # before what is not allowed is tried again


@dataclass(eq=False)
class TopicFollower:
    """The partitions of one topic. Its owner creates it and runs `run`.

    Args:
        begin: Finds the topic, and returns the offsets to read from. It is called again when the
            topic was deleted or replaced, and when records have expired unread: their partition is
            in `next_offsets` no more.
        is_current: Returns whether the topic is still the one that `begin` has found.
        apply: Is called with what was read of a partition, and the offset after it.
        outage: What the log calls the topic, and what it says once it is read again.

    Attributes:
        is_reading: Whether `begin` has succeeded last.
        next_offsets: The next offset to read of each partition. Any offset is meaningless once
            `begin` has found another topic, so callers look whether it has, after each await.
        failures: Why a partition cannot be read; under None, why the topic cannot be found.
        failing_since: Since when there are failures, in seconds of the event loop's clock.
    """

    _cluster: Cluster
    _topic: str
    _begin: Callable[[], Awaitable[Mapping[TopicPartition, int]]]
    _is_current: Callable[[], bool]
    _apply: Callable[[TopicPartition, Sequence[Record], int], None]
    _outage: tuple[str, str]
    is_reading: bool = False
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    failures: dict[TopicPartition | None, KafkaError] = field(default_factory=dict)
    failing_since: float | None = None
    # Notified of whatever others may wait for.
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def failure(self) -> KafkaError | None:
        return next(iter(self.failures.values()), None)

    def is_read(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(self.next_offsets.get(tp, -1) >= end for tp, end in ends.items())

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until something is so; it is looked at whenever more was read, or nothing can be."""
        async with self._progress:
            await self._progress.wait_for(predicate)

    async def notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def run(self) -> None:
        """Read the topic until cancelled."""
        self.is_reading = False
        while True:
            try:
                self.next_offsets = dict(await self._begin())
            except KafkaError as exc:
                self.is_reading = False
                await self._report_failure(None, exc)
                continue
            self.is_reading = True
            self._clear_failure(None)
            await self.notify()
            # Others that read the topic may end their watch of it.
            with self._cluster.metadata.watching([self._topic]):
                await self._follow_all()
            await asyncio.sleep(RETRY_DELAY_S)  # brokers may not agree yet on the topic's state

    async def _follow_all(self) -> None:
        tasks = [asyncio.create_task(self._follow(tp)) for tp in self.next_offsets]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # None of them is read now, so a failure is the topic's until it is found again.
            if self.failure is not None:
                self.failures = {None: self.failure}

    async def _follow(self, tp: TopicPartition) -> None:
        while self._is_current():
            try:
                read = await read_committed(
                    self._cluster, tp, self.next_offsets[tp], max_wait=FETCH_MAX_WAIT_S
                )
            except KafkaError as exc:
                await self._report_failure(tp, exc)
                if code_from_error(exc) == ErrorCode.OFFSET_OUT_OF_RANGE:
                    del self.next_offsets[tp]
                    return
                continue
            self._clear_failure(tp)
            self._apply(tp, read.records, read.next_offset)
            self.next_offsets[tp] = read.next_offset
            await self.notify()  # also without news: the topic may be current again

    async def _report_failure(self, tp: TopicPartition | None, error: KafkaError) -> None:
        if not self.failures:
            self.failing_since = asyncio.get_running_loop().time()
        self.failures[tp] = error
        if tp == next(iter(self.failures)):
            self._cluster.outages.report_error(self._outage[0], error)
        await self.notify()
        is_denied = isinstance(error, AccessDenied)
        await asyncio.sleep(DENIED_RETRY_DELAY_S if is_denied else RETRY_DELAY_S)

    def _clear_failure(self, tp: TopicPartition | None) -> None:
        if self.failures.pop(tp, None) is not None and not self.failures:
            self.failing_since = None
            self._cluster.outages.report_recovery(*self._outage)
