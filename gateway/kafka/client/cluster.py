"""Represent one Kafka cluster: its connections, its metadata, and requests to its leaders.

Starting never waits for Kafka and never fails for good: brokers that are away are tried again in
the background, and `Cluster.is_reachable` and `Cluster.error` tell the current state.

Fetches are sent without a consumer of aiokafka.

Measured: Kafka 4.3.1, aiokafka 0.14 on uvloop, 600,000 records of 200 bytes in 12 partitions of one
broker, on two busy cores shared with that broker; records per second of wall clock and of CPU time:

| way | clock | CPU | exposes |
|---|---|---|---|
| one aiokafka consumer, getmany | 0.50-0.52 M | 0.55-0.63 M | records, out of range |
| twelve aiokafka consumers | 0.49-0.57 M | 0.60-0.61 M | the same, for each partition alone |
| this, with a `RecordSetDecoder` | 0.47-0.92 M | 0.77-1.03 M | all below |

The consumer hides facts that the gateway's promises depend on: the error of each partition, leader
epochs (it sends -1, so a deposed leader answers it), topic ids (a recreated topic looks like the
same one), the next offset after control, aborted and compacted records, the last stable offset, the
log start offset, and where logs diverge. It also has a single fetch in flight per broker, while
here the live tail and catch-up reads have a connection each.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import Backoff
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.protocol.fetch_messages import (
    FetchedPartition,
    FetchRequest,
    FetchSession,
    FetchTarget,
)
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.kafka.protocol.topic_messages import DescribeConfigsRequest
from gateway.telemetry.logs import limit_log_rate

from . import offsets, security
from .brokers import Coordinators
from .connections import BrokerConnection, ConnectionRole, Connections
from .metadata import Metadata
from .outages import OptionNames, Outages

if TYPE_CHECKING:
    from gateway.config.sections.kafka import Kafka
    from gateway.config.sections.security import Security


REPLICA_LEASE_S = 300.0  # seconds for which a nearer replica is read (KIP-392)
MAX_CORRUPT_ATTEMPTS = 3  # fetches of a damaged batch before a reader gives it up
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
CLIENT_ID = "gateway"  # the default of `kafka.clientId`


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of the connections to one cluster. All times are in seconds.

    Attributes:
        name: The name of the cluster; empty where there is only one.
        client_id: The client id in every request, which brokers use for quotas and logs.
        rack: The rack of this gateway, to read from replicas nearby (KIP-392); empty for none.
        request_timeout: After this time a request without an answer closes its connection; a fetch
            has its max wait on top.
        metadata_max_age: After this time the metadata of all watched topics is fetched again.
        metadata_hedge: After this time of silence another broker is asked for metadata as well.
        reconnect: The first and the longest delay before a broker is connected to again.
    """

    servers: Sequence[str]
    name: str = ""
    client_id: str = CLIENT_ID
    rack: str = ""
    credentials: security.Credentials = field(default_factory=security.Credentials)
    request_timeout: float = 5.0
    metadata_max_age: float = 2.0
    metadata_hedge: float = 1.0
    reconnect: tuple[float, float] = (0.05, 1.0)

    @classmethod
    def from_config(
        cls,
        kafka: Kafka,
        servers: Sequence[str] | None = None,
        *,
        name: str = "",
        names: OptionNames | None = None,
    ) -> ClusterSettings:
        """Return the settings of a `kafka` section of the configuration.

        Args:
            servers: Bootstrap servers in place of the configured ones, such as the embedded
                broker's.
            names: The names of its options in messages; None for those of its section.
        """
        names = names or OptionNames(f"kafka.{name}" if name else "kafka")
        return cls(
            servers=servers if servers is not None else kafka.servers,
            name=name,
            client_id=kafka.client_id or CLIENT_ID,
            rack=kafka.rack or "",
            credentials=security.create_credentials(kafka.security, names),
            request_timeout=kafka.request_timeout,
            metadata_max_age=kafka.metadata_max_age,
            reconnect=(kafka.reconnect.initial, kafka.reconnect.max),
        )


class FetchLimits(NamedTuple):
    """When a broker responds to a fetch, and how much it returns.

    Attributes:
        max_wait: For how many seconds the broker may wait for `min_bytes`.
        max_bytes: The most bytes of the response; at least one batch comes.
    """

    max_wait: float = 0.5
    min_bytes: int = 1
    max_bytes: int = 16 << 20
    isolation_level: int = offsets.READ_COMMITTED


class DecompressionSlot:
    """The permission to hold one large decompressed batch, of which each `Cluster` has one."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.held_bytes = 0


class Cluster:
    """The connections and metadata of one cluster.

    `gateway.api` and the commands create one for each cluster and own it; everything else in
    `kafka` gets it as an argument. After a `close`, `start` creates new parts, so hold on to the
    cluster and not to its attributes. Only `outages` stays. No task or connection outlives `close`.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.outages = Outages(time.monotonic, cluster=settings.name)
        self._closed = False
        self._create_parts()

    def _create_parts(self) -> None:
        settings, (min_delay, max_delay) = self.settings, self.settings.reconnect
        self.connections = Connections(
            client_id=settings.client_id,
            credentials=settings.credentials,
            request_timeout=settings.request_timeout,
            create_backoff=lambda: Backoff(
                max_delay=max_delay, random=random.random, min_delay=min_delay
            ),
        )
        self.metadata = Metadata(
            self.connections,
            [parse_address(server) for server in settings.servers],
            max_age=settings.metadata_max_age,
            hedge_delay=settings.metadata_hedge,
            outages=self.outages,
        )
        self.coordinators = Coordinators(self.connections, self.metadata)
        self.decompression_slot = DecompressionSlot()

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to connect in the background. Returns at once."""
        if self._closed:
            # The old parts may belong to another event loop, which ended since then.
            self._closed = False
            self._create_parts()
        limit_log_rate()
        self.metadata.start()

    async def close(self) -> None:
        self._closed = True
        # The users of the connections end first.
        await self.coordinators.close()
        await self.metadata.close()
        await self.connections.close()
        self.outages.forget_all()

    def replace_security(self, section: Security | None) -> None:
        self.settings.credentials.replace(section)

    @property
    def is_reachable(self) -> bool:
        return self.metadata.is_reachable

    @property
    def error(self) -> KafkaError | None:
        return self.metadata.error

    @property
    def cluster_id(self) -> str | None:
        return self.metadata.cluster_id

    @property
    def request_counts(self) -> Counter[str]:
        return self.connections.request_counts

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.metadata.leader_for_partition(tp)

    def get_topic(self, name: str) -> TopicMetadata | None:
        return self.metadata.get_topic(name)

    async def describe_topic(self, topic: str) -> TopicMetadata:
        return await self.metadata.describe_topic(topic)

    async def list_topics(self) -> frozenset[str]:
        """Return the names of all topics that may be described, at most a few seconds old."""
        return await self.metadata.topic_names.fetch_all()

    async def match_topics(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return the names of `list_topics` that a pattern matches: the same until they change."""
        return await self.metadata.topic_names.match(pattern)

    async def fetch_cleanup_policy(self, topic: str) -> str | None:
        """Return the `cleanup.policy`, such as `compact,delete`.

        None where access is denied, or before a broker has answered.
        """
        return (await self.fetch_configs(topic, "cleanup.policy")).get("cleanup.policy")

    async def fetch_delete_retention(self, topic: str) -> float | None:
        """Return `delete.retention.ms` in seconds; None if not compacted, or access is denied."""
        configs = await self.fetch_configs(topic, "cleanup.policy", "delete.retention.ms")
        retention_ms = configs.get("delete.retention.ms")
        if "compact" not in (configs.get("cleanup.policy") or "") or retention_ms is None:
            return None
        return int(retention_ms) / 1000

    async def fetch_configs(self, topic: str, *names: str) -> Mapping[str, str | None]:
        """Return settings of a topic: none where access is denied, or before a broker answered."""
        # Any broker can answer; before the first metadata answer none is known.
        node = self.metadata.last_responder
        if node is None:
            return {}
        request = DescribeConfigsRequest(topic, names)
        return (await self.connections.send(node, ConnectionRole.CONTROL, request)).values

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        isolation_level: int = offsets.READ_COMMITTED,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, offsets.OffsetAndTimestamp | int]:
        return await offsets.list_offsets(
            self.connections, self.leader_for_partition, specs, isolation_level, timeout=timeout
        )

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, offsets.EpochEnd | int]:
        return await offsets.fetch_epoch_ends(
            self.connections, self.leader_for_partition, epochs, timeout=timeout
        )

    async def fetch(
        self,
        node: int,
        role: ConnectionRole,
        targets: Mapping[TopicPartition, FetchTarget] | FetchSession,
        limits: FetchLimits,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch as `fetch` does, and note the new leaders that the answer names (KIP-951)."""
        connection = await self.connections.connect(node, role)
        response = await fetch(self.connections, connection, targets, limits, self.settings.rack)
        for tp, fetched in response.items():
            if fetched.current_leader is not None:
                self.metadata.update_leader(tp, *fetched.current_leader, fetched.topic_id)
        return response


async def fetch(
    connections: Connections,
    connection: BrokerConnection,
    targets: Mapping[TopicPartition, FetchTarget] | FetchSession,
    limits: FetchLimits,
    rack: str = "",
) -> dict[TopicPartition, FetchedPartition]:
    """Fetch from one broker.

    Args:
        targets: A `FetchSession` must belong to this connection's broker and role, and only one of
            its fetches may be under way.
        rack: Where this gateway is; the leader may name a nearer replica (KIP-392).

    Returns:
        The answer for each partition. Of a session, partitions without news are left out. If the
        broker refuses the whole request, each partition has its error code.
    """
    session = (
        targets if isinstance(targets, FetchSession) else FetchSession.create_sessionless(targets)
    )
    # If the broker has forgotten the session, the second attempt is a full fetch.
    for _ in range(2):
        uses_topic_ids = session.can_use_topic_ids
        changed, forgotten = session.take_changes()
        request = FetchRequest(
            changed,
            max_wait_ms=int(limits.max_wait * 1000),
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=limits.isolation_level,
            rack=rack,
            uses_topic_ids=uses_topic_ids,
            session_id=session.id,
            session_epoch=session.epoch,
            forgotten=forgotten,
            topic_names=session.topic_names,
        )
        # The broker may use the whole wait before it answers.
        timeout = connections.request_timeout + request.max_wait_ms / 1000
        try:
            response = await connections.send_on(connection, request, timeout=timeout)
        except BaseException:
            session.reset()  # also when cancelled: the broker may have counted this fetch
            raise
        if not response.error:
            session.on_response(response.session_id)
            return response.partitions
        session.reset()
        if response.error not in _SESSION_ERRORS:
            break
    return dict.fromkeys(session.targets, FetchedPartition(response.error))


def parse_address(server: str) -> tuple[str, int]:
    """Parse `host:port`, `[v6]:port`, or `host` or an IPv6 address alone (port 9092)."""
    host, colon, port = server.rpartition(":")
    # Without brackets, an address with several colons is IPv6 without a port.
    if not colon or (":" in host and not host.endswith("]")):
        host, port = server, "9092"
    return host.strip("[]"), int(port)


def require_reachable(cluster: Cluster) -> None:
    """Raise the cluster's error, so that no write is accepted that cannot be sent."""
    error = cluster.error
    if error is not None:
        # A new exception: the cluster's own would gather the tracebacks of all requests.
        error_type = AuthenticationFailed if isinstance(error, AuthenticationFailed) else None
        raise (error_type or BrokerUnavailable)(str(error), retry_after=error.retry_after or 1.0)


def get_known_topic(cluster: Cluster, name: str) -> TopicMetadata | None:
    topic = cluster.get_topic(name)
    return topic if topic is not None and topic.partitions and not topic.error else None


async def get_existing_topic(cluster: Cluster, name: str) -> TopicMetadata:
    topic = get_known_topic(cluster, name)
    if topic is None:
        require_reachable(cluster)
        topic = await watch_topic(cluster, name)
    return topic


async def watch_topic(cluster: Cluster, name: str) -> TopicMetadata:
    """Ask for the metadata of a topic, which must exist, and watch it from now on.

    Raises:
        UnknownTopic: The topic does not exist.
        AccessDenied: The brokers do not let the gateway see the topic.
        BrokerUnavailable: No broker answers, or the topic has no partitions yet.
    """
    topic = await cluster.describe_topic(name)
    cluster.metadata.watch(name, topic)
    if not topic.partitions:
        raise BrokerUnavailable(f"topic {name} has no partitions yet", retry_after=1.0)
    return topic
