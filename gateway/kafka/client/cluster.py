"""One Kafka cluster: its connections and metadata, and what is asked of them.

Starting never waits for Kafka and never fails for good: brokers that are away are tried
again in the background, and `reachable` and `error` say how it stands.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff
from gateway.errors import KafkaError
from gateway.kafka.fetch import fetch as fetching
from gateway.kafka.fetch.decompression import DecompressionSlot
from gateway.kafka.fetch.fetch_sessions import FetchSession
from gateway.kafka.protocol.config_messages import DescribeConfigsRequest
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchTarget
from gateway.kafka.protocol.requests import TopicMetadata

from . import offsets, security
from .connections import ConnectionRole, Connections
from .coordinators import Coordinators
from .log_rate_limit import limit_log_rate
from .metadata import Metadata
from .outages import Outages

if TYPE_CHECKING:
    from gateway.config.sections.kafka import Kafka


CLIENT_ID = "gateway"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Times in seconds.

    servers:         `host:port` of the bootstrap servers.
    rack:            where this gateway is, to read from near replicas (KIP-392).
    credentials:     made by `security.credentials`.
    request_timeout: until a request without an answer closes its connection; a fetch has its
                     waiting time on top.
    metadata_hedge:  of silence until another broker is asked for metadata as well.
    reconnect:       the first and the longest delay before a broker is connected to again.
    """

    servers: Sequence[str]
    client_id: str = CLIENT_ID
    rack: str = ""
    credentials: security.Credentials = dict
    request_timeout: float = 5.0
    metadata_max_age: float = 2.0
    metadata_hedge: float = 1.0
    reconnect: tuple[float, float] = (0.05, 1.0)

    @classmethod
    def from_config(cls, kafka: Kafka, servers: Sequence[str] | None = None) -> ClusterSettings:
        """As configured. servers: in place of the configured ones (the embedded broker's)."""
        return cls(
            servers=servers if servers is not None else kafka.servers,
            client_id=kafka.client_id or CLIENT_ID,
            rack=kafka.rack or "",
            credentials=security.create_credentials(kafka.security),
            request_timeout=kafka.request_timeout,
            metadata_max_age=kafka.metadata_max_age,
            reconnect=(kafka.reconnect.initial, kafka.reconnect.max),
        )


class Cluster:
    """Connections and metadata of one cluster; `outages` says in the log what of it fails.

    async with it, or `start` and `close`, as often as needed; nothing outlives `close`.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self._closed = False
        self._create_parts()

    def _create_parts(self) -> None:
        settings, (floor, ceiling) = self.settings, self.settings.reconnect
        self.connections = Connections(
            client_id=settings.client_id,
            credentials=settings.credentials,
            request_timeout=settings.request_timeout,
            create_backoff=lambda: Backoff(
                max_delay=ceiling, random=random.random, min_delay=floor
            ),
        )
        self.outages = Outages(time.monotonic)
        self.metadata = Metadata(
            self.connections,
            [parse_address(server) for server in settings.servers],
            max_age=settings.metadata_max_age,
            hedge_delay=settings.metadata_hedge,
            outages=self.outages,
        )
        self.coordinators = Coordinators(self.connections, self.metadata)
        self.inflation = DecompressionSlot()

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to reach for the brokers; returns at once."""
        if self._closed:  # nothing of it may outlive the loop that it ran in
            self._closed = False
            self._create_parts()
        limit_log_rate()
        self.metadata.start()

    async def close(self) -> None:
        self._closed = True
        await self.coordinators.close()
        await self.metadata.close()
        await self.connections.close()

    @property
    def is_reachable(self) -> bool:
        """The last attempt to ask a broker anything about the cluster succeeded."""
        return self.metadata.is_reachable

    @property
    def error(self) -> KafkaError | None:
        """Why it is not reachable, None while it is, or while the first attempt runs."""
        return self.metadata.error

    @property
    def cluster_id(self) -> str | None:
        return self.metadata.cluster_id

    @property
    def request_counts(self) -> Counter[str]:
        """How many requests were sent, by the api's name."""
        return self.connections.request_counts

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Node and leader epoch of a watched partition; None while it has no leader."""
        return self.metadata.leader_for_partition(tp)

    def get_topic(self, name: str) -> TopicMetadata | None:
        """A watched topic as last told."""
        return self.metadata.get_topic(name)

    async def describe_topic(self, topic: str) -> TopicMetadata:
        """See `Metadata.describe`."""
        return await self.metadata.describe_topic(topic)

    async def list_topics(self) -> frozenset[str]:
        """The names of all that may be described, a few seconds old. See `topic_names`."""
        return await self.metadata.topic_names.fetch_all()

    async def fetch_cleanup_policy(self, topic: str) -> str | None:
        """Such as `compact,delete`; None where the configs may not be described."""
        node = self.metadata.last_responder
        if node is None:
            return None
        request = DescribeConfigsRequest(topic, ("cleanup.policy",))
        answer = await self.connections.send(node, ConnectionRole.CONTROL, request)
        return answer.values.get("cleanup.policy")

    async def fetch_delete_retention(self, topic: str) -> float | None:
        """Seconds for which a compacted topic keeps its tombstones (delete.retention.ms); None
        for one that is not compacted, or whose configs may not be described."""
        request = DescribeConfigsRequest(topic, ("cleanup.policy", "delete.retention.ms"))
        node = self.metadata.last_responder
        if node is None:
            return None
        answer = await self.connections.send(node, ConnectionRole.CONTROL, request)
        kept = answer.values.get("delete.retention.ms")
        if "compact" not in (answer.values.get("cleanup.policy") or "") or kept is None:
            return None
        return int(kept) / 1000

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        isolation_level: int = offsets.READ_COMMITTED,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, offsets.OffsetAndTimestamp | int]:
        """See `offsets.list_offsets`."""
        return await offsets.list_offsets(self, specs, isolation_level, timeout=timeout)

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, offsets.EpochEnd | int]:
        """See `offsets.epoch_ends`."""
        return await offsets.fetch_epoch_ends(self, epochs, timeout=timeout)

    async def fetch(
        self,
        node: int,
        role: ConnectionRole,
        targets: Mapping[TopicPartition, FetchTarget] | FetchSession,
        *,
        max_wait: float = 0.5,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
        isolation_level: int = offsets.READ_COMMITTED,
    ) -> dict[TopicPartition, FetchedPartition]:
        """See `fetch.fetch`; new leaders told on the way are noted (KIP-951)."""
        fetched = await fetching.fetch(
            self.connections,
            node,
            role,
            targets,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation=isolation_level,
            rack=self.settings.rack,
        )
        for tp, one in fetched.items():
            if one.current_leader is not None:
                self.metadata.update_leader(tp, *one.current_leader)
        return fetched


def parse_address(server: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `host` (port 9092)."""
    host, colon, port = server.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = server, "9092"
    return host.strip("[]"), int(port)
