"""Start the Kafka of measurements: real brokers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from support.brokers import FAST_FAILOVER_PROPERTIES, TEST_PROPERTIES, KafkaCluster
from support.local_kafka import RiggedKafka

# The first entry of a partition's index touches a page of a sparse file, which takes tens of ms on
# some disks: of a thousand partitions nobody would be answered for a minute. Without entries a
# fetch scans up to 1 MiB: 8 ms where each batch has one record.
UNINDEXED_PROPERTIES = {"log.index.interval.bytes": str(1 << 20)}


class Kafka(Protocol):
    """What most works need of a Kafka; their tests have librdkafka's mock, which needs no Java."""

    bootstrap: list[str]

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, with commas."""

    def create_unique_topic(self, partitions: int = 1) -> str: ...


@contextmanager
def running_kafka(node_count: int = 1, *, has_index: bool = False) -> Iterator[KafkaCluster]:
    """One broker, or three with fast failover, for the length of the block. has_index: as Kafka
    does by itself, for few partitions with many small batches."""
    properties = TEST_PROPERTIES | ({} if has_index else UNINDEXED_PROPERTIES)
    properties |= FAST_FAILOVER_PROPERTIES if node_count > 1 else {}
    with RiggedKafka(node_count, properties=properties) as local:
        yield KafkaCluster(local.bootstrap, local)
