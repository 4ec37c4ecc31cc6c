"""Look up topics, partitions, offsets and groups that a client names, and the formats of a topic.

An unknown name of a client is answered with the nearest one that exists. The sidecar's own topics
are created here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from gateway.config.sections.sidecar import Consumer, DeadLetter, Group, Producer, Sidecar
from gateway.config.types.substitution import suggest
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError, UnknownTopic
from gateway.formats.codec import SerializationFormat
from gateway.kafka.admin import create_topic
from gateway.kafka.client.cluster import get_known_topic
from gateway.kafka.client.offsets import LATEST, READ_UNCOMMITTED, OffsetAndTimestamp
from gateway.kafka.produce.pending_records import compute_partition
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT
from gateway.sidecar.http.status import StatusError

from .context import Context, require_topic_name

log = logging.getLogger(__name__)

# How often, and after how many seconds, a topic that was just created is looked up again.
CREATED_TOPIC_ATTEMPTS, CREATED_TOPIC_DELAY_S = 20, 0.1


async def get_or_create_topic(
    context: Context,
    name: str,
    purpose: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replicas: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> TopicMetadata:
    """Return the metadata of a topic of the sidecar's own, and create the topic if it is missing.

    Raises KafkaError if it cannot be created, or is not known soon after. `purpose` is for the log.
    """
    try:
        return await context.get_topic(name)
    except UnknownTopic:
        if await create_topic(
            context.cluster, name, partitions=partitions, replicas=replicas, configs=configs
        ):
            log.info("created the topic %s for %s", name, purpose)
    for _ in range(CREATED_TOPIC_ATTEMPTS):
        try:
            return await context.get_topic(name)
        except KafkaError:  # brokers learn about a new topic at different times
            await asyncio.sleep(CREATED_TOPIC_DELAY_S)
    return await context.get_topic(name)


def choose_partition(topic: TopicMetadata, number: int, key: bytes | None) -> TopicPartition:
    """Choose the partition for the copy of a record whose own partition has this number.

    It is the one of the same number, if there is one, so that copies keep their order; else that of
    the key.
    """
    if number not in topic.partitions:
        count = len(topic.partitions)
        number = number % count if key is None else compute_partition(key, count)
    return TopicPartition(topic.name, number)


def check_writable(context: Context, name: str) -> None:
    """Raise StatusError 403 for a topic whose records Kafka or the sidecars rely on."""
    if name.startswith("__") or name in context.section.internal_topics:
        problem = f"{name} is for Kafka or the sidecars alone"
        raise StatusError(403, f"{problem}; name a topic of your own", code="INTERNAL_TOPIC")


def check_not_dead_letters(context: Context, name: str) -> None:
    """Raise StatusError 400 for dead letters: theirs would be in a new topic, and so on."""
    if name.endswith(tuple(context.section.dead_letter_suffixes)):
        problem = f"{name} is of dead letters, which have none of their own; retry or commit them"
        raise StatusError(400, problem, code="DEAD_LETTER_TOPIC")


def parse_tp(fields: Mapping[str, Any]) -> TopicPartition:
    # 1.0 is an integer in JSON.
    return TopicPartition(fields["topic"], int(fields["partition"]))


async def describe_topic(context: Context, name: str) -> TopicMetadata:
    """Return the metadata of a topic without watching it; raises as `Context.get_topic`."""
    require_topic_name(name)
    topic = get_known_topic(context.cluster, name)
    if topic is not None:
        return topic
    context.require_kafka()
    try:
        return await context.cluster.describe_topic(name)
    except UnknownTopic:  # asks once more, and finds the nearest name for the message
        return await context.get_topic(name)


async def describe_topics(context: Context, names: Iterable[str]) -> dict[str, TopicMetadata]:
    """Return the metadata of topics; each is asked for once, however often it is named."""
    return {name: await describe_topic(context, name) for name in dict.fromkeys(names)}


async def describe_partition(context: Context, tp: TopicPartition) -> PartitionMetadata:
    """Return the metadata of a partition; raises StatusError 404, or as `describe_topic`."""
    return _get_partition(await describe_topic(context, tp.topic), tp.partition)


async def check_partitions(context: Context, tps: Iterable[TopicPartition]) -> None:
    tps = list(tps)
    topics = await describe_topics(context, (tp.topic for tp in tps))
    for tp in tps:
        _get_partition(topics[tp.topic], tp.partition)


def _get_partition(topic: TopicMetadata, number: int) -> PartitionMetadata:
    partition = topic.partitions.get(number)
    if partition is None:
        problem = (
            f"topic {topic.name} has no partition {number}; it has {len(topic.partitions)}, from 0"
        )
        raise StatusError(404, problem, code="UNKNOWN_PARTITION")
    return partition


async def check_offsets(context: Context, offsets: Mapping[TopicPartition, int]) -> None:
    """Raise StatusError 400 if a next offset is beyond the end of its log.

    A group that continues there is set to the end, and passes over unread records. Partitions whose
    end is unknown now pass.
    """
    if not offsets:
        return
    with contextlib.suppress(KafkaError):  # so that the leaders are known
        for topic in {tp.topic for tp in offsets}:
            await context.get_topic(topic)
    ends = await context.cluster.list_offsets(dict.fromkeys(offsets, LATEST), READ_UNCOMMITTED)
    for tp, end in ends.items():
        if isinstance(end, OffsetAndTimestamp) and offsets[tp] > end.offset:
            problem = f"{tp} ends at {end.offset}; {offsets[tp]} is beyond that, correct it"
            raise StatusError(400, problem, code="OFFSET_OUT_OF_RANGE")


Formats: TypeAlias = tuple[SerializationFormat, SerializationFormat]
"""Of keys and of values."""


def get_formats(section: Sidecar, topic: str, defaults: Consumer | Group | Producer) -> Formats:
    return (
        SerializationFormat.parse(section.get_key_format(topic, defaults.key_format)),
        SerializationFormat.parse(section.get_value_format(topic, defaults.value_format)),
    )


def get_group(section: Sidecar, name: str | None) -> Group:
    """Return the group of a name, or the only one for None; raises StatusError 400."""
    groups = (
        {}
        if section.reactive is None
        else {group.group: group for group in section.reactive.groups}
    )
    if not groups:
        problem = "no back end is configured; add sidecar.reactive with the group that has it"
        raise StatusError(400, problem, code="UNKNOWN_GROUP")
    if name is None and len(groups) == 1:
        return next(iter(groups.values()))
    if name is None:
        problem = f"several groups are configured; name one of {', '.join(groups)}"
        raise StatusError(400, problem, code="UNKNOWN_GROUP")
    if name not in groups:
        problem = f"no group {name[:80]} is configured; {suggest(name, list(groups), 'add it')}"
        raise StatusError(400, problem, code="UNKNOWN_GROUP")
    return groups[name]


def get_dead_letter_ext(section: Sidecar, group: str | None) -> str:
    """Return the suffix of dead letter topics: the group's own, or the general one."""
    configured = () if section.reactive is None else section.reactive.groups
    for group_settings in configured:
        if group_settings.group == group:
            return group_settings.dead_letter_topic_ext
    return (section.dead_letter or DeadLetter()).topic_ext
