"""Kafka for tests: which one, and what tests do to it from outside.

The choice, in order: bootstrap servers in GATEWAY_TEST_KAFKA, a Docker engine that answers, a
local real broker. All are plain processes, so the fixtures are sync and serve every event loop.
A test that needs what the choice lacks (killing nodes) is skipped, with CI=true it fails.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
from support.admin import Admin
from support.needs import absent
from support.oracle import Oracle

from gateway.errors import LocalBrokerError
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.local import LocalKafka
from gateway.kafka.local.node import Node
from gateway.kafka.local.properties import FAST_RETENTION, SINGLE

# Asking for an unknown topic must not create it: that is what tests ask about.
PROPERTIES = {
    "auto.create.topics.enable": "false",
    # Members of a group by KIP-848 have the broker's timeouts; its own are 45 s and 5 s.
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
# KIP-392: who says its rack is sent to the replica there; nobody else is.
NEAREST = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@dataclass
class Broker:
    """A cluster to test with. `local` is there if its nodes are ours to kill."""

    bootstrap: list[str]
    local: LocalKafka | None = None
    fast_retention: bool = False
    _topics: list[str] = field(default_factory=list)

    @property
    def servers(self) -> str:
        return ",".join(self.bootstrap)

    @cached_property
    def admin(self) -> Admin:
        return Admin(self.bootstrap)

    def topic(
        self,
        partitions: int = 1,
        *,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> str:
        """Create a topic with a name of its own; ready to be written when this returns."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.create_topic(name, partitions, replication, configs, assignment)
        return name

    def create_topic(self, name: str, *how: Any, **more: Any) -> None:
        """One with this name, that goes with the test; how, more: as of `Admin.create_topic`."""
        self.admin.create_topic(name, *how, **more)
        self._topics.append(name)

    def heal(self) -> None:
        """Undo kills and freezes: every node up, every partition led and in sync again."""
        if self.local is None:
            absent("the nodes of this Kafka cannot be killed or healed")
        self.local.heal()
        self.admin.wait_in_sync()

    def forget_topics(self) -> None:
        while self._topics:
            self.admin.delete_topic(self._topics.pop())


@pytest.fixture(scope="session")
def session_kafka() -> Iterator[Broker]:
    if servers := os.environ.get("GATEWAY_TEST_KAFKA"):
        yield Broker(servers.split(","))
    elif docker_answers():
        yield from _container()
    else:
        yield from _local()


@pytest.fixture
def kafka(session_kafka: Broker) -> Iterator[Broker]:
    """One broker, shared by the session; the test's topics go with the test."""
    yield session_kafka
    session_kafka.forget_topics()


@pytest.fixture
def topic(kafka: Broker) -> Callable[..., str]:
    """Creates topics: `topic(partitions=12, configs={...})` gives a name of its own."""
    return kafka.topic


@pytest.fixture
def retention_kafka(kafka: Broker) -> Broker:
    """The same broker, if retention and compaction act within two seconds there."""
    if not kafka.fast_retention:
        absent("this Kafka takes minutes to delete and compact")
    return kafka


@pytest.fixture(scope="session")
def session_kafka3() -> Iterator[Broker]:
    if os.environ.get("GATEWAY_TEST_KAFKA"):
        absent("GATEWAY_TEST_KAFKA names a Kafka whose nodes are not ours to kill")
    kafka = Racks(3, properties=PROPERTIES | NEAREST, fast_failover=True)
    with started(kafka):
        yield Broker(kafka.bootstrap, kafka)


@pytest.fixture
def kafka3(session_kafka3: Broker) -> Iterator[Broker]:
    """Three brokers in racks of their own, with fast failover; what the test killed or froze is
    healed after it."""
    assert session_kafka3.local is not None
    nodes = session_kafka3.local.nodes
    before = [node.pid for node in nodes]
    yield session_kafka3
    if [node.pid for node in nodes] != before or any(node.frozen for node in nodes):
        session_kafka3.heal()
    session_kafka3.forget_topics()


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    """An in-process mock cluster of one broker, with no topics yet."""
    with EmbeddedKafka() as kafka:
        yield kafka


def embedded_kafka(topics: Mapping[str, int] | None = None, *, scope: Any = "module") -> Any:
    """A fixture, to be named `kafka` by a module that needs no real one: the same mock cluster.

    topics: name -> number of partitions. scope: "module" or "function".
    """

    @pytest.fixture(scope=scope)
    def kafka() -> Iterator[EmbeddedKafka]:
        with EmbeddedKafka(topics) as kafka:
            yield kafka

    return kafka


@pytest.fixture
async def oracle(kafka: Broker | EmbeddedKafka) -> AsyncIterator[Oracle]:
    """Writes to the `kafka` of the module, and judges what came of it."""
    async with Oracle(",".join(kafka.bootstrap)) as oracle:
        yield oracle


def docker_answers() -> bool:
    try:
        import docker

        return bool(docker.from_env(timeout=2).ping())
    except Exception:  # not installed, no socket, no permission: all mean no
        return False


def _container() -> Iterator[Broker]:
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer().with_kraft()
    for name, value in (SINGLE | PROPERTIES | FAST_RETENTION).items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    with container:
        yield Broker([container.get_bootstrap_server()], fast_retention=True)


def _local() -> Iterator[Broker]:
    with started(LocalKafka(properties=PROPERTIES, fast_retention=True)) as kafka:
        yield Broker(kafka.bootstrap, kafka, fast_retention=True)


class Racks(LocalKafka):
    """Node N is in rack-N."""

    def _properties_of(self, node: Node) -> dict[str, str]:
        return {**super()._properties_of(node), "broker.rack": f"rack-{node.id}"}


@contextmanager
def started(kafka: LocalKafka) -> Iterator[LocalKafka]:
    """Ended with the block; what it lacks where it cannot start is the reason for a skip."""
    try:
        kafka.start()
    except LocalBrokerError as error:
        absent(str(error))
    try:
        yield kafka
    finally:
        kafka.close()
