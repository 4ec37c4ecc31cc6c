"""Where leader epochs ended, asked once for all clients who want to know in one turn of the loop.

After an election every client that comes back brings an older epoch for every partition: 500
clients of 12 partitions would be 6,000 requests to the brokers; asked together they are one a
broker. An answer under way is not shared: it may be older than the token it is held against.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.offsets import EpochEnd
from gateway.telemetry.log_context import create_detached_task

EpochEndResult: TypeAlias = EpochEnd | int


EpochKey: TypeAlias = tuple[TopicPartition, int]


class EpochCluster(Protocol):
    """What is needed of a cluster."""

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None: ...

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | int]: ...


class EpochEnds:
    """Asks for the ends of epochs; `close` ends what is under way."""

    def __init__(self, cluster: EpochCluster) -> None:
        self._cluster = cluster
        self._pending: dict[EpochKey, asyncio.Future[EpochEndResult]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def find_end(self, tp: TopicPartition, epoch: int) -> EpochEndResult:
        """Where the epoch ended by the leader's log, or Kafka's error code."""
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._send_requests)
        answer = self._pending.setdefault((tp, epoch), loop.create_future())
        return await asyncio.shield(answer)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send_requests(self) -> None:
        wanted, self._pending = self._pending, {}
        for asked in self._group_by_leader(wanted):
            task = create_detached_task(self._send_request({one: wanted[one] for one in asked}))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _group_by_leader(self, pending: Iterable[EpochKey]) -> Iterable[Collection[EpochKey]]:
        """One a leader, so that a frozen one keeps nobody else waiting; and one may ask for one
        epoch of a partition."""
        requests: dict[tuple[int | None, int], list[EpochKey]] = {}
        nth: Counter[TopicPartition] = Counter()
        for tp, epoch in pending:
            requests.setdefault((self._get_leader(tp), nth[tp]), []).append((tp, epoch))
            nth[tp] += 1
        return requests.values()

    def _get_leader(self, tp: TopicPartition) -> int | None:
        leader = self._cluster.leader_for_partition(tp)
        return leader[0] if leader is not None else None

    async def _send_request(
        self, pending: Mapping[EpochKey, asyncio.Future[EpochEndResult]]
    ) -> None:
        try:
            answers = await self._cluster.fetch_epoch_ends(dict(pending.keys()))
            for (tp, _), answer in pending.items():
                answer.set_result(answers[tp])
        finally:
            for answer in pending.values():
                answer.cancel()
