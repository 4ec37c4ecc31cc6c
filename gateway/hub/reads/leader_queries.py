"""Ask the leaders of partitions, once per turn of the loop for all clients that ask.

After an election, every client that resumes brings an older epoch for every partition: 500 clients
of 12 partitions would be 6,000 requests to the brokers; asked together they are one per broker.

A hub's `LeaderLookups` ask for offsets, for ends of partitions and for ends of leader epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from gateway.core.log.partition_reader import LATEST
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError, TransactionOpen
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    EpochEnd,
    OffsetAndTimestamp,
)
from gateway.telemetry.logs import create_detached_task

MAX_QUERIES_AT_ONCE = 32  # to one leader, which takes up to 10 ms for an offset by time

A = TypeVar("A")


@dataclass(eq=False)
class LeaderQueries(Generic[A]):
    """Send the queries of one turn as one request per leader.

    Each leader is asked separately, so that a frozen one delays only its own partitions. A request
    under way is not joined: its answer may be older than the client that asks. A request has one
    query of each partition, and a leader a limited number of queries at once, or one request: more
    would wait at the broker, and exceed their time there. Its creator closes it. `send` returns an
    answer or Kafka's error code by partition.

    Between calls, a leader that has queries in `_pending` has a call of `_send_requests` scheduled,
    or as many queries as it may have.
    """

    _cluster: Cluster
    _send: Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, A | int]]]
    # By leader, partition and argument: the futures of those who ask.
    _pending: dict[
        int | None, dict[TopicPartition, dict[int, list[asyncio.Future[A | int | None]]]]
    ] = field(default_factory=dict)
    # With their leaders and numbers of queries.
    _tasks: dict[asyncio.Task[None], tuple[int | None, int]] = field(default_factory=dict)
    _is_closed: bool = False

    async def ask(self, tp: TopicPartition, argument: int) -> A | int | None:
        """Return the leader's answer, or Kafka's error code; None if the request failed."""
        if self._is_closed:
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        leader = self._cluster.leader_for_partition(tp)
        node = None if leader is None else leader[0]
        pending = self._pending.setdefault(node, {})
        if not pending:
            loop.call_soon(self._send_requests, node)
        future: asyncio.Future[A | int | None] = loop.create_future()
        pending.setdefault(tp, {}).setdefault(argument, []).append(future)
        return await future

    async def close(self) -> None:
        """Cancel the requests that are under way; those who wait get no answer."""
        self._is_closed = True
        for pending in self._pending.values():
            for queries in pending.values():
                _answer([future for futures in queries.values() for future in futures], None)
            pending.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send_requests(self, node: int | None) -> None:
        pending = self._pending[node]
        count = sum(size for leader, size in self._tasks.values() if leader == node)
        while pending and count < MAX_QUERIES_AT_ONCE:
            request = {}
            for tp, queries in list(pending.items()):
                argument = next(iter(queries))
                futures = [future for future in queries.pop(argument) if not future.done()]
                if futures:  # else all who asked have gone
                    request[tp] = argument, futures
                if not queries:
                    del pending[tp]
            if request:
                task = create_detached_task(self._send_request(request))
                self._tasks[task] = node, len(request)
                task.add_done_callback(self._on_sent)
                count += len(request)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._send_requests(self._tasks.pop(task)[0])

    async def _send_request(
        self, request: Mapping[TopicPartition, tuple[int, list[asyncio.Future[A | int | None]]]]
    ) -> None:
        """Send one request; None is the result of queries that got no answer."""
        answers: Mapping[TopicPartition, A | int] = {}
        try:
            answers = await self._send({tp: argument for tp, (argument, _) in request.items()})
        except KafkaError:
            pass
        finally:
            for tp, (_, futures) in request.items():
                _answer(futures, answers.get(tp))


def _answer(futures: Iterable[asyncio.Future[A]], answer: A) -> None:
    for future in futures:
        if not future.done():  # who asked may have gone
            future.set_result(answer)


RETRY_DELAY_S = 0.05  # seconds until a partition that did not answer is asked again
TRANSACTION_TIMEOUT_S = 5.0  # seconds for which open transactions are waited for


class LeaderLookups:
    """Look up offsets, and ends of partitions and of leader epochs."""

    def __init__(
        self, cluster: Cluster, transaction_timeout_s: float = TRANSACTION_TIMEOUT_S
    ) -> None:
        # By isolation, and whether by time: clients choose times, and ends do not wait for them.
        self._offset_queries = {
            (isolation, by_time): LeaderQueries[OffsetAndTimestamp](
                cluster, partial(cluster.list_offsets, isolation_level=isolation)
            )
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
            for by_time in (False, True)
        }
        self._epoch_queries = LeaderQueries[EpochEnd](cluster, cluster.fetch_epoch_ends)
        self._transaction_timeout_s = transaction_timeout_s

    async def find_offset(
        self, tp: TopicPartition, timestamp: int, isolation: int = READ_COMMITTED
    ) -> OffsetAndTimestamp | int | None:
        """Return the answer to one query of `list_offsets`; None if the request failed."""
        return await self._offset_queries[isolation, timestamp >= 0].ask(tp, timestamp)

    async def find_epoch_end(self, tp: TopicPartition, epoch: int) -> EpochEnd | int | None:
        """Return where an epoch ended in the leader's log, as `find_offset` does."""
        return await self._epoch_queries.ask(tp, epoch)

    async def find_end(self, tp: TopicPartition, isolation: int = READ_COMMITTED) -> int:
        """Return the end as of some time after this call, however long Kafka takes.

        By default it is the last stable offset. Cancelled by `close`.
        """
        while True:
            answer = await self.find_offset(tp, LATEST, isolation)
            if isinstance(answer, OffsetAndTimestamp):
                return answer.offset
            await asyncio.sleep(RETRY_DELAY_S)

    async def find_settled_end(self, tp: TopicPartition) -> int:
        """Return an end behind all records that were acknowledged before this call.

        While a transaction is open, `find_end` is where it began, and later records lie behind it.

        Raises:
            TransactionOpen: The transactions did not end in time.
        """
        high_watermark = await self.find_end(tp, READ_UNCOMMITTED)
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
        for queries in self._offset_queries.values():
            await queries.close()
        await self._epoch_queries.close()
