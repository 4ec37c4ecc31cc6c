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

TopicOf: TypeAlias = tuple[str, str]  # the name of its cluster, its own


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
        self.leaving: set[Callable[[], None]] = set()  # told when the gateway drains
        for hub in self:
            hub.beside = tuple(self)

    def __iter__(self) -> Iterator[Hub]:
        return iter(self.by_name.values())

    def of(self, cluster: str) -> Hub:
        return self.by_name[cluster]

    def having(self, topics: Iterable[str]) -> list[Hub]:
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

    def adopt(self, settings: Settings) -> frozenset[TopicOf]:
        """As `Hub.adopt`, of all of them."""
        self.settings = settings
        return frozenset((hub.name, topic) for hub in self for topic in hub.adopt(settings))

    def refuse(self) -> None:
        """From now on nobody is let in any more."""
        for hub in self:
            hub.draining = True

    def drain(self, reason: str = "drain") -> None:
        """End all streams; their clients come back, spread over some seconds."""
        for hub in self:
            hub.drain(reason)
        for leave in list(self.leaving):
            leave()
