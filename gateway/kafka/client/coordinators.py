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
