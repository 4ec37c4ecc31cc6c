"""Which broker coordinates a group, looked up once for all of its members here.

A coordinator that moved, or does not answer, is looked up again; until then everybody who asks
waits for the same lookup.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.group_messages import FindCoordinatorRequest
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.telemetry.counts import GroupCounts
from gateway.telemetry.log_context import create_detached_task

from .connections import BrokerConnection, ConnectionRole, Connections
from .failures import is_caller_cancelled
from .metadata import Metadata

R = TypeVar("R")

GROUP_AUTHORIZATION_FAILED = 30  # GROUP_AUTHORIZATION_FAILED
MAX_CACHED_GROUPS = 10_000  # groups whose coordinators are kept in mind
_LOOKUP_RETRY_S = 0.1  # seconds until a lookup is worth while again


class Coordinators:
    """Of all groups that are used here; and `tallies` of what becomes of them."""

    def __init__(self, connections: Connections, metadata: Metadata) -> None:
        self.stats = GroupCounts()
        self._connections = connections
        self._metadata = metadata
        self._nodes: dict[str, int] = {}
        self._lookups: dict[str, asyncio.Task[int]] = {}

    async def connect(self, group: str) -> BrokerConnection:
        """The connection that is shared by all members; its `versions` are the coordinator's.

        Raises BrokerUnavailable, AuthenticationFailed, AccessDenied.
        """
        node = await self._find_node(group)
        try:
            return await self._connections.connect(node, ConnectionRole.GROUP)
        except KafkaError:
            self.forget(group, node)
            raise

    async def send(self, group: str, request: KafkaRequest[R], *, max_hold: float = 0.0) -> R:
        """The coordinator's answer. held: seconds for which it may hold it back.

        Raises as `link`; KafkaError where the broker is too old for the request.
        """
        connections = self._connections
        node = await self._find_node(group)
        try:
            if not max_hold:
                return await connections.send(node, ConnectionRole.GROUP, request)
            async with connections.borrow_spare(node) as link:
                within = connections.request_timeout + max_hold
                return await connections.send_on(link, request, timeout=within)
        except BrokerUnavailable:
            self.forget(group, node)
            raise

    def forget(self, group: str, node: int | None = None) -> None:
        """It moved. node: unless another one is known by now."""
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
        finding = self._lookups.get(group)
        if finding is None:
            finding = self._lookups[group] = create_detached_task(self._look_up(group))
            finding.add_done_callback(lambda done: self._on_found(group, done))
        try:
            return await asyncio.shield(finding)
        except asyncio.CancelledError:
            if is_caller_cancelled(finding):
                raise
            raise BrokerUnavailable("the connections to Kafka are closed") from None

    def _on_found(self, group: str, done: asyncio.Task[int]) -> None:
        self._lookups.pop(group, None)
        if not done.cancelled() and done.exception() is None:
            self._nodes[group] = done.result()
            if len(self._nodes) > MAX_CACHED_GROUPS:
                del self._nodes[next(iter(self._nodes))]

    async def _look_up(self, group: str) -> int:
        """From whoever answers: one broker after the other."""
        metadata, connections = self._metadata, self._connections
        if not metadata.brokers:
            await metadata.refresh("looking for a coordinator")
        first = metadata.last_responder
        nodes = sorted(metadata.brokers, key=lambda node: (node != first, node))
        failure: KafkaError = BrokerUnavailable("no broker is known", retry_after=_LOOKUP_RETRY_S)
        for node in nodes:
            try:
                answer = await connections.send(
                    node, ConnectionRole.CONTROL, FindCoordinatorRequest(group)
                )
            except BrokerUnavailable as exc:
                failure = exc
                continue
            if answer.error == GROUP_AUTHORIZATION_FAILED:
                raise AccessDenied(f"the gateway may not use the group {group}; allow it READ")
            if not answer.error:
                connections.update_addresses({answer.node: (answer.host, answer.port)})
                return answer.node
            failure = BrokerUnavailable(
                f"the group {group} has no coordinator now: {answer.message or answer.error}",
                retry_after=_LOOKUP_RETRY_S,
            )
        raise failure
