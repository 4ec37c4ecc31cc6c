"""Choose the brokers to ask: for metadata, for all topic names, and for the requests of a group.

Of metadata, the broker whose last failure is longest ago is asked first. A frozen broker raises no
error, so after some silence the next one is asked as well (a hedged request), and the silent one
counts as failed.

The coordinator of a group is looked up once for all members of the group in this process, and again
when it has moved or does not answer. Concurrent callers share one lookup.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from gateway.background_tasks import start_shared_task, wait_for_shared
from gateway.core.error_code import AUTHORIZATION_ERRORS
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.group_messages import GROUP_KEY_TYPE, FindCoordinatorRequest
from gateway.kafka.protocol.requests import (
    BrokerMetadata,
    KafkaRequest,
    MetadataRequest,
    MetadataResponse,
)
from gateway.telemetry.counts import GroupCounts
from gateway.telemetry.logs import create_detached_task

from .connections import CLOSED, BrokerConnection, ConnectionRole, Connections

if TYPE_CHECKING:
    from .metadata import Metadata

R = TypeVar("R")
T = TypeVar("T")

# A topic that is created meanwhile is found by its name, but not by a pattern.
MAX_AGE_S = 5.0
MATCH_TURN_S = 0.01  # of matching names, after which other tasks run
MAX_CACHED_GROUPS = 10_000  # above this the coordinator that was found first is forgotten
_LOOKUP_RETRY_S = 0.1  # the `retry_after` of a failed lookup
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
        return BrokerUnavailable(CLOSED)
    return task.exception()


@dataclass(eq=False)
class TopicNames:
    """The names of all topics of a cluster, at most `max_age_s` old.

    Routes and consumers that choose topics by a pattern need them. Kafka lists topics only together
    with all their partitions (some MB for 10,000 topics), so callers share one request, whose
    answer serves them for a few seconds. Topics that may not be described are not listed.
    """

    _brokers: Brokers
    max_age_s: float = MAX_AGE_S
    match_turn_s: float = MATCH_TURN_S
    _names: frozenset[str] = frozenset()
    _expires_at: float = float("-inf")
    _fetch_task: asyncio.Task[frozenset[str]] | None = None
    _match_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # By pattern, the names that it was matched with, and those that it matches.
    _matches: WeakKeyDictionary[re.Pattern[str], tuple[frozenset[str], frozenset[str]]] = field(
        default_factory=WeakKeyDictionary
    )

    async def fetch_all(self) -> frozenset[str]:
        if asyncio.get_running_loop().time() < self._expires_at:
            return self._names
        if self._fetch_task is None or self._fetch_task.done():
            self._fetch_task = start_shared_task(self._fetch())
        return await wait_for_shared(self._fetch_task, BrokerUnavailable(CLOSED))

    async def match(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return the names that a pattern matches as a whole: the same object until they change.

        There may be thousands of names and of patterns. So each name is matched once, one pattern
        at a time, and other tasks run meanwhile.
        """
        names = await self.fetch_all()
        async with self._match_lock:
            known, matches = self._matches.get(pattern, (frozenset[str](), frozenset[str]()))
            if names is not known:
                found = set(matches & names)
                ends_at = perf_counter() + self.match_turn_s
                for name in names - known:
                    if perf_counter() >= ends_at:
                        await asyncio.sleep(0)
                        ends_at = perf_counter() + self.match_turn_s
                    if pattern.fullmatch(name):
                        found.add(name)
                matches = matches if found == matches else frozenset(found)
                self._matches[pattern] = names, matches
            return matches

    async def close(self) -> None:
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.gather(self._fetch_task, return_exceptions=True)

    async def _fetch(self) -> frozenset[str]:
        _, response = await self._brokers.fetch_metadata(None)
        if self._names != response.topics.keys():
            self._names = frozenset(response.topics)
        self._expires_at = asyncio.get_running_loop().time() + self.max_age_s
        return self._names


class Coordinators:
    """The coordinators of all groups that are used in this process, owned by `Cluster`."""

    def __init__(self, connections: Connections, metadata: Metadata) -> None:
        self.stats = GroupCounts()
        self._connections = connections
        self._metadata = metadata
        self._nodes: dict[str, int] = {}
        self._lookups: dict[str, asyncio.Task[int]] = {}

    @property
    def cluster_id(self) -> str | None:
        return self._metadata.cluster_id

    async def connect(self, group: str) -> BrokerConnection:
        """Return the connection to a group's coordinator that all its members share."""
        node = await self._find_node(group)
        try:
            return await self._connections.connect(node, ConnectionRole.GROUP)
        except KafkaError:
            self.forget(group, node)
            raise

    async def send(self, group: str, request: KafkaRequest[R], *, max_hold: float = 0.0) -> R:
        """Send a request to a group's coordinator.

        One that may be held back, for `max_hold` seconds, gets a connection of its own, so that no
        heartbeat waits behind it.
        """
        connections = self._connections
        node = await self._find_node(group)
        try:
            if not max_hold:
                return await connections.send(node, ConnectionRole.GROUP, request)
            async with connections.borrow_spare(node) as spare:
                timeout = connections.request_timeout + max_hold
                return await connections.send_on(spare, request, timeout=timeout)
        except BrokerUnavailable:
            self.forget(group, node)
            raise

    def forget(self, group: str, node: int | None = None) -> None:
        """Forget the coordinator of a group, unless by now it is another one than `node`."""
        if node is None or self._nodes.get(group) == node:
            self._nodes.pop(group, None)

    async def close(self) -> None:
        tasks = tuple(self._lookups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_node(self, group: str) -> int:
        if (node := self._nodes.get(group)) is not None:
            return node
        lookup = self._lookups.get(group)
        if lookup is None:
            lookup = self._lookups[group] = start_shared_task(self._look_up(group))
            lookup.add_done_callback(lambda task: self._on_lookup_done(group, task))
        return await wait_for_shared(lookup, BrokerUnavailable(CLOSED))

    def _on_lookup_done(self, group: str, task: asyncio.Task[int]) -> None:
        self._lookups.pop(group, None)
        if not task.cancelled() and task.exception() is None:
            self._nodes[group] = task.result()
            if len(self._nodes) > MAX_CACHED_GROUPS:
                del self._nodes[next(iter(self._nodes))]  # dicts keep the order of insertion

    async def _look_up(self, group: str) -> int:
        return await find_coordinator(
            self._connections, self._metadata, FindCoordinatorRequest(group), f"the group {group}"
        )


async def find_coordinator(
    connections: Connections, metadata: Metadata, request: FindCoordinatorRequest, name: str
) -> int:
    """Return the node id of a coordinator. The broker that answered last is asked first.

    Raises:
        BrokerUnavailable: No broker answers, or there is no coordinator now.
        AccessDenied: The gateway may not use the key.
    """
    if not metadata.brokers:
        await metadata.refresh("looking for a coordinator")
    first = metadata.last_responder
    failure: KafkaError = BrokerUnavailable("no broker is known", retry_after=_LOOKUP_RETRY_S)
    for node in sorted(metadata.brokers, key=lambda node: (node != first, node)):
        try:
            response = await connections.send(node, ConnectionRole.CONTROL, request)
        except BrokerUnavailable as exc:
            failure = exc
            continue
        if response.error in AUTHORIZATION_ERRORS:
            permission = "READ" if request.key_type == GROUP_KEY_TYPE else "WRITE"
            raise AccessDenied(f"the gateway may not use {name}; allow it {permission}")
        if not response.error:
            # The coordinator may be a broker that the last metadata answer did not have yet.
            connections.update_addresses({response.node: (response.host, response.port)})
            return response.node
        failure = BrokerUnavailable(
            f"{name} has no coordinator now: {response.message or response.error}",
            retry_after=_LOOKUP_RETRY_S,
        )
    raise failure
