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
from gateway.telemetry.about import apart

Answer: TypeAlias = EpochEnd | int


Asked: TypeAlias = tuple[TopicPartition, int]


class Leaders(Protocol):
    """What is needed of a cluster."""

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None: ...

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | int]: ...


class Epochs:
    """Asks for the ends of epochs; `close` ends what is under way."""

    def __init__(self, cluster: Leaders) -> None:
        self._cluster = cluster
        self._wanted: dict[Asked, asyncio.Future[Answer]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def end(self, tp: TopicPartition, epoch: int) -> Answer:
        """Where the epoch ended by the leader's log, or Kafka's error code."""
        loop = asyncio.get_running_loop()
        if not self._wanted:
            loop.call_soon(self._ask_all)
        answer = self._wanted.setdefault((tp, epoch), loop.create_future())
        return await asyncio.shield(answer)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _ask_all(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for asked in self._requests(wanted):
            task = apart(self._ask({one: wanted[one] for one in asked}))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _requests(self, wanted: Iterable[Asked]) -> Iterable[Collection[Asked]]:
        """One a leader, so that a frozen one keeps nobody else waiting; and one may ask for one
        epoch of a partition."""
        requests: dict[tuple[int | None, int], list[Asked]] = {}
        nth: Counter[TopicPartition] = Counter()
        for tp, epoch in wanted:
            requests.setdefault((self._leader(tp), nth[tp]), []).append((tp, epoch))
            nth[tp] += 1
        return requests.values()

    def _leader(self, tp: TopicPartition) -> int | None:
        leader = self._cluster.leader(tp)
        return leader[0] if leader is not None else None

    async def _ask(self, wanted: Mapping[Asked, asyncio.Future[Answer]]) -> None:
        try:
            answers = await self._cluster.epoch_ends(dict(wanted.keys()))
            for (tp, _), answer in wanted.items():
                answer.set_result(answers[tp])
        finally:
            for answer in wanted.values():
                answer.cancel()
