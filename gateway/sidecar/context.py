"""Hold what all components share: settings, connections to Kafka, services; and define them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol
from uuid import UUID

from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from gateway.client_memory import ClientMemory
from gateway.config import Settings
from gateway.config.sections.component_checks import MAX_TOPIC_NAME_CHARS
from gateway.config.sections.sidecar import Membership
from gateway.config.sections.sidecar import Producer as ProducerSection
from gateway.config.sections.sidecar import Sidecar as Section
from gateway.config.types.substitution import suggest
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError, UnknownTopic
from gateway.formats.codec import Codecs
from gateway.kafka.client.cluster import Cluster, get_existing_topic, require_reachable
from gateway.kafka.group.consumer import ConsumerOptions
from gateway.kafka.produce.producer import Producer
from gateway.kafka.produce.transactional_producer import TransactionalProducer
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.http.middleware import Authorizer
from gateway.sidecar.http.spec import Spec
from gateway.sidecar.http.status import NotReady
from gateway.telemetry.samples import MetricSamples

AuditType = Literal["PRODUCER", "ACTIVE_CONSUMER", "REACTIVE_CONSUMER"]


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """The outcome of one record that was written or read, for auditors.

    Missing ids are empty, and a missing offset is -1. `time` is in seconds since 1970, `error` is
    the reason of a failure.
    """

    type: AuditType
    tp: TopicPartition
    offset: int
    key: bytes | None = None
    correlation: str = ""
    traceability: str = ""
    error: str | None = None
    time: float = field(default_factory=time.time)


class Auditor(Protocol):
    def record(self, event: AuditEvent) -> None:
        """Note an event. It returns at once, whatever becomes of the audit record."""


class DocumentLocks(Protocol):
    """Reserve keys for one writer at a time. The gateway implements and owns this.

    Clients of the gateway's documents compare a value before they replace it. A sidecar beside that
    gateway writes the same topics, so it takes the same locks.
    """

    def is_compared(self, topic: str) -> bool:
        """Return whether a write to the topic may depend on its present records."""

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys, and return the function that releases them."""


def require_topic_name(name: str) -> None:
    """Raise UnknownTopic for a name that Kafka cannot have, before anything is asked about it."""
    if len(name) > MAX_TOPIC_NAME_CHARS:
        raise UnknownTopic(f"{name[:40]}.. is no topic; correct its name", topic=name[:40])


def audit_gap(
    auditor: Auditor | None, type: AuditType, tp: TopicPartition, missing: int, next_offset: int
) -> None:
    """Record that Kafka lost the offset `missing` of a group, which continues at `next_offset`."""
    if auditor is not None:
        error = f"Kafka does not have this offset any more; the group goes on at {next_offset}"
        auditor.record(AuditEvent(type, tp, missing, error=error))


@dataclass(eq=False)
class Context:
    """Share settings, connections and services among the components of one sidecar.

    `SidecarApplication` creates it and replaces `draining` and the producers whenever it runs.

    Attributes:
        auditor: None unless the audit component puts itself here.
        producer: Idempotent, waits for all replicas; exists while the application runs.
        gzip_producer: Likewise, for records that are too large without compression.
        draining: Set when the sidecar is about to end, for long requests to end theirs.
        components: All components by the name of their section, for health and admin.
        documents: Gets the locks of the gateway beside which the sidecar stands; None when alone.
    """

    settings: Settings
    cluster: Cluster
    codecs: Codecs
    authorize: Authorizer
    spec: Spec
    auditor: Auditor | None = None
    producer: Producer = field(init=False)
    gzip_producer: Producer = field(init=False)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    components: dict[str, Any] = field(default_factory=dict)
    documents: Callable[[], DocumentLocks] | None = None
    client_memory: ClientMemory = field(default_factory=ClientMemory)

    @property
    def section(self) -> Section:
        assert self.settings.sidecar is not None
        return self.settings.sidecar

    async def lock_keys(self, topic: str, keys: Iterable[bytes | None]) -> Callable[[], None]:
        """Wait for the turn to write these keys; call the result once Kafka has the records."""
        documents = None if self.documents is None else self.documents()
        if documents is None or not documents.is_compared(topic):
            return lambda: None
        return await documents.lock_keys(topic, [key for key in keys if key is not None])

    def create_transactions(self, id: str) -> TransactionalProducer:
        """Return the producer of a transactional id, with the timeout of the section `producer`."""
        producer = self.section.producer or ProducerSection()
        return TransactionalProducer(self.cluster, id, timeout=producer.transaction_timeout)

    def require_kafka(self) -> None:
        """Raise BrokerUnavailable or AuthenticationFailed if Kafka cannot be reached."""
        require_reachable(self.cluster)

    async def get_topic(self, name: str) -> TopicMetadata:
        """Return the metadata of a topic, and watch the topic from now on.

        Raises:
            UnknownTopic: It does not exist; the message has the nearest name.
            AccessDenied: Kafka does not let the gateway describe it.
            BrokerUnavailable: Kafka is away, or the topic has no partitions yet.
            AuthenticationFailed: Kafka refuses the gateway's credentials.
        """
        require_topic_name(name)
        try:
            return await get_existing_topic(self.cluster, name)
        except UnknownTopic as exc:
            raise UnknownTopic(await self._describe_unknown_topic(name), topic=name) from exc

    def is_current(self, name: str, topic_id: UUID | None) -> bool:
        """Return whether a watched topic exists and is still the one that had this id."""
        topic = self.cluster.get_topic(name)
        return topic is not None and not topic.error and topic.topic_id == topic_id

    async def _describe_unknown_topic(self, name: str) -> str:
        try:
            names = await self.cluster.list_topics()
        except KafkaError:
            names = frozenset()  # no suggestion then: the answer is that the topic is unknown
        suggestion = suggest(
            name, [topic for topic in names if not topic.startswith("__")], "create it"
        )
        hint = suggestion if suggestion.startswith("did you") else "create it, or correct its name"
        return f"no broker knows the topic {name}; {hint}"

    async def check_ready(self) -> None:
        if not self.cluster.is_reachable:
            raise NotReady("kafka", f"{self.cluster.error or 'still connecting'}")


class Component:
    """Serve one section of the sidecar's configuration, or a part of it.

    The application creates it with its `Context`, before there is an event loop, and owns it. Its
    routes have the paths of the contract. An endpoint raises its errors, and `http.status` turns
    them into a Status.
    """

    routes: Sequence[BaseRoute] = ()
    middleware: Sequence[Middleware] = ()

    async def run(self) -> None:
        """Run beside the application until cancelled, or return at once if nothing is to run.

        The context's producer exists by now. A component closes what it started before it returns.
        """

    async def check_ready(self) -> None:
        """Raise NotReady if it cannot serve now. Kafka is checked for all components together."""

    def collect_metrics(self, samples: MetricSamples) -> None: ...


def build_consumer_options(settings: Membership, **changes: Any) -> ConsumerOptions:
    """Build the options from settings; `changes` override or add fields."""
    options = ConsumerOptions(
        protocol=settings.group_protocol,
        session_timeout=settings.session_timeout,
        heartbeat_interval=settings.heartbeat_interval,
        auto_offset_reset=settings.auto_offset_reset,
        isolation=settings.isolation,
        max_partition_bytes=settings.max_partition_fetch_bytes,
        max_fetch_bytes=settings.fetch_max_bytes,
    )
    return replace(options, **changes)
