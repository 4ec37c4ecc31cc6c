"""Topics and partitions that a client names: are they there? A name that is unknown is answered
with the nearest one."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.log.record import TopicPartition
from gateway.errors import UnknownTopic
from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer
from gateway.sidecar.http.status import Refusal

from .context import Context

LONGEST = 249  # characters of a topic's name, by Kafka


async def described(context: Context, name: str) -> TopicAnswer:
    """As `Context.topic`, of a topic that need not be watched. Raises as that."""
    if len(name) > LONGEST:
        raise UnknownTopic(f"{name[:40]}.. is no topic; correct its name", topic=name[:40])
    known = context.cluster.topic(name)
    if known is not None and known.partitions and not known.error:
        return known
    context.reachable()
    try:
        return await context.cluster.describe(name)
    except UnknownTopic:
        return await context.topic(name)


async def partition_of(context: Context, tp: TopicPartition) -> PartitionAnswer:
    """Raises as `described`, and Refusal 404."""
    partitions = (await described(context, tp.topic)).partitions
    found = partitions.get(tp.partition)
    if found is None:
        what = f"topic {tp.topic} has no partition {tp.partition}; it has {len(partitions)}, from 0"
        raise Refusal(404, what, code="UNKNOWN_PARTITION")
    return found


async def exist(context: Context, tps: Iterable[TopicPartition]) -> None:
    """Raises as `partition_of`."""
    for tp in tps:
        await partition_of(context, tp)
