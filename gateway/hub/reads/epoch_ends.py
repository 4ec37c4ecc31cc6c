"""Find where leader epochs ended, to compare the positions of clients with the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.offsets import EpochEnd

from .leader_queries import LeaderQueries, Leaders


class EpochCluster(Leaders, Protocol):
    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | int]:
        """Return where each epoch ended, or Kafka's error code."""


class EpochEnds:
    def __init__(self, cluster: EpochCluster) -> None:
        self._queries: LeaderQueries[EpochEnd] = LeaderQueries(cluster, cluster.fetch_epoch_ends)

    async def find_end(self, tp: TopicPartition, epoch: int) -> EpochEnd | None:
        """Return where an epoch ended in the leader's log; None if no leader says so now."""
        answer = await self._queries.ask(tp, epoch)
        return answer if isinstance(answer, EpochEnd) else None

    async def close(self) -> None:
        await self._queries.close()
