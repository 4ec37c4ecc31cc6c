"""Find where partitions end (the last stable offset)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import TransactionOpen
from gateway.kafka.client.offsets import READ_UNCOMMITTED, OffsetAndTimestamp

from .leader_queries import LeaderQueries, Leaders

RETRY_DELAY_S = 0.05  # seconds until a partition that did not answer is asked again
TRANSACTION_TIMEOUT_S = 5.0  # seconds for which open transactions are waited for


class OffsetCluster(Leaders, Protocol):
    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation_level: int = ...
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]:
        """Return the offset of each partition, or Kafka's error code."""


class StableEnds:
    def __init__(
        self, cluster: OffsetCluster, transaction_timeout_s: float = TRANSACTION_TIMEOUT_S
    ) -> None:
        # By default `list_offsets` is read_committed: LATEST is the last stable offset.
        self._queries: LeaderQueries[OffsetAndTimestamp] = LeaderQueries(
            cluster, cluster.list_offsets
        )
        self._high_watermark_queries: LeaderQueries[OffsetAndTimestamp] = LeaderQueries(
            cluster, partial(cluster.list_offsets, isolation_level=READ_UNCOMMITTED)
        )
        self._transaction_timeout_s = transaction_timeout_s

    async def find_end(self, tp: TopicPartition) -> int:
        """Return the end as of some time after this call, however long Kafka takes."""
        return await _ask_until_answered(self._queries, tp)

    async def find_settled_end(self, tp: TopicPartition) -> int:
        """Return an end behind all records that were acknowledged before this call.

        While a transaction is open, `find_end` is where it began, and later records lie behind it.

        Raises:
            TransactionOpen: The transactions did not end in time.
        """
        high_watermark = await _ask_until_answered(self._high_watermark_queries, tp)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._transaction_timeout_s
        while (end := await self.find_end(tp)) < high_watermark:
            if loop.time() > deadline:
                raise TransactionOpen(
                    f"a transaction is open in topic {tp.topic}, so its latest records are not "
                    "known; try again",
                    retry_after=1.0,
                )
            await asyncio.sleep(RETRY_DELAY_S)
        return end

    async def close(self) -> None:
        await self._queries.close()
        await self._high_watermark_queries.close()


async def _ask_until_answered(
    queries: LeaderQueries[OffsetAndTimestamp], tp: TopicPartition
) -> int:
    while True:
        answer = await queries.ask(tp, LATEST)
        if isinstance(answer, OffsetAndTimestamp):
            return answer.offset
        await asyncio.sleep(RETRY_DELAY_S)
