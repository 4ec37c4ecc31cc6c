"""Kafka for tests: which one, and what tests do to it from outside.

The choice, in order: bootstrap servers in GATEWAY_TEST_KAFKA, a Docker engine that answers, a
local real broker. All are plain processes, so the fixtures are sync and serve every event loop.
A test that needs what the choice lacks (killing nodes) is skipped, with CI=true it fails.

With `--tier` one broker serves all workers: the process that starts them chooses, and tells them by
a variable of its own. Without workers one is started only for a test that asks for it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import pytest
from support.admin import KafkaAdmin
from support.local_kafka import RiggedKafka
from support.oracle import StreamOracle
from support.requirements import skip_or_fail

from gateway.errors import LocalBrokerError
from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.local.java import find_java
from gateway.kafka.local.node import SINGLE_NODE_PROPERTIES, KafkaNode

# Asking for an unknown topic must not create it: that is what tests ask about.
# A killed leader is replaced after 2-5 s; Kafka's defaults take 11 s.
FAST_FAILOVER_PROPERTIES = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
}

# With retention.ms=1000 and segment.ms=500 on a topic, its log start offset moves after 1.6 s. By
# default Kafka checks every 5 min, for the first time after 30 s.
FAST_RETENTION_PROPERTIES = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "0",
}
TEST_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "1000",
    # Members of a group by KIP-848 have the broker's timeouts; its own are 45 s and 5 s.
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
# KIP-392: who says its rack is sent to the replica there; nobody else is.
NEAREST_REPLICA_PROPERTIES = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
}


@dataclass
class KafkaCluster:
    """A cluster to test with. `local` is there if its nodes are ours to kill."""

    bootstrap: list[str]
    local_kafka: RiggedKafka | None = None
    has_fast_retention: bool = False
    topics: list[str] = field(default_factory=list)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.bootstrap)

    @cached_property
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.bootstrap)

    def create_unique_topic(
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

    def create_topic(self, name: str, *args: Any, **kwargs: Any) -> None:
        """One with this name, that goes with the test; how, more: as of `Admin.create_topic`."""
        self.admin.create_topic(name, *args, **kwargs)
        self.topics.append(name)

    def restore(self) -> None:
        """Undo kills and freezes: every node up, every partition led and in sync again."""
        if self.local_kafka is None:
            skip_or_fail("the nodes of this Kafka cannot be killed or healed")
        self.local_kafka.restore()
        self.admin.wait_in_sync()

    def delete_topics(self) -> None:
        while self.topics:
            self.admin.delete_topic(self.topics.pop())


KAFKA_VARIABLE = "GATEWAY_TEST_KAFKA"  # set by whoever has a Kafka for the tests
SHARED_KAFKA_VARIABLE = "GATEWAY_TEST_SHARED_KAFKA"  # set for the workers

_shared_kafka = ExitStack()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the broker that all workers share, unless there is no Java for it."""
    config = session.config
    is_worker = hasattr(config, "workerinput")
    has_workers = config.getoption("tier") and config.getoption("numprocesses", 0)
    if is_worker or not has_workers or os.environ.get(KAFKA_VARIABLE):
        return
    try:
        cluster = _shared_kafka.enter_context(_running_cluster())
    except LocalBrokerError:
        return  # a test that needs it says so
    os.environ[SHARED_KAFKA_VARIABLE] = cluster.bootstrap_servers
    _shared_kafka.callback(os.environ.pop, SHARED_KAFKA_VARIABLE)


def pytest_unconfigure() -> None:
    _shared_kafka.close()


@cache
def has_kafka() -> bool:
    """Whether there is one, or what one needs."""
    if os.environ.get(KAFKA_VARIABLE) or os.environ.get(SHARED_KAFKA_VARIABLE):
        return True
    try:
        return bool(find_java())
    except LocalBrokerError:
        return is_docker_available()


@pytest.fixture(scope="session")
def session_kafka() -> Iterator[KafkaCluster]:
    if servers := os.environ.get(KAFKA_VARIABLE):
        yield KafkaCluster(servers.split(","))
    elif servers := os.environ.get(SHARED_KAFKA_VARIABLE):
        yield KafkaCluster(servers.split(","), has_fast_retention=True)
    else:
        with ExitStack() as stack:
            try:
                cluster = stack.enter_context(_running_cluster())
            except LocalBrokerError as error:
                skip_or_fail(str(error))
            yield cluster


@pytest.fixture
def kafka(session_kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    """One broker, shared by the session; the test's topics go with the test."""
    yield session_kafka
    session_kafka.delete_topics()


@pytest.fixture
def topic(kafka: KafkaCluster) -> Callable[..., str]:
    """Creates topics: `topic(partitions=12, configs={...})` gives a name of its own."""
    return kafka.create_unique_topic


@pytest.fixture
def retention_kafka(kafka: KafkaCluster) -> KafkaCluster:
    """The same broker, if retention and compaction act within two seconds there."""
    if not kafka.has_fast_retention:
        skip_or_fail("this Kafka takes minutes to delete and compact")
    return kafka


@pytest.fixture(scope="session")
def session_kafka3() -> Iterator[KafkaCluster]:
    if os.environ.get(KAFKA_VARIABLE):
        skip_or_fail(f"{KAFKA_VARIABLE} names a Kafka whose nodes are not ours to kill")
    kafka = RackedKafka(
        3, properties=TEST_PROPERTIES | NEAREST_REPLICA_PROPERTIES | FAST_FAILOVER_PROPERTIES
    )
    with running_kafka(kafka):
        yield KafkaCluster(kafka.bootstrap, kafka)


@pytest.fixture
def kafka3(session_kafka3: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers in racks of their own, with fast failover; what the test killed or froze is
    healed after it."""
    assert session_kafka3.local_kafka is not None
    nodes = session_kafka3.local_kafka.nodes
    before = [node.pid for node in nodes]
    yield session_kafka3
    if [node.pid for node in nodes] != before or any(node.is_frozen for node in nodes):
        session_kafka3.restore()
    session_kafka3.delete_topics()


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    """An in-process mock cluster of one broker, with no topics yet."""
    with EmbeddedKafka() as kafka:
        yield kafka


def embedded_kafka(
    topics: Mapping[str, int] | None = None, *, scope: Any = "module", **options: Any
) -> Any:
    """A fixture, to be named `kafka` by a module that needs no real one: the same mock cluster.

    topics: name -> number of partitions. scope: "module" or "function". options: of EmbeddedKafka.
    """

    @pytest.fixture(scope=scope)
    def kafka() -> Iterator[EmbeddedKafka]:
        with EmbeddedKafka(topics, **options) as kafka:
            yield kafka

    return kafka


@pytest.fixture
async def oracle(kafka: KafkaCluster | EmbeddedKafka) -> AsyncIterator[StreamOracle]:
    """Writes to the `kafka` of the module, and judges what came of it."""
    async with StreamOracle(",".join(kafka.bootstrap)) as oracle:
        yield oracle


def is_docker_available() -> bool:
    try:
        import docker

        return bool(docker.from_env(timeout=2).ping())
    except Exception:  # not installed, no socket, no permission: all mean no
        return False


@contextmanager
def _running_cluster() -> Iterator[KafkaCluster]:
    """A container, or else a local broker; LocalBrokerError if that cannot start."""
    if is_docker_available():
        with _create_container() as container:
            yield KafkaCluster([container.get_bootstrap_server()], has_fast_retention=True)
    else:
        with RiggedKafka(properties=TEST_PROPERTIES | FAST_RETENTION_PROPERTIES) as kafka:
            yield KafkaCluster(kafka.bootstrap, kafka, has_fast_retention=True)


def _create_container() -> Any:
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer().with_kraft()
    for name, value in (
        SINGLE_NODE_PROPERTIES | TEST_PROPERTIES | FAST_RETENTION_PROPERTIES
    ).items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    return container


class RackedKafka(RiggedKafka):
    """Node N is in rack-N."""

    def _build_node_properties(self, node: KafkaNode) -> dict[str, str]:
        return {**super()._build_node_properties(node), "broker.rack": f"rack-{node.id}"}


@contextmanager
def running_kafka(kafka: RiggedKafka) -> Iterator[RiggedKafka]:
    """Ended with the block; what it lacks where it cannot start is the reason for a skip."""
    try:
        kafka.start()
    except LocalBrokerError as error:
        skip_or_fail(str(error))
    try:
        yield kafka
    finally:
        kafka.close()
