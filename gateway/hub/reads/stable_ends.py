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
from gateway.kafka.client.offsets import Offset
from gateway.telemetry.about import apart

AGAIN = 0.05  # seconds until a partition that did not answer is asked again


class Leaders(Protocol):
    """What is needed of a cluster."""

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None: ...

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Offset | int]: ...


class StableEnds:
    """Asks for the ends of partitions; `close` ends what is under way."""

    def __init__(self, cluster: Leaders) -> None:
        self._cluster = cluster
        self._wanted: dict[TopicPartition, asyncio.Future[int | None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def of(self, tp: TopicPartition) -> int:
        """The end of a partition at some time after this call. Waits as long as Kafka takes."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._wanted:
                loop.call_soon(self._ask_all)
            end = await asyncio.shield(self._wanted.setdefault(tp, loop.create_future()))
            if end is not None:
                return end
            await asyncio.sleep(AGAIN)

    def _ask_all(self) -> None:
        wanted, self._wanted = self._wanted, {}
        leaders: dict[int | None, dict[TopicPartition, asyncio.Future[int | None]]] = {}
        for tp, answer in wanted.items():
            leader = self._cluster.leader(tp)
            leaders.setdefault(None if leader is None else leader[0], {})[tp] = answer
        for asked in leaders.values():
            task = apart(self._ask(asked))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, wanted: Mapping[TopicPartition, asyncio.Future[int | None]]) -> None:
        try:
            told = await self._cluster.list_offsets(dict.fromkeys(wanted, LATEST))
            for tp, answer in wanted.items():
                end = told[tp]
                answer.set_result(end.offset if isinstance(end, Offset) else None)
        except KafkaError:
            pass
        finally:
            for answer in wanted.values():
                if not answer.done():
                    answer.set_result(None)
