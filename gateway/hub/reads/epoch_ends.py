"""Ask where leader epochs ended, once per turn of the loop for all clients that ask.

After an election, every client that resumes brings an older epoch for every partition: 500 clients
of 12 partitions would be 6,000 requests to the brokers; asked together they are one per broker. A
request under way is not joined: its answer may be older than the token that it is compared with.
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
"""Where an epoch ended, or Kafka's error code."""

EpochKey: TypeAlias = tuple[TopicPartition, int]
"""A partition and a leader epoch."""


class EpochCluster(Protocol):
    """Define what is needed of a cluster."""

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Return the node and the leader epoch of a partition's leader; None if it has none."""

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | int]:
        """Return where each epoch ended, or Kafka's error code."""


class EpochEnds:
    """Ask for the ends of epochs, one request per leader and turn.

    `Hub` creates and closes it. `_pending` has what was asked for in this turn.
    """

    def __init__(self, cluster: EpochCluster) -> None:
        self._cluster = cluster
        self._pending: dict[EpochKey, asyncio.Future[EpochEndResult]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def find_end(self, tp: TopicPartition, epoch: int) -> EpochEndResult:
        """Return where the epoch ended in the leader's log, or Kafka's error code."""
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._send_requests)
        future = self._pending.setdefault((tp, epoch), loop.create_future())
        return await asyncio.shield(future)  # others may wait for the same future

    async def close(self) -> None:
        """Cancel the requests that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send_requests(self) -> None:
        wanted, self._pending = self._pending, {}
        for keys in self._group_by_leader(wanted):
            task = create_detached_task(self._send_request({key: wanted[key] for key in keys}))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _group_by_leader(self, pending: Iterable[EpochKey]) -> Iterable[Collection[EpochKey]]:
        """Return groups of keys, each for one request.

        Each leader is asked separately, so that a frozen one delays only its own partitions. A
        request can ask for one epoch of a partition only, so a partition's further epochs go into
        other requests.
        """
        requests: dict[tuple[int | None, int], list[EpochKey]] = {}
        nth: Counter[TopicPartition] = Counter()  # how many epochs of a partition came before
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
        """Send one request; if it fails, the futures are cancelled."""
        try:
            answers = await self._cluster.fetch_epoch_ends(dict(pending.keys()))
            for (tp, _), future in pending.items():
                future.set_result(answers[tp])
        finally:
            for future in pending.values():
                future.cancel()
