"""Choose the broker to ask for metadata, so that a silent one delays nobody.

The broker whose last failure is longest ago is asked first. A frozen broker raises no error, so
after some silence the next one is asked as well (a hedged request), and the silent one counts as
failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.protocol.requests import BrokerMetadata, MetadataRequest, MetadataResponse
from gateway.telemetry.logs import create_detached_task

from .connections import ConnectionRole, Connections

T = TypeVar("T")

_NO_NODES: frozenset[int] = frozenset()


class Brokers:
    """The brokers of a cluster, according to the last metadata answer.

    Owned by `Metadata`, and used by `TopicNames` as well. Bootstrap servers have ids below 0, since
    their broker ids are not known; they are asked when all known brokers fail. After `hedge_delay`
    seconds of silence another broker is asked as well.
    """

    def __init__(
        self, connections: Connections, bootstrap: Sequence[tuple[str, int]], hedge_delay: float
    ) -> None:
        self.by_node: dict[int, BrokerMetadata] = {}
        self.cluster_id: str | None = None
        self.last_responder: int | None = None
        self._connections = connections
        self._bootstrap = tuple(-1 - index for index in range(len(bootstrap)))
        self._hedge_delay = hedge_delay
        self._failed_at: dict[int, float] = {}  # loop time of the last failure of known brokers
        # The node that each request under way was sent to. Requests that lost against a hedge stay
        # here until they are done.
        self._in_flight: dict[asyncio.Task[Any], int] = {}
        connections.update_addresses(dict(zip(self._bootstrap, bootstrap, strict=True)))

    async def fetch_metadata(
        self,
        topics: Sequence[str] | None,
        *,
        avoid: AbstractSet[int] = _NO_NODES,
        exclude: AbstractSet[int] = _NO_NODES,
    ) -> tuple[int, MetadataResponse]:
        """Return the id of the broker that answered first, and its answer.

        If all fail, the error names them; it is AuthenticationFailed if any refused a login.

        Args:
            topics: The topics to describe; None for all of the cluster.
            avoid: Brokers to ask only when all others have failed or are silent.
            exclude: Brokers not to ask at all.
        """
        candidates = self._list_candidates(avoid, exclude)
        asked = tuple(candidates)
        requests: dict[asyncio.Task[MetadataResponse], int] = {}
        error: BaseException = BrokerUnavailable("no broker is left to ask for metadata")
        while candidates or requests:
            # One more broker per turn: after a failure at once, after silence as a hedge.
            if candidates:
                node = candidates.pop(0)
                requests[self._start(node, self._send_request(node, topics))] = node
            # With nobody left to ask, only the timeouts of the requests end the wait.
            hedge_delay = self._hedge_delay if candidates else None
            done, silent = await asyncio.wait(
                requests, timeout=hedge_delay, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._mark_failed(requests[task] for task in silent)
            for task in done:
                node = requests.pop(task)
                failure = _get_error(task)
                if failure is None:
                    self.last_responder = node
                    self._apply_response(task.result())
                    return node, task.result()
                error = failure
        # An answer without brokers is no failure of the connection, so it is raised as it is.
        raise self._connections.combine_failures(asked) or error

    def probe_failed(self) -> None:
        """Ask each known broker that has failed and owes no answer whether it is back.

        A broker that leads no partition in use would otherwise count as failed until it does.
        """
        asked = set(self._in_flight.values())
        for node in self.by_node:
            if node not in asked and self.get_failure(node) is not None:
                self._start(node, self._connections.probe(node, MetadataRequest(())))

    def get_failure(self, node: int) -> KafkaError | None:
        return self._connections.get_failure(node)

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

    def _start(self, node: int, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a request in a task that goes on when nobody waits for it any more.

        Its timeout is needed to close the connection to a frozen broker.
        """
        task = create_detached_task(request)
        self._in_flight[task] = node
        task.add_done_callback(self._on_done)
        return task

    async def _send_request(self, node: int, topics: Sequence[str] | None) -> MetadataResponse:
        response = await self._connections.send(
            node, ConnectionRole.CONTROL, MetadataRequest(topics)
        )
        if not response.brokers:
            raise BrokerUnavailable("the broker knows no brokers yet: it is starting")
        return response

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        node = self._in_flight.pop(task)
        if _get_error(task) is not None:
            self._mark_failed([node])

    def _mark_failed(self, nodes: Iterable[int]) -> None:
        now = asyncio.get_running_loop().time()
        self._failed_at.update(dict.fromkeys(nodes, now))

    def _apply_response(self, response: MetadataResponse) -> None:
        self.cluster_id = response.cluster_id
        self.by_node = {broker.node: broker for broker in response.brokers}
        # A broker that left and comes back is another process, and ids may be new ones each time.
        self._failed_at = {
            node: failed_at for node, failed_at in self._failed_at.items() if node in self.by_node
        }
        self._connections.update_addresses(
            {broker.node: (broker.host, broker.port) for broker in response.brokers}
        )


def _get_error(task: asyncio.Task[Any]) -> BaseException | None:
    if task.cancelled():
        return BrokerUnavailable("the connections to Kafka are closed")
    return task.exception()
