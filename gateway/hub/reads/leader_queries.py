"""Ask the leaders of partitions, once per turn of the loop for all clients that ask.

After an election, every client that resumes brings an older epoch for every partition: 500 clients
of 12 partitions would be 6,000 requests to the brokers; asked together they are one per broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar

from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError
from gateway.telemetry.log_context import create_detached_task

A = TypeVar("A")

Query: TypeAlias = tuple[TopicPartition, int]
"""A partition, and what is asked about it: a leader epoch, or a timestamp of ListOffsets."""


class Leaders(Protocol):
    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Return the node and the leader epoch of a partition's leader; None if it has none."""


class LeaderQueries(Generic[A]):
    """Send the queries of one turn as one request per leader.

    Each leader is asked separately, so that a frozen one delays only its own partitions. A request
    under way is not joined: its answer may be older than the client that asks. Its creator closes
    it. `send` returns an answer or Kafka's error code by partition.
    """

    def __init__(
        self,
        leaders: Leaders,
        send: Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, A | int]]],
    ) -> None:
        self._leaders = leaders
        self._send = send
        self._pending: dict[Query, asyncio.Future[A | int | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, tp: TopicPartition, argument: int) -> A | int | None:
        """Return the leader's answer, or Kafka's error code; None if the request failed."""
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._send_requests)
        future = self._pending.setdefault((tp, argument), loop.create_future())
        return await asyncio.shield(future)  # others may wait for the same future

    async def close(self) -> None:
        """Cancel the requests that are under way; those who wait get no answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send_requests(self) -> None:
        pending, self._pending = self._pending, {}
        for queries in self._group_by_leader(pending):
            task = create_detached_task(
                self._send_request({query: pending[query] for query in queries})
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _group_by_leader(self, queries: Iterable[Query]) -> Iterable[list[Query]]:
        """Return groups of queries, each for one request: it can ask one thing per partition."""
        requests: dict[tuple[int | None, int], list[Query]] = {}
        nth: Counter[TopicPartition] = Counter()  # how many queries of a partition came before
        for tp, argument in queries:
            leader = self._leaders.leader_for_partition(tp)
            node = None if leader is None else leader[0]
            requests.setdefault((node, nth[tp]), []).append((tp, argument))
            nth[tp] += 1
        return requests.values()

    async def _send_request(self, pending: Mapping[Query, asyncio.Future[A | int | None]]) -> None:
        """Send one request; None is the result of queries that got no answer."""
        answers: Mapping[TopicPartition, A | int] = {}
        try:
            answers = await self._send(dict(pending.keys()))
        except KafkaError:
            pass
        finally:
            # None of them is done or cancelled: `ask` shields them.
            for (tp, _), future in pending.items():
                future.set_result(answers.get(tp))
