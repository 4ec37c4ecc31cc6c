"""Ask where partitions end (the last stable offset), once per turn for all clients that ask.

Each leader is asked separately, so that a frozen one delays only its own partitions. A request
under way is not joined: its answer may be older than the client that asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError
from gateway.kafka.client.offsets import OffsetAndTimestamp
from gateway.telemetry.log_context import create_detached_task

RETRY_DELAY_S = 0.05  # seconds until a partition that did not answer is asked again


class OffsetCluster(Protocol):
    """Define what is needed of a cluster."""

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Return the node and the leader epoch of a partition's leader; None if it has none."""

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]:
        """Return the offset of each partition, or Kafka's error code."""


class StableEnds:
    """Ask for the ends of partitions, one request per leader and turn.

    `Snapshots` creates and closes it. `_pending` has what was asked for in this turn.
    """

    def __init__(self, cluster: OffsetCluster) -> None:
        self._cluster = cluster
        self._pending: dict[TopicPartition, asyncio.Future[int | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancel the requests that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def find_end(self, tp: TopicPartition) -> int:
        """Return the end of a partition as of some time after this call.

        It waits as long as Kafka takes.
        """
        loop = asyncio.get_running_loop()
        while True:
            if not self._pending:
                loop.call_soon(self._send_requests)
            # Shielded: others may wait for the same future.
            end = await asyncio.shield(self._pending.setdefault(tp, loop.create_future()))
            if end is not None:
                return end
            await asyncio.sleep(RETRY_DELAY_S)

    def _send_requests(self) -> None:
        wanted, self._pending = self._pending, {}
        leaders: dict[int | None, dict[TopicPartition, asyncio.Future[int | None]]] = {}
        for tp, answer in wanted.items():
            leader = self._cluster.leader_for_partition(tp)
            leaders.setdefault(None if leader is None else leader[0], {})[tp] = answer
        for request in leaders.values():
            task = create_detached_task(self._send_request(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_request(
        self, pending: Mapping[TopicPartition, asyncio.Future[int | None]]
    ) -> None:
        """Ask one leader; None is the result of partitions that did not answer."""
        try:
            answers = await self._cluster.list_offsets(dict.fromkeys(pending, LATEST))
            for tp, future in pending.items():
                end = answers[tp]
                future.set_result(end.offset if isinstance(end, OffsetAndTimestamp) else None)
        except KafkaError:
            pass
        finally:
            for future in pending.values():
                if not future.done():
                    future.set_result(None)
