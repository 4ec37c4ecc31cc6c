"""Topics that the gateway makes, on a real broker."""

from __future__ import annotations

import uuid

import pytest
from support.brokers import KafkaCluster

from gateway.core.error_code import ErrorCode
from gateway.errors import KafkaError
from gateway.kafka.admin import create_topic
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.protocol.requests import FieldWriter
from gateway.kafka.protocol.topic_messages import CreateTopicsRequest, CreateTopicsResponse


@pytest.mark.smoke
async def test_a_topic_is_made_once_with_its_partitions_and_configs(kafka: KafkaCluster) -> None:
    name = f"made-{uuid.uuid4().hex[:8]}"
    async with Cluster(ClusterSettings(servers=kafka.bootstrap)) as cluster:
        await cluster.metadata.refresh("to begin")
        configs = {"cleanup.policy": "compact"}
        try:
            assert await create_topic(cluster, name, partitions=3, configs=configs)
            assert not await create_topic(cluster, name), "it exists"
            assert len((await cluster.describe_topic(name)).partitions) == 3
            assert await cluster.fetch_cleanup_policy(name) == "compact"
        finally:
            kafka.admin.delete_topic(name)


async def test_what_the_broker_has_against_a_topic_is_told(kafka: KafkaCluster) -> None:
    async with Cluster(ClusterSettings(servers=kafka.bootstrap)) as cluster:
        await cluster.metadata.refresh("to begin")
        with pytest.raises(KafkaError, match=r"not created: .*replication"):
            await create_topic(cluster, "too-many", replicas=7)


@pytest.mark.parametrize("version", range(2, 8))
def test_the_answer_of_each_version_is_read(version: int) -> None:
    out = FieldWriter(version >= 5)
    out.i32(0)
    out.array(1)
    out.string("orders")
    if version >= 7:
        out.uuid(uuid.uuid4())
    out.i16(36)
    out.string("there already")
    if version >= 5:
        out.i32(3)
        out.i16(1)
        out.array(1)
        out.string("cleanup.policy")
        out.string("delete")
        for _ in range(3):
            out.i8(0)
        out.tags()
        out.tags()
    out.tags()
    request = CreateTopicsRequest("orders")
    assert request.decode(version, bytes(out.data), 0) == CreateTopicsResponse(
        ErrorCode.TOPIC_ALREADY_EXISTS, "there already"
    )
