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
from gateway.kafka.client.connections import Connections, Role
from gateway.kafka.client.offsets import LATEST, READ_UNCOMMITTED, Offset, list_offsets
from gateway.kafka.protocol.group_admin_messages import (
    NOT_FOUND,
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupDescribed,
    Listed,
    ListGroupsRequest,
    OffsetDeleteRequest,
)
from gateway.kafka.protocol.group_messages import (
    NOBODY,
    Committed,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from gateway.kafka.protocol.requests import Request

log = logging.getLogger(__name__)

TIMEOUT = 15.0  # seconds for which a coordinator that moves or loads is asked again
_PAUSE = 0.1  # seconds between attempts
_MOVED = frozenset({14, 15, 16})  # LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_DENIED = frozenset({29, 30, 31})
_UNKNOWN_TOPIC = 3
# ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, NON_EMPTY_GROUP,
# GROUP_SUBSCRIBED_TO_TOPIC, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH: who is told so is no member.
_IN_USE = frozenset({22, 25, 27, 68, 86, 110, 113})

R = TypeVar("R")


class Lag(NamedTuple):
    """How far a group is in one partition.

    committed: the offset, None where nothing is committed. end: of the log (the high watermark, as
    Kafka's own tools take it), None where it is not known now. owner: the id of who reads it.
    """

    committed: int | None
    end: int | None
    owner: str | None = None

    @property
    def lag(self) -> int | None:
        """Records, None where it cannot be said."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


async def groups(cluster: Cluster) -> list[Listed]:
    """All groups, by name. A broker that is away coordinates none: others take over its groups."""
    if not cluster.metadata.brokers:
        await cluster.metadata.refresh("looking for groups")
    nodes = tuple(cluster.metadata.brokers)
    asked = (_listed(cluster, node) for node in nodes)
    found: dict[str, Listed] = {}
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


async def describe(cluster: Cluster, group: str) -> GroupDescribed:
    """Who is in a group, and what each owns. GroupFailed with code 69 where there is none."""
    link = await cluster.coordinators.link(group)
    if ConsumerGroupDescribeRequest.API in link.versions:
        answer = await _ask(cluster, group, ConsumerGroupDescribeRequest(group))
        if answer.error != NOT_FOUND:
            _check(group, [answer.error])
            return answer
    answer = await _ask(cluster, group, DescribeGroupsRequest(group))
    _check(group, [answer.error])
    return answer


async def lag(cluster: Cluster, group: str) -> dict[TopicPartition, Lag]:
    """Of all partitions that it has committed, or that its members own."""
    described = await describe(cluster, group)
    owners = {tp: member.id for member in described.members for tp in member.owned}
    # Not only stable offsets: an open transaction must not keep an operator from looking.
    answer = await _ask(cluster, group, OffsetFetchRequest(group, stable=False))
    _check(group, [answer.error])
    committed = {tp: one for tp, one in answer.offsets.items() if isinstance(one, Committed)}
    tps = sorted(committed.keys() | owners.keys())
    ends = await _ends(cluster, tps)
    return {
        tp: Lag(committed[tp].offset if tp in committed else None, ends.get(tp), owners.get(tp))
        for tp in tps
    }


async def set_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Where its members will go on. A group that does not exist is made by that.

    Raises GroupInUse while it has members (the coordinator sees to that: nobody can join in
    between), UnknownTopic. What of several partitions was not refused is set.
    """
    if not offsets:
        return
    committed = {tp: Committed(offset) for tp, offset in offsets.items()}
    answer = await _ask(cluster, group, OffsetCommitRequest(group, committed, NOBODY, {}))
    for tp, error in answer.errors.items():
        if error == _UNKNOWN_TOPIC:
            raise UnknownTopic(f"there is no partition {tp}", topic=tp.topic)
    _check(group, answer.errors.values())


async def delete_offsets(cluster: Cluster, group: str, tps: Collection[TopicPartition]) -> None:
    """Forget what it has committed of them. Raises GroupInUse while a member reads their topic."""
    if tps:
        answer = await _ask(cluster, group, OffsetDeleteRequest(group, tps))
        _check(group, [answer.error, *answer.errors.values()])


async def delete(cluster: Cluster, group: str) -> None:
    """The group and all that it has committed. Raises GroupInUse while it has members."""
    _check(group, [(await _ask(cluster, group, DeleteGroupsRequest(group))).error])


async def _listed(cluster: Cluster, node: int) -> tuple[Listed, ...] | KafkaError:
    try:
        answer = await cluster.connections.send(node, Role.CONTROL, ListGroupsRequest())
    except KafkaError as exc:
        return exc
    if answer.error:
        return BrokerUnavailable(f"broker {node} lists no groups: error {answer.error}", node=node)
    return answer.groups


async def _ask(cluster: Cluster, group: str, request: Request[R]) -> R:
    """The coordinator's answer, once it is one and knows the group."""
    now = asyncio.get_running_loop().time
    deadline = now() + TIMEOUT
    while True:
        try:
            answer = await cluster.coordinators.send(group, request)
            if not _errors(answer) & _MOVED or now() >= deadline:
                return answer
            cluster.coordinators.forget(group)
        except BrokerUnavailable:
            if now() >= deadline:
                raise
        await asyncio.sleep(_PAUSE)


def _errors(answer: object) -> set[int]:
    errors = {getattr(answer, "error", 0)}
    return errors | set(getattr(answer, "errors", {}).values())


def _check(group: str, errors: Iterable[int]) -> None:
    """Raise for the first that is an error."""
    error = next((one for one in errors if one), 0)
    if not error:
        return
    if error in _DENIED:
        raise AccessDenied(f"the gateway may not do that with the group {group}; allow it")
    if error in _MOVED:
        raise BrokerUnavailable(f"the group {group} has no coordinator now", retry_after=1.0)
    if error in _IN_USE:
        message = f"the group {group} has members; stop them first"
        raise GroupInUse(message, group=group, code=error)
    what = "there is no group" if error == NOT_FOUND else f"error {error} of the group"
    raise GroupFailed(f"{what} {group}", group=group, code=error)


@dataclass(frozen=True, slots=True)
class _Described:
    """Leaders of topics that nobody watches."""

    connections: Connections
    leaders: Mapping[TopicPartition, tuple[int, int]]

    def leader(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.leaders.get(tp)


async def _ends(cluster: Cluster, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Of those that can be asked for now."""
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    for topic in sorted({tp.topic for tp in tps}):
        try:
            answer = await cluster.describe(topic)
        except (UnknownTopic, AccessDenied) as exc:
            log.info("the ends of %s are not known: %s", topic, exc)
            continue
        for number, partition in answer.partitions.items():
            if partition.leader >= 0:
                leaders[TopicPartition(topic, number)] = partition.leader, partition.leader_epoch
    asked = dict.fromkeys(tps, LATEST)
    found = await list_offsets(_Described(cluster.connections, leaders), asked, READ_UNCOMMITTED)
    return {tp: one.offset for tp, one in found.items() if isinstance(one, Offset)}
