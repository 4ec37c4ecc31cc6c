"""Which broker is asked for metadata: any will do, so none is waited for.

Who failed longest ago is asked first; one who says nothing for a while has another asked
beside it (a frozen broker raises no error), and is left for last until it answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from gateway.errors import BrokerUnavailable
from gateway.kafka.protocol.requests import BrokerMetadata, MetadataRequest, MetadataResponse
from gateway.telemetry.log_context import create_detached_task

from .connections import ConnectionRole, Connections

_NO_NODES: frozenset[int] = frozenset()


class Brokers:
    """The brokers of a cluster, as the last answer told them.

    bootstrap: host and port of the servers to begin with; their ids are below 0.
    hedge:     seconds of silence after which another broker is asked as well.
    """

    def __init__(
        self, connections: Connections, bootstrap: Sequence[tuple[str, int]], hedge_delay: float
    ) -> None:
        self.by_node: dict[int, BrokerMetadata] = {}
        self.cluster_id: str | None = None
        self.last_responder: int | None = None  # who answered last
        self._connections = connections
        self._bootstrap = tuple(-1 - index for index in range(len(bootstrap)))
        self._hedge_delay = hedge_delay
        self._failed_at: dict[int, float] = {}
        self._in_flight: dict[asyncio.Task[MetadataResponse], int] = {}  # nodes, of those under way
        connections.update_addresses(dict(zip(self._bootstrap, bootstrap, strict=True)))

    async def fetch_metadata(
        self,
        topics: Sequence[str] | None,
        *,
        avoid: AbstractSet[int] = _NO_NODES,
        exclude: AbstractSet[int] = _NO_NODES,
    ) -> tuple[int, MetadataResponse]:
        """The first answer, and whose it is.

        topics: None for all of the cluster's.
        last:  brokers to ask only when all others fail or are silent.
        never: brokers not to ask at all.
        Raises what the last broker raised; BrokerUnavailable when there is none.
        """
        left = self._list_candidates(avoid, exclude)
        asked: dict[asyncio.Task[MetadataResponse], int] = {}
        error: BaseException = BrokerUnavailable("no broker is left to ask for metadata")
        while left or asked:
            if left:
                node = left.pop(0)
                asked[self._start_request(node, topics)] = node
            patience = self._hedge_delay if left else None
            done, silent = await asyncio.wait(
                asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._mark_failed(asked[task] for task in silent)
            for task in done:
                node = asked.pop(task)
                failure = _get_error(task)
                if failure is None:
                    self.last_responder = node
                    self._apply_response(task.result())
                    return node, task.result()
                error = failure
        raise error

    async def close(self) -> None:
        tasks = tuple(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _list_candidates(self, avoid: AbstractSet[int], exclude: AbstractSet[int]) -> list[int]:
        known = sorted(
            self.by_node, key=lambda node: (node in avoid, self._failed_at.get(node, 0.0), node)
        )
        return [node for node in (*known, *self._bootstrap) if node not in exclude]

    def _start_request(
        self, node: int, topics: Sequence[str] | None
    ) -> asyncio.Task[MetadataResponse]:
        """Goes on when nobody waits for it any more, so that silence ends its connection."""
        task = create_detached_task(self._send_request(node, topics))
        self._in_flight[task] = node
        task.add_done_callback(self._on_done)
        return task

    async def _send_request(self, node: int, topics: Sequence[str] | None) -> MetadataResponse:
        answer = await self._connections.send(node, ConnectionRole.CONTROL, MetadataRequest(topics))
        if not answer.brokers:
            raise BrokerUnavailable("the broker knows no brokers yet: it is starting")
        return answer

    def _on_done(self, task: asyncio.Task[MetadataResponse]) -> None:
        node = self._in_flight.pop(task)
        if _get_error(task) is not None:
            self._mark_failed([node])

    def _mark_failed(self, nodes: Iterable[int]) -> None:
        now = asyncio.get_running_loop().time()
        self._failed_at.update(dict.fromkeys(nodes, now))

    def _apply_response(self, answer: MetadataResponse) -> None:
        self.cluster_id = answer.cluster_id
        self.by_node = {broker.node: broker for broker in answer.brokers}
        self._connections.update_addresses({b.node: (b.host, b.port) for b in answer.brokers})


def _get_error(task: asyncio.Task[MetadataResponse]) -> BaseException | None:
    if task.cancelled():
        return BrokerUnavailable("the connections to Kafka are closed")
    return task.exception()
