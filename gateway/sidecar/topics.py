"""Look up topics and partitions that a client names.

An unknown name is answered with the nearest one that exists.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.log.record import TopicPartition
from gateway.errors import UnknownTopic
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.status import StatusError

from .context import Context

MAX_TOPIC_NAME_CHARS = 249  # Kafka's own limit (Topic.MAX_NAME_LENGTH)


async def describe_topic(context: Context, name: str) -> TopicMetadata:
    """Return the metadata of a topic without watching it.

    Raises:
        UnknownTopic: It does not exist; the message has the nearest name.
        AccessDenied: Kafka does not let the gateway describe it.
        BrokerUnavailable: Kafka is away.
        AuthenticationFailed: Kafka refuses the gateway's credentials.
    """
    if len(name) > MAX_TOPIC_NAME_CHARS:
        raise UnknownTopic(f"{name[:40]}.. is no topic; correct its name", topic=name[:40])
    topic = context.cluster.get_topic(name)
    if topic is not None and topic.partitions and not topic.error:
        return topic
    context.require_kafka()
    try:
        return await context.cluster.describe_topic(name)
    except UnknownTopic:  # asks once more, and finds the nearest name for the message
        return await context.get_topic(name)


async def describe_partition(context: Context, tp: TopicPartition) -> PartitionMetadata:
    """Return the metadata of a partition.

    Raises:
        StatusError: 404, the topic has no such partition.
        UnknownTopic: There is no such topic. Other errors are those of `describe_topic`.
    """
    partitions = (await describe_topic(context, tp.topic)).partitions
    partition = partitions.get(tp.partition)
    if partition is None:
        problem = (
            f"topic {tp.topic} has no partition {tp.partition}; it has {len(partitions)}, from 0"
        )
        raise StatusError(404, problem, code="UNKNOWN_PARTITION")
    return partition


async def check_partitions(context: Context, tps: Iterable[TopicPartition]) -> None:
    """Check that all partitions exist, and raise as `describe_partition` does."""
    for tp in tps:
        await describe_partition(context, tp)
