"""Administer consumer groups of both protocols, create topics, and delete records.

Groups can be listed and described, their lag computed, and their committed offsets moved or
deleted. All functions raise BrokerUnavailable, AuthenticationFailed and AccessDenied; those of
groups also GroupFailed with Kafka's error code, UnknownGroup if there is none of the name, and
GroupInUse where a group has members (for deleted offsets: of the topic) and must not have any.

aiokafka's admin client is not used: it knows classic groups only (no ConsumerGroupDescribe of
KIP-848), cannot move or delete the offsets of a group or delete a group, and would open connections
of its own, with another backoff than the cluster's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

from gateway.core.error_code import AUTHORIZATION_ERRORS, COORDINATOR_ERRORS, ErrorCode
from gateway.core.group.partition_state import TopicMark
from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    GroupFailed,
    GroupInUse,
    KafkaError,
    UnknownGroup,
    UnknownTopic,
)
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import LATEST, READ_UNCOMMITTED, OffsetAndTimestamp, list_offsets
from gateway.kafka.protocol.group_messages import (
    NO_MEMBER,
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupDescription,
    GroupListing,
    ListGroupsRequest,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT, CreateTopicsRequest

log = logging.getLogger(__name__)

COORDINATOR_TIMEOUT_S = 15.0  # while a coordinator moves or loads, requests are repeated for this
_RETRY_DELAY_S = 0.1  # between two of these requests
_GROUP_IN_USE_ERRORS = frozenset(
    {
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        # The gateway commits here without being a member, so these mean that there are members.
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)

RETRIABLE_ERRORS = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})

R = TypeVar("R")


class PartitionLag(NamedTuple):
    """The progress of a group in one partition. Unknown offsets and owners are None.

    `end_offset` is the high watermark, as in Kafka's own tools.
    """

    committed: int | None
    end_offset: int | None
    owner: str | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed)

    def to_json(self) -> dict[str, int | str | None]:
        return {
            "committed": self.committed,
            "end": self.end_offset,
            "lag": self.lag,
            "owner": self.owner,
        }


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """List all groups, in the order of their names.

    Every broker lists the groups that it coordinates. A broker that is away is left out: others
    take over its groups. If no broker answers, the error of the first one is raised.
    """
    if not cluster.metadata.brokers:
        await cluster.metadata.refresh("looking for groups")
    nodes = tuple(cluster.metadata.brokers)
    lookups = (_list_broker_groups(cluster, node) for node in nodes)
    groups: dict[str, GroupListing] = {}
    failures: list[KafkaError] = []
    for result in await asyncio.gather(*lookups):
        if isinstance(result, KafkaError):
            failures.append(result)
        else:
            groups |= {listing.name: listing for listing in result}
    if len(failures) == len(nodes):
        raise failures[0] if failures else BrokerUnavailable("no broker is known", retry_after=0.1)
    for failure in failures:
        log.warning("groups of a broker are not listed: %s", failure)
    return [groups[name] for name in sorted(groups)]


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    # A group that the consumer protocol does not know may be one of the classic protocol.
    coordinator = await cluster.coordinators.connect(group)
    if ConsumerGroupDescribeRequest.API.key in coordinator.versions:
        description = await _send_to_coordinator(
            cluster, group, ConsumerGroupDescribeRequest(group)
        )
        if description.error != ErrorCode.GROUP_ID_NOT_FOUND:
            _raise_for_errors(group, description)
            return description
    return await _request(cluster, group, DescribeGroupsRequest(group))


async def fetch_lag(
    cluster: Cluster, group: str, description: GroupDescription | None = None
) -> dict[TopicPartition, PartitionLag]:
    if description is None:
        description = await describe_group(cluster, group)
    owners = {tp: member.id for member in description.members for tp in member.owned}
    # Not only stable offsets: an open transaction must not keep an operator from looking.
    response = await _request(cluster, group, OffsetFetchRequest(group, require_stable=False))
    committed = {
        tp: offset
        for tp, offset in response.offsets.items()
        if isinstance(offset, OffsetAndMetadata)
    }
    tps = sorted(committed.keys() | owners.keys())
    ends = await _fetch_end_offsets(cluster, tps)
    return {
        tp: PartitionLag(
            committed[tp].offset if tp in committed else None, ends.get(tp), owners.get(tp)
        )
        for tp in tps
    }


async def set_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set the committed offsets of a group, where its members will continue.

    A group that does not exist is created. The coordinator itself refuses while there are members,
    so nobody can join in between. When this raises, as UnknownTopic for a partition that does not
    exist, partitions that were not refused are set.
    """
    if not offsets:
        return
    marks = await _fetch_marks(cluster, group, {tp.topic for tp in offsets})
    committed = {
        tp: OffsetAndMetadata(offset, metadata=marks.get(tp.topic, ""))
        for tp, offset in offsets.items()
    }
    request = OffsetCommitRequest(group, committed, NO_MEMBER, {})
    response = await _send_to_coordinator(cluster, group, request)
    for tp, error in response.errors.items():
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(f"there is no partition {tp}", topic=tp.topic)
    _raise_for_errors(group, response)


async def _fetch_marks(cluster: Cluster, group: str, topics: Collection[str]) -> dict[str, str]:
    """Return the marks of topics by which a group knows partitions that are added later.

    That of a deleted topic is left out: the offsets to set are those of the new one.
    """
    response = await _request(cluster, group, OffsetFetchRequest(group, require_stable=False))
    marks: dict[str, str] = {}
    for tp, found in response.offsets.items():
        if tp.topic in topics and isinstance(found, OffsetAndMetadata):
            _, mark = TopicMark.split(found.metadata)
            if mark and mark.topic_id == (await cluster.describe_topic(tp.topic)).topic_id:
                marks[tp.topic] = str(mark)
    return marks


async def delete_offsets(cluster: Cluster, group: str, tps: Collection[TopicPartition]) -> None:
    if tps:
        await _request(cluster, group, OffsetDeleteRequest(group, tps))


async def delete_group(cluster: Cluster, group: str) -> None:
    await _request(cluster, group, DeleteGroupsRequest(group))


async def _list_broker_groups(cluster: Cluster, node: int) -> tuple[GroupListing, ...] | KafkaError:
    """List the groups of one broker; an error is returned, so that it does not end the others."""
    try:
        response = await cluster.connections.send(node, ConnectionRole.CONTROL, ListGroupsRequest())
    except KafkaError as exc:
        return exc
    if response.error:
        return BrokerUnavailable(
            f"broker {node} lists no groups: error {response.error}", node=node
        )
    return response.groups


async def _request(cluster: Cluster, group: str, request: KafkaRequest[R]) -> R:
    response = await _send_to_coordinator(cluster, group, request)
    _raise_for_errors(group, response)
    return response


async def _send_to_coordinator(cluster: Cluster, group: str, request: KafkaRequest[R]) -> R:
    """Send a request to the group's coordinator, again while it moves or loads the group."""
    now = asyncio.get_running_loop().time
    deadline = now() + COORDINATOR_TIMEOUT_S
    while True:
        try:
            response = await cluster.coordinators.send(group, request)
            if COORDINATOR_ERRORS.isdisjoint(_list_errors(response)) or now() >= deadline:
                return response
            cluster.coordinators.forget(group)
        except BrokerUnavailable:
            if now() >= deadline:
                raise
        await asyncio.sleep(_RETRY_DELAY_S)


def _list_errors(response: object) -> list[int]:
    return [getattr(response, "error", 0), *getattr(response, "errors", {}).values()]


def _raise_for_errors(group: str, response: object) -> None:
    error = next((code for code in _list_errors(response) if code), 0)
    if not error:
        return
    if error in AUTHORIZATION_ERRORS:
        raise AccessDenied(f"the gateway may not do that with the group {group}; allow it")
    if error in COORDINATOR_ERRORS:
        raise BrokerUnavailable(f"the group {group} has no coordinator now", retry_after=1.0)
    if error in _GROUP_IN_USE_ERRORS:
        message = f"the group {group} has members; stop them first"
        raise GroupInUse(message, group=group, code=error)
    if error == ErrorCode.GROUP_ID_NOT_FOUND:
        raise UnknownGroup(f"there is no group {group}", group=group, code=error)
    raise GroupFailed(f"error {error} of the group {group}", group=group, code=error)


async def _fetch_end_offsets(
    cluster: Cluster, tps: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the high watermark of the partitions whose leaders can be asked now."""
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    for topic in sorted({tp.topic for tp in tps}):
        try:
            metadata = await cluster.describe_topic(topic)
        except (UnknownTopic, AccessDenied) as exc:
            log.info("the ends of %s are not known: %s", topic, exc)
            continue
        for number, partition in metadata.partitions.items():
            if partition.leader >= 0:
                leaders[TopicPartition(topic, number)] = partition.leader, partition.leader_epoch
    specs = dict.fromkeys(tps, LATEST)
    results = await list_offsets(cluster.connections, leaders.get, specs, READ_UNCOMMITTED)
    return {
        tp: result.offset
        for tp, result in results.items()
        if isinstance(result, OffsetAndTimestamp)
    }


async def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replicas: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Create a topic, and return False if it exists. Brokers may take a moment to know of it.

    Raises:
        AccessDenied: The gateway may not create it.
        BrokerUnavailable: No broker created it now, or a broker did not answer.
        KafkaError: The broker refused; the message has its text.
    """
    nodes = [cluster.metadata.last_responder, *cluster.metadata.brokers]
    request = CreateTopicsRequest(topic, partitions, replicas, configs or {})
    # A dict keeps the order and drops the repeated node.
    for node in dict.fromkeys(node for node in nodes if node is not None):
        response = await cluster.connections.send(node, ConnectionRole.CONTROL, request)
        if not response.error:
            return True
        if response.error == ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        if response.error in AUTHORIZATION_ERRORS:
            message = f"the gateway may not create the topic {topic}; create it, or allow CREATE"
            raise AccessDenied(message, topic=topic)
        if response.error not in RETRIABLE_ERRORS:
            raise KafkaError(
                f"the topic {topic} was not created: {response.message or response.error}"
            )
    # Before KRaft only the controller creates topics, and it may be changing now.
    raise BrokerUnavailable(f"no broker creates the topic {topic} now; try again", retry_after=1.0)
