"""What every part is made with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from gateway.config import Settings
from gateway.config.sections.sidecar import Sidecar as Section
from gateway.config.source.expression import suggest
from gateway.core.log.record import TopicPartition
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError, UnknownTopic
from gateway.formats.codec import Codecs
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.producer import Producer
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.http.authorization import Authorizer
from gateway.sidecar.http.spec import Spec

from .component import NotReady


class Auditor(Protocol):
    """What was written and read, told to auditors. Returns at once, whatever becomes of it.

    error: None for what went well.
    """

    def record_produced(
        self, topic: str, partition: int, offset: int, key: bytes | None = None, *,
        correlation: str = "", traceability: str = "", error: str | None = None,
    ) -> None: ...  # fmt: skip

    def record_consumed(
        self, topic: str, partition: int, offset: int, key: bytes | None = None, *,
        reactive: bool = False, correlation: str = "", traceability: str = "",
        error: str | None = None,
    ) -> None: ...  # fmt: skip


class DocumentLocks(Protocol):
    """Keys that a writer has for itself for a while, since clients of the same gateway compare
    before they write them."""

    def is_compared(self, topic: str) -> bool:
        """Return whether a write to the topic may depend on what is there."""

    async def lock_keys(self, topic: str, keys: Iterable[bytes]) -> Callable[[], None]:
        """Wait until nobody else writes these keys; call what is returned once it is done."""


class NullAuditor:
    """Where no audit is configured."""

    def record_produced(self, *args: Any, **kwargs: Any) -> None:
        return None

    def record_consumed(self, *args: Any, **kwargs: Any) -> None:
        return None


def audit_gap(
    auditor: Auditor, tp: TopicPartition, missing: int, found: int, *, reactive: bool = False
) -> None:
    """Tell auditors that Kafka does not have an offset any more, and where its group goes on."""
    what = f"Kafka does not have this offset any more; the group goes on at {found}"
    auditor.record_consumed(tp.topic, tp.partition, missing, reactive=reactive, error=what)


@dataclass(eq=False)
class Context:
    """See the module.

    settings: `.sidecar` is the section, as `section` is.
    cluster:  shared connections.
    codecs:   of the catalog.
    scope:    who may; see there.
    spec:     what is served, and the validators of requests.
    audit:    nothing, until its part takes the place.
    producer: idempotent, acks of all; there while the application runs.
    draining: set when the sidecar is about to end: long requests end theirs.
    parts:    all of them, by the name of their section; for health.
    documents: of the gateway that it stands beside, once that runs; None where there is none.
    """

    settings: Settings
    cluster: Cluster
    codecs: Codecs
    authorize: Authorizer
    spec: Spec
    auditor: Auditor = field(default_factory=NullAuditor)
    producer: Producer = field(init=False)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    components: dict[str, Any] = field(default_factory=dict)
    documents: Callable[[], DocumentLocks] | None = None

    @property
    def section(self) -> Section:
        assert self.settings.sidecar is not None
        return self.settings.sidecar

    async def lock_keys(self, topic: str, keys: Iterable[bytes | None]) -> Callable[[], None]:
        """Wait for the turn to write these keys, where clients compare; call what is returned once
        Kafka has the records."""
        documents = None if self.documents is None else self.documents()
        if documents is None or not documents.is_compared(topic):
            return _release_nothing
        return await documents.lock_keys(topic, [key for key in keys if key is not None])

    def require_kafka(self) -> None:
        """Raises BrokerUnavailable or AuthenticationFailed while Kafka is away: what cannot be
        sent is not taken on."""
        error = self.cluster.error
        if error is not None:
            kind = AuthenticationFailed if isinstance(error, AuthenticationFailed) else None
            raise (kind or BrokerUnavailable)(str(error), retry_after=error.retry_after or 1.0)

    async def get_topic(self, name: str) -> TopicMetadata:
        """A topic that exists; it is watched from now on. Raises UnknownTopic with the nearest
        name, AccessDenied, BrokerUnavailable, AuthenticationFailed."""
        known = self.cluster.get_topic(name)
        if known is not None and known.partitions and not known.error:
            return known
        self.require_kafka()
        try:
            known = await self.cluster.describe_topic(name)
        except UnknownTopic as exc:
            raise UnknownTopic(await self._describe_unknown_topic(name), topic=name) from exc
        self.cluster.metadata.watch(name, known)
        if not known.partitions:
            raise BrokerUnavailable(f"topic {name} has no partitions yet", retry_after=1.0)
        return known

    def is_current(self, name: str, topic_id: UUID | None) -> bool:
        """Return whether a watched topic is there, and still the one that had this id."""
        known = self.cluster.get_topic(name)
        return known is not None and not known.error and known.topic_id == topic_id

    async def _describe_unknown_topic(self, name: str) -> str:
        try:
            names = await self.cluster.list_topics()
        except KafkaError:
            names = frozenset()
        near = suggest(name, [each for each in names if not each.startswith("__")], "create it")
        hint = near if near.startswith("did you") else "create it, or correct its name"
        return f"no broker knows the topic {name}; {hint}"

    async def check_ready(self) -> None:
        """Raises Unready while no broker is reached."""
        if not self.cluster.is_reachable:
            raise NotReady("kafka", f"{self.cluster.error or 'still connecting'}")


def _release_nothing() -> None:
    """Nobody was kept waiting."""
