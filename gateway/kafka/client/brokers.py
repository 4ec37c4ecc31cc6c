"""Which broker is asked for metadata: any will do, so none is waited for.

Who failed longest ago is asked first; one who says nothing for a while has another asked
beside it (a frozen broker raises no error), and is left for last until it answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from gateway.errors import BrokerUnavailable
from gateway.kafka.protocol.requests import BrokerAnswer, MetadataAnswer, MetadataRequest
from gateway.telemetry.about import apart

from .connections import Connections, Role

_NOBODY: frozenset[int] = frozenset()


class Brokers:
    """The brokers of a cluster, as the last answer told them.

    bootstrap: host and port of the servers to begin with; their ids are below 0.
    hedge:     seconds of silence after which another broker is asked as well.
    """

    def __init__(
        self, connections: Connections, bootstrap: Sequence[tuple[str, int]], hedge: float
    ) -> None:
        self.known: dict[int, BrokerAnswer] = {}
        self.cluster_id: str | None = None
        self.answered: int | None = None  # who answered last
        self._connections = connections
        self._bootstrap = tuple(-1 - index for index in range(len(bootstrap)))
        self._hedge = hedge
        self._failed_at: dict[int, float] = {}
        self._asking: dict[asyncio.Task[MetadataAnswer], int] = {}  # nodes, of those under way
        connections.know(dict(zip(self._bootstrap, bootstrap, strict=True)))

    async def ask(
        self,
        topics: Sequence[str] | None,
        *,
        last: AbstractSet[int] = _NOBODY,
        never: AbstractSet[int] = _NOBODY,
    ) -> tuple[int, MetadataAnswer]:
        """The first answer, and whose it is.

        topics: None for all of the cluster's.
        last:  brokers to ask only when all others fail or are silent.
        never: brokers not to ask at all.
        Raises what the last broker raised; BrokerUnavailable when there is none.
        """
        left = self._candidates(last, never)
        asked: dict[asyncio.Task[MetadataAnswer], int] = {}
        error: BaseException = BrokerUnavailable("no broker is left to ask for metadata")
        while left or asked:
            if left:
                node = left.pop(0)
                asked[self._request(node, topics)] = node
            patience = self._hedge if left else None
            done, silent = await asyncio.wait(
                asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._failed(asked[task] for task in silent)
            for task in done:
                node = asked.pop(task)
                failure = _failure(task)
                if failure is None:
                    self.answered = node
                    self._learn(task.result())
                    return node, task.result()
                error = failure
        raise error

    async def close(self) -> None:
        tasks = tuple(self._asking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _candidates(self, last: AbstractSet[int], never: AbstractSet[int]) -> list[int]:
        known = sorted(
            self.known, key=lambda node: (node in last, self._failed_at.get(node, 0.0), node)
        )
        return [node for node in (*known, *self._bootstrap) if node not in never]

    def _request(self, node: int, topics: Sequence[str] | None) -> asyncio.Task[MetadataAnswer]:
        """Goes on when nobody waits for it any more, so that silence ends its connection."""
        task = apart(self._send(node, topics))
        self._asking[task] = node
        task.add_done_callback(self._answered)
        return task

    async def _send(self, node: int, topics: Sequence[str] | None) -> MetadataAnswer:
        answer = await self._connections.send(node, Role.CONTROL, MetadataRequest(topics))
        if not answer.brokers:
            raise BrokerUnavailable("the broker knows no brokers yet: it is starting")
        return answer

    def _answered(self, task: asyncio.Task[MetadataAnswer]) -> None:
        node = self._asking.pop(task)
        if _failure(task) is not None:
            self._failed([node])

    def _failed(self, nodes: Iterable[int]) -> None:
        now = asyncio.get_running_loop().time()
        self._failed_at.update(dict.fromkeys(nodes, now))

    def _learn(self, answer: MetadataAnswer) -> None:
        self.cluster_id = answer.cluster_id
        self.known = {broker.node: broker for broker in answer.brokers}
        self._connections.know({b.node: (b.host, b.port) for b in answer.brokers})


def _failure(task: asyncio.Task[MetadataAnswer]) -> BaseException | None:
    if task.cancelled():
        return BrokerUnavailable("the connections to Kafka are closed")
    return task.exception()
