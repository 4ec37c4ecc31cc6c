from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.log.record import TopicPartition
from gateway.errors import UnknownTopic
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.lookups import check_partitions, describe_topic, describe_topics


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


async def test_nobody_is_asked_about_a_name_that_no_topic_can_have():
    """Brokers closed the connection of all requests because of a topic of 33,000 bytes."""
    unused: Any = None
    context = Context(unused, unused, unused, unused, unused)
    for find in (context.get_topic, partial(describe_topic, context)):
        with pytest.raises(UnknownTopic, match="is no topic; correct its name"):
            await find("x" * 250)
