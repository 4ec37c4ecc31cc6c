"""What an operator asks and does to consumer groups, of both protocols: listing them, who is in
one, how far behind it is, moving and deleting what it has committed.

All of it raises BrokerUnavailable, AuthenticationFailed, AccessDenied, and GroupFailed with
Kafka's code; GroupInUse where a group has members and must not have any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    GroupFailed,
    GroupInUse,
    KafkaError,
    UnknownTopic,
)
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole, Connections
from gateway.kafka.client.offsets import LATEST, READ_UNCOMMITTED, OffsetAndTimestamp, list_offsets
from gateway.kafka.protocol.group_admin_messages import (
    GROUP_ID_NOT_FOUND,
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupDescription,
    GroupListing,
    ListGroupsRequest,
    OffsetDeleteRequest,
)
from gateway.kafka.protocol.group_messages import (
    NO_MEMBER,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from gateway.kafka.protocol.requests import KafkaRequest

log = logging.getLogger(__name__)

COORDINATOR_TIMEOUT_S = 15.0  # seconds for which a coordinator that moves or loads is asked again
_RETRY_DELAY_S = 0.1  # seconds between attempts
_COORDINATOR_ERRORS = frozenset(
    {14, 15, 16}
)  # LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_AUTHORIZATION_ERRORS = frozenset({29, 30, 31})
_UNKNOWN_TOPIC_OR_PARTITION = 3
# ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, NON_EMPTY_GROUP,
# GROUP_SUBSCRIBED_TO_TOPIC, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH: who is told so is no member.
_GROUP_IN_USE_ERRORS = frozenset({22, 25, 27, 68, 86, 110, 113})

R = TypeVar("R")


class PartitionLag(NamedTuple):
    """How far a group is in one partition.

    committed: the offset, None where nothing is committed. end: of the log (the high watermark, as
    Kafka's own tools take it), None where it is not known now. owner: the id of who reads it.
    """

    committed: int | None
    end_offset: int | None
    owner: str | None = None

    @property
    def lag(self) -> int | None:
        """Records, None where it cannot be said."""
        if self.committed is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed)


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups, by name. A broker that is away coordinates none: others take over its groups."""
    if not cluster.metadata.brokers:
        await cluster.metadata.refresh("looking for groups")
    nodes = tuple(cluster.metadata.brokers)
    asked = (_list_broker_groups(cluster, node) for node in nodes)
    found: dict[str, GroupListing] = {}
    failures: list[KafkaError] = []
    for answer in await asyncio.gather(*asked):
        if isinstance(answer, KafkaError):
            failures.append(answer)
        else:
            found |= {one.name: one for one in answer}
    if len(failures) == len(nodes):
        raise failures[0] if failures else BrokerUnavailable("no broker is known", retry_after=0.1)
    for failure in failures:
        log.warning("groups of a broker are not listed: %s", failure)
    return [found[name] for name in sorted(found)]


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Who is in a group, and what each owns. GroupFailed with code 69 where there is none."""
    link = await cluster.coordinators.connect(group)
    if ConsumerGroupDescribeRequest.API_KEY in link.versions:
        answer = await _send_to_coordinator(cluster, group, ConsumerGroupDescribeRequest(group))
        if answer.error != GROUP_ID_NOT_FOUND:
            _raise_for_errors(group, [answer.error])
            return answer
    answer = await _send_to_coordinator(cluster, group, DescribeGroupsRequest(group))
    _raise_for_errors(group, [answer.error])
    return answer


async def fetch_lag(cluster: Cluster, group: str) -> dict[TopicPartition, PartitionLag]:
    """Of all partitions that it has committed, or that its members own."""
    described = await describe_group(cluster, group)
    owners = {tp: member.id for member in described.members for tp in member.owned}
    # Not only stable offsets: an open transaction must not keep an operator from looking.
    answer = await _send_to_coordinator(
        cluster, group, OffsetFetchRequest(group, require_stable=False)
    )
    _raise_for_errors(group, [answer.error])
    committed = {
        tp: one for tp, one in answer.offsets.items() if isinstance(one, OffsetAndMetadata)
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
    """Where its members will go on. A group that does not exist is made by that.

    Raises GroupInUse while it has members (the coordinator sees to that: nobody can join in
    between), UnknownTopic. What of several partitions was not refused is set.
    """
    if not offsets:
        return
    committed = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
    answer = await _send_to_coordinator(
        cluster, group, OffsetCommitRequest(group, committed, NO_MEMBER, {})
    )
    for tp, error in answer.errors.items():
        if error == _UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(f"there is no partition {tp}", topic=tp.topic)
    _raise_for_errors(group, answer.errors.values())


async def delete_offsets(cluster: Cluster, group: str, tps: Collection[TopicPartition]) -> None:
    """Forget what it has committed of them. Raises GroupInUse while a member reads their topic."""
    if tps:
        answer = await _send_to_coordinator(cluster, group, OffsetDeleteRequest(group, tps))
        _raise_for_errors(group, [answer.error, *answer.errors.values()])


async def delete_group(cluster: Cluster, group: str) -> None:
    """The group and all that it has committed. Raises GroupInUse while it has members."""
    _raise_for_errors(
        group, [(await _send_to_coordinator(cluster, group, DeleteGroupsRequest(group))).error]
    )


async def _list_broker_groups(cluster: Cluster, node: int) -> tuple[GroupListing, ...] | KafkaError:
    try:
        answer = await cluster.connections.send(node, ConnectionRole.CONTROL, ListGroupsRequest())
    except KafkaError as exc:
        return exc
    if answer.error:
        return BrokerUnavailable(f"broker {node} lists no groups: error {answer.error}", node=node)
    return answer.groups


async def _send_to_coordinator(cluster: Cluster, group: str, request: KafkaRequest[R]) -> R:
    """The coordinator's answer, once it is one and knows the group."""
    now = asyncio.get_running_loop().time
    deadline = now() + COORDINATOR_TIMEOUT_S
    while True:
        try:
            answer = await cluster.coordinators.send(group, request)
            if not _collect_errors(answer) & _COORDINATOR_ERRORS or now() >= deadline:
                return answer
            cluster.coordinators.forget(group)
        except BrokerUnavailable:
            if now() >= deadline:
                raise
        await asyncio.sleep(_RETRY_DELAY_S)


def _collect_errors(answer: object) -> set[int]:
    errors = {getattr(answer, "error", 0)}
    return errors | set(getattr(answer, "errors", {}).values())


def _raise_for_errors(group: str, errors: Iterable[int]) -> None:
    """Raise for the first that is an error."""
    error = next((one for one in errors if one), 0)
    if not error:
        return
    if error in _AUTHORIZATION_ERRORS:
        raise AccessDenied(f"the gateway may not do that with the group {group}; allow it")
    if error in _COORDINATOR_ERRORS:
        raise BrokerUnavailable(f"the group {group} has no coordinator now", retry_after=1.0)
    if error in _GROUP_IN_USE_ERRORS:
        message = f"the group {group} has members; stop them first"
        raise GroupInUse(message, group=group, code=error)
    what = "there is no group" if error == GROUP_ID_NOT_FOUND else f"error {error} of the group"
    raise GroupFailed(f"{what} {group}", group=group, code=error)


@dataclass(frozen=True, slots=True)
class _DescribedLeaders:
    """Leaders of topics that nobody watches."""

    connections: Connections
    leaders: Mapping[TopicPartition, tuple[int, int]]

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.leaders.get(tp)


async def _fetch_end_offsets(
    cluster: Cluster, tps: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Of those that can be asked for now."""
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    for topic in sorted({tp.topic for tp in tps}):
        try:
            answer = await cluster.describe_topic(topic)
        except (UnknownTopic, AccessDenied) as exc:
            log.info("the ends of %s are not known: %s", topic, exc)
            continue
        for number, partition in answer.partitions.items():
            if partition.leader >= 0:
                leaders[TopicPartition(topic, number)] = partition.leader, partition.leader_epoch
    asked = dict.fromkeys(tps, LATEST)
    found = await list_offsets(
        _DescribedLeaders(cluster.connections, leaders), asked, READ_UNCOMMITTED
    )
    return {tp: one.offset for tp, one in found.items() if isinstance(one, OffsetAndTimestamp)}
