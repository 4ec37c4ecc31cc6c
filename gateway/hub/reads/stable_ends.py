"""Where partitions end (the last stable offset), asked once for all clients who want to know in
one turn of the loop, and of each leader by itself: a frozen one keeps nobody else waiting.

An answer under way is not shared: it may be older than the client that asks.
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
    """What is needed of a cluster."""

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None: ...

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]: ...


class StableEnds:
    """Asks for the ends of partitions; `close` ends what is under way."""

    def __init__(self, cluster: OffsetCluster) -> None:
        self._cluster = cluster
        self._pending: dict[TopicPartition, asyncio.Future[int | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def find_end(self, tp: TopicPartition) -> int:
        """The end of a partition at some time after this call. Waits as long as Kafka takes."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._pending:
                loop.call_soon(self._send_requests)
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
        for asked in leaders.values():
            task = create_detached_task(self._send_request(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_request(
        self, pending: Mapping[TopicPartition, asyncio.Future[int | None]]
    ) -> None:
        try:
            told = await self._cluster.list_offsets(dict.fromkeys(pending, LATEST))
            for tp, answer in pending.items():
                end = told[tp]
                answer.set_result(end.offset if isinstance(end, OffsetAndTimestamp) else None)
        except KafkaError:
            pass
        finally:
            for answer in pending.values():
                if not answer.done():
                    answer.set_result(None)
