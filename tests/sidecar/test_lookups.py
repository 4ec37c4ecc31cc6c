from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.lookups import check_partitions, describe_topics


async def test_a_topic_is_described_once_however_often_it_is_named():
    """A subscription that named a topic 50,000 times asked Kafka as often, for a minute."""
    described: list[str] = []

    class Cluster:
        def get_topic(self, name: str) -> None:
            return None

        async def describe_topic(self, name: str) -> TopicMetadata:
            described.append(name)
            return TopicMetadata(name, None, 0, {0: PartitionMetadata(1, 0, (), (), 0)})

    context: Any = SimpleNamespace(cluster=Cluster(), require_kafka=lambda: None)
    assert [*await describe_topics(context, ["a", "b", "a"])] == ["a", "b"]
    assert described == ["a", "b"]
    with pytest.raises(StatusError, match="topic a has no partition 1"):
        await check_partitions(context, [TopicPartition("a", 0), TopicPartition("a", 1)])
    assert described == ["a", "b", "a"]
