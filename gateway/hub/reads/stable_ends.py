"""Find where partitions end (the last stable offset)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.offsets import OffsetAndTimestamp

from .leader_queries import LeaderQueries, Leaders

RETRY_DELAY_S = 0.05  # seconds until a partition that did not answer is asked again


class OffsetCluster(Leaders, Protocol):
    async def list_offsets(
        self, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]:
        """Return the offset of each partition, or Kafka's error code."""


class StableEnds:
    def __init__(self, cluster: OffsetCluster) -> None:
        self._queries: LeaderQueries[OffsetAndTimestamp] = LeaderQueries(
            cluster, cluster.list_offsets
        )

    async def find_end(self, tp: TopicPartition) -> int:
        """Return the end as of some time after this call, however long Kafka takes."""
        while True:
            # By default `list_offsets` is read_committed: LATEST is the last stable offset.
            answer = await self._queries.ask(tp, LATEST)
            if isinstance(answer, OffsetAndTimestamp):
                return answer.offset
            await asyncio.sleep(RETRY_DELAY_S)

    async def close(self) -> None:
        await self._queries.close()
