"""Find the brokers that coordinate groups, once for all members of a group in this process.

The coordinator of a group is looked up again when it has moved or does not answer. Concurrent
callers share one lookup.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from gateway.core.error_code import AUTHORIZATION_ERRORS
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.group_messages import GROUP_KEY_TYPE, FindCoordinatorRequest
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.telemetry.counts import GroupCounts

from .connections import BrokerConnection, ConnectionRole, Connections
from .metadata import Metadata
from .shared_tasks import start_shared_task, wait_for_shared

R = TypeVar("R")

MAX_CACHED_GROUPS = 10_000  # above this the coordinator that was found first is forgotten
_LOOKUP_RETRY_S = 0.1  # the `retry_after` of a failed lookup


class Coordinators:
    """The coordinators of all groups that are used in this process.

    Created and owned by `Cluster`.

    Attributes:
        stats: Counts of what happens to members, for metrics; the members add to it.
    """

    def __init__(self, connections: Connections, metadata: Metadata) -> None:
        self.stats = GroupCounts()
        self._connections = connections
        self._metadata = metadata
        self._nodes: dict[str, int] = {}
        self._lookups: dict[str, asyncio.Task[int]] = {}

    @property
    def cluster_id(self) -> str | None:
        """Return the id of the cluster; None before the first answer, or if brokers send none."""
        return self._metadata.cluster_id

    async def connect(self, group: str) -> BrokerConnection:
        """Return the connection to a group's coordinator that all its members share.

        Raises:
            BrokerUnavailable: There is no coordinator now, or it cannot be reached.
            AuthenticationFailed: The broker and the gateway refused each other's credentials.
            AccessDenied: The gateway may not read the group.
        """
        node = await self._find_node(group)
        try:
            return await self._connections.connect(node, ConnectionRole.GROUP)
        except KafkaError:
            self.forget(group, node)
            raise

    async def send(self, group: str, request: KafkaRequest[R], *, max_hold: float = 0.0) -> R:
        """Send a request to a group's coordinator and return the answer.

        Args:
            max_hold: Seconds for which the coordinator may hold the answer back. If it is not 0, a
                connection of its own is used, so that heartbeats do not wait behind it.

        Raises:
            BrokerUnavailable: There is no coordinator now, or it did not answer in time.
            AuthenticationFailed: The broker and the gateway refused each other's credentials.
            AccessDenied: The gateway may not read the group.
            KafkaError: The broker is too old for the request.
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
        """Forget the coordinator of a group, so that the next call looks it up again.

        Args:
            node: The broker that failed. If another one is known by now, that one is kept.
        """
        if node is None or self._nodes.get(group) == node:
            self._nodes.pop(group, None)

    async def close(self) -> None:
        """Cancel the lookups under way and wait for their end."""
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
        return await wait_for_shared(lookup)

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
    """Return the node id of a coordinator.

    One broker is asked after the other, the one that answered last first.

    Args:
        request: Asks for the coordinator of a key.
        name: What the key stands for in messages, such as `the group billing`.

    Raises:
        BrokerUnavailable: No broker answers, or there is no coordinator now.
        AuthenticationFailed: A broker and the gateway refused each other's credentials.
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
