"""Which broker coordinates a group, looked up once for all of its members here.

A coordinator that moved, or does not answer, is looked up again; until then everybody who asks
waits for the same lookup.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.group_messages import FindCoordinatorRequest
from gateway.kafka.protocol.requests import Request
from gateway.telemetry.about import apart
from gateway.telemetry.tallies import Groups

from .connections import Link, Role
from .failures import cancels_caller

if TYPE_CHECKING:
    from .cluster import Cluster

R = TypeVar("R")

DENIED = 30  # GROUP_AUTHORIZATION_FAILED
MOST = 10_000  # groups whose coordinators are kept in mind
_SOON = 0.1  # seconds until a lookup is worth while again


class Coordinators:
    """Of all groups that are used here; and `tallies` of what becomes of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.tallies = Groups()
        self._cluster = cluster
        self._nodes: dict[str, int] = {}
        self._finding: dict[str, asyncio.Task[int]] = {}

    async def link(self, group: str) -> Link:
        """The connection that is shared by all members; its `versions` are the coordinator's.

        Raises BrokerUnavailable, AuthenticationFailed, AccessDenied.
        """
        node = await self._find(group)
        try:
            return await self._cluster.connections.connect(node, Role.GROUP)
        except KafkaError:
            self.forget(group, node)
            raise

    async def send(self, group: str, request: Request[R], *, held: float = 0.0) -> R:
        """The coordinator's answer. held: seconds for which it may hold it back.

        Raises as `link`; KafkaError where the broker is too old for the request.
        """
        connections = self._cluster.connections
        node = await self._find(group)
        try:
            if not held:
                return await connections.send(node, Role.GROUP, request)
            async with connections.spare(node) as link:
                within = connections.request_timeout + held
                return await connections.ask(link, request, within=within)
        except BrokerUnavailable:
            self.forget(group, node)
            raise

    def forget(self, group: str, node: int | None = None) -> None:
        """It moved. node: unless another one is known by now."""
        if node is None or self._nodes.get(group) == node:
            self._nodes.pop(group, None)

    async def close(self) -> None:
        tasks = tuple(self._finding.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, group: str) -> int:
        if (node := self._nodes.get(group)) is not None:
            return node
        finding = self._finding.get(group)
        if finding is None:
            finding = self._finding[group] = apart(self._ask(group))
            finding.add_done_callback(lambda done: self._found(group, done))
        try:
            return await asyncio.shield(finding)
        except asyncio.CancelledError:
            if cancels_caller(finding):
                raise
            raise BrokerUnavailable("the connections to Kafka are closed") from None

    def _found(self, group: str, done: asyncio.Task[int]) -> None:
        self._finding.pop(group, None)
        if not done.cancelled() and done.exception() is None:
            self._nodes[group] = done.result()
            if len(self._nodes) > MOST:
                del self._nodes[next(iter(self._nodes))]

    async def _ask(self, group: str) -> int:
        """From whoever answers: one broker after the other."""
        metadata, connections = self._cluster.metadata, self._cluster.connections
        if not metadata.brokers:
            await metadata.refresh("looking for a coordinator")
        first = metadata.answered
        nodes = sorted(metadata.brokers, key=lambda node: (node != first, node))
        failure: KafkaError = BrokerUnavailable("no broker is known", retry_after=_SOON)
        for node in nodes:
            try:
                answer = await connections.send(node, Role.CONTROL, FindCoordinatorRequest(group))
            except BrokerUnavailable as exc:
                failure = exc
                continue
            if answer.error == DENIED:
                raise AccessDenied(f"the gateway may not use the group {group}; allow it READ")
            if not answer.error:
                connections.know({answer.node: (answer.host, answer.port)})
                return answer.node
            failure = BrokerUnavailable(
                f"the group {group} has no coordinator now: {answer.message or answer.error}",
                retry_after=_SOON,
            )
        raise failure
