"""What a topic keeps, asked of a real broker."""

from __future__ import annotations

from support.brokers import Broker

from gateway.kafka.client.cluster import Cluster, ClusterSettings


async def test_a_compacted_topic_tells_how_long_it_keeps_tombstones(kafka: Broker) -> None:
    topic = kafka.topic(configs={"cleanup.policy": "compact", "delete.retention.ms": "2500"})
    plain = kafka.topic()
    async with Cluster(ClusterSettings(servers=kafka.bootstrap)) as cluster:
        await cluster.describe(topic)
        assert await cluster.deletes_after(topic) == 2.5
        assert await cluster.deletes_after(plain) is None
