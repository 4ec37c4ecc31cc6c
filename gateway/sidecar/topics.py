"""Topics and partitions that a client names: are they there? A name that is unknown is answered
with the nearest one."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.log.record import TopicPartition
from gateway.errors import UnknownTopic
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.status import StatusError

from .context import Context

MAX_TOPIC_NAME_CHARS = 249  # characters of a topic's name, by Kafka


async def describe_topic(context: Context, name: str) -> TopicMetadata:
    """As `Context.topic`, of a topic that need not be watched. Raises as that."""
    if len(name) > MAX_TOPIC_NAME_CHARS:
        raise UnknownTopic(f"{name[:40]}.. is no topic; correct its name", topic=name[:40])
    known = context.cluster.get_topic(name)
    if known is not None and known.partitions and not known.error:
        return known
    context.require_kafka()
    try:
        return await context.cluster.describe_topic(name)
    except UnknownTopic:
        return await context.get_topic(name)


async def describe_partition(context: Context, tp: TopicPartition) -> PartitionMetadata:
    """Raises as `described`, and Refusal 404."""
    partitions = (await describe_topic(context, tp.topic)).partitions
    found = partitions.get(tp.partition)
    if found is None:
        what = f"topic {tp.topic} has no partition {tp.partition}; it has {len(partitions)}, from 0"
        raise StatusError(404, what, code="UNKNOWN_PARTITION")
    return found


async def check_partitions(context: Context, tps: Iterable[TopicPartition]) -> None:
    """Raises as `partition_of`."""
    for tp in tps:
        await describe_partition(context, tp)
