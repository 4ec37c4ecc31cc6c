"""The hubs of a process: one for each cluster, together within one bound of memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from gateway.config import Settings
from gateway.kafka.client.cluster import Cluster

from .hub import Hub

if TYPE_CHECKING:
    from gateway.telemetry.traces import Tracing

ClusterTopic: TypeAlias = tuple[str, str]  # the name of its cluster, its own


class Hubs:
    """See the module. `start` and `close` them in the loop, as often as needed.

    clusters: by name, which is empty for the only one of a configuration without names.
    """

    def __init__(self, clusters: Mapping[str, Cluster], settings: Settings) -> None:
        numbers = itertools.count(1)
        self.settings = settings
        self.by_name = {
            name: Hub(cluster, settings, name, numbers) for name, cluster in clusters.items()
        }
        self.drain_callbacks: set[Callable[[], None]] = set()  # told when the gateway drains
        for hub in self:
            hub.process_hubs = tuple(self)

    def __iter__(self) -> Iterator[Hub]:
        return iter(self.by_name.values())

    def get_hub(self, cluster: str) -> Hub:
        return self.by_name[cluster]

    def find_hubs(self, topics: Iterable[str]) -> list[Hub]:
        """Those that may be asked for topics: the only one for any, of several those that list
        them all."""
        return [self.by_name[name] for name in self.settings.clusters_of(topics)]

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
        """As `Hub.adopt`, of all of them."""
        self.settings = settings
        return frozenset(
            (hub.name, topic) for hub in self for topic in hub.apply_settings(settings)
        )

    def stop_accepting(self) -> None:
        """From now on nobody is let in any more."""
        for hub in self:
            hub.draining = True

    def drain(self, reason: str = "drain") -> None:
        """End all streams; their clients come back, spread over some seconds."""
        for hub in self:
            hub.drain(reason)
        for leave in list(self.drain_callbacks):
            leave()
