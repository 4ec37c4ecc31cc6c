"""Keep the hubs of a process: one for each cluster, within one limit of memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from gateway.client_memory import ClientMemory
from gateway.config import Settings
from gateway.core.client.terms import EndReason
from gateway.kafka.client.cluster import Cluster

from .client_shares import ClientShares
from .hub import Hub

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

ClusterTopic: TypeAlias = tuple[str, str]
"""The name of a cluster, and the name of one of its topics."""


class Hubs:
    """The hubs of a process, which are started, drained and closed together.

    The application or `gateway.api.Gateway` creates one. It is started and closed within the event
    loop, and may be started again.

    Attributes:
        by_name: The hubs by the name of their cluster, which may be empty if there is only one.
        websocket_count: The open WebSocket connections, which their sessions count.
        drain_callbacks: Functions that are called when the gateway drains: one for each WebSocket
            connection, and one for the co-hosted app if there is one.
    """

    def __init__(self, clusters: Mapping[str, Cluster], settings: Settings) -> None:
        numbers = itertools.count(1)  # one sequence, so that a stream's number is unique in logs
        self.settings = settings
        self.client_memory = ClientMemory()  # its limit is of the settings, which hubs apply
        client_shares = ClientShares()
        self.by_name = {
            name: Hub(
                cluster,
                settings,
                name,
                numbers,
                client_memory=self.client_memory,
                client_shares=client_shares,
            )
            for name, cluster in clusters.items()
        }
        self.websocket_count = 0
        self.drain_callbacks: set[Callable[[], None]] = set()
        for hub in self:
            hub.process_hubs = tuple(self)

    def __iter__(self) -> Iterator[Hub]:
        return iter(self.by_name.values())

    def get_hub(self, cluster: str) -> Hub:
        return self.by_name[cluster]

    def find_hubs(self, topics: Iterable[str]) -> list[Hub]:
        """Return the hubs whose clusters may have all of these topics.

        A single cluster may have any topic. Of several, these are those that list all the topics.
        """
        return [self.by_name[name] for name in self.settings.find_cluster_names(topics)]

    @property
    def started(self) -> bool:
        return all(hub.started for hub in self)

    @property
    def draining(self) -> bool:
        return any(hub.draining for hub in self)

    async def start(self, tracing: Tracing | None = None) -> None:
        for hub in self:
            hub.tracing = tracing
            await hub.cluster.start()
            hub.cluster.connections.tracing = tracing
            await hub.start()

    async def close(self) -> None:
        await asyncio.gather(*(hub.close() for hub in self))
        await asyncio.gather(*(hub.cluster.close() for hub in self))

    def apply_settings(self, settings: Settings) -> frozenset[ClusterTopic]:
        """Apply other settings to all hubs, and return the topics whose options changed."""
        self.settings = settings
        return frozenset(
            (hub.name, topic) for hub in self for topic in hub.apply_settings(settings)
        )

    def find_changed_topics(self, settings: Settings) -> frozenset[ClusterTopic]:
        return frozenset(
            (hub.name, topic)
            for hub in self
            for topic in hub.topics.find_changed(settings.clusters[hub.name])
        )

    def stop_accepting(self) -> None:
        """End clients that subscribe from now on; streams that run go on."""
        for hub in self:
            hub.draining = True

    def drain(self, reason: EndReason = EndReason.DRAIN) -> None:
        """End all streams; their `end` events spread the reconnects over some seconds."""
        for hub in self:
            hub.drain(reason)
        # A copy: a connection that closes removes its callback.
        for callback in list(self.drain_callbacks):
            callback()
