"""Write the records of a demo with the producer that also writes clients' records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.existing_topics import get_existing_topic
from gateway.kafka.produce.partitioner import compute_partition
from gateway.kafka.produce.producer import Producer

SEND_TIMEOUT_S = 30.0  # seconds until a record that could not be sent is dropped


class RecordSender:
    """Write records to topics by name. `open_sender` creates it and closes what it uses."""

    def __init__(self, cluster: Cluster, producer: Producer) -> None:
        self._cluster = cluster
        self._producer = producer

    async def send(self, topic: str, key: bytes | None, value: bytes) -> asyncio.Future[int]:
        """Hand a record over, without waiting until it is written.

        Args:
            topic: The name of the topic.
            key: The key, which decides the partition; None for none, and the first partition.
            value: The value.

        Returns:
            A future of the record's offset, which need not be awaited.

        Raises:
            KafkaError: The topic does not exist, or nothing can be accepted now.
        """
        count = len((await get_existing_topic(self._cluster, topic)).partitions)
        partition = 0 if key is None else compute_partition(key, count)
        return self._producer.send(
            TopicPartition(topic, partition), key, value, timeout_s=SEND_TIMEOUT_S
        )


@asynccontextmanager
async def open_sender(servers: Sequence[str]) -> AsyncIterator[RecordSender]:
    """Connect to Kafka; at the end of the block, what was handed over is written.

    Args:
        servers: The bootstrap servers.
    """
    async with Cluster(ClusterSettings(servers, client_id="gateway-demo")) as cluster:
        producer = Producer(cluster)
        try:
            yield RecordSender(cluster, producer)
        finally:
            await producer.close()
