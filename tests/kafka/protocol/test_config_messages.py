"""What a topic keeps, asked of a real broker."""

from __future__ import annotations

from support.brokers import KafkaCluster

from gateway.kafka.client.cluster import Cluster, ClusterSettings


async def test_a_compacted_topic_tells_how_long_it_keeps_tombstones(kafka: KafkaCluster) -> None:
    topic = kafka.create_unique_topic(
        configs={"cleanup.policy": "compact", "delete.retention.ms": "2500"}
    )
    plain = kafka.create_unique_topic()
    async with Cluster(ClusterSettings(servers=kafka.bootstrap)) as cluster:
        await cluster.describe_topic(topic)
        assert await cluster.fetch_delete_retention(topic) == 2.5
        assert await cluster.fetch_delete_retention(plain) is None
