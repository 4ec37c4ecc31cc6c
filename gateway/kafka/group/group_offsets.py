"""Commit the offsets of a group and look them up, retrying until the coordinator has answered.

Only offsets of partitions that the member owns are sent, and ownership is checked again before each
attempt: a commit that was refused as stale is repeated with the epoch that the next heartbeat
brings, without the partitions that the same heartbeat took away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from gateway.core.backoff import BackoffPolicy
from gateway.core.error_code import AUTHORIZATION_ERRORS, COORDINATOR_ERRORS, ErrorCode
from gateway.core.group.member import MemberIdentity
from gateway.core.group.partition_state import TopicMark
from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    GroupFailed,
    KafkaError,
    NotOwned,
    UnknownTopic,
)
from gateway.kafka.client.brokers import Coordinators
from gateway.kafka.protocol.group_messages import (
    NO_MEMBER,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

COMMIT_TIMEOUT_S = 30.0
_RETRY_BACKOFF = BackoffPolicy(0.05, 1.0)

UNKNOWN_TOPIC_TIMEOUT_S = 2.0  # after this a topic that the coordinator does not know is deleted

_STALE_MEMBER_ERRORS = {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}
_FENCED_MEMBER_ERRORS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
}
# The coordinator does not know the topic yet, or not any more.
_UNRESOLVED_TOPIC_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}
_RETRIABLE_ERRORS = {
    *COORDINATOR_ERRORS,
    *_STALE_MEMBER_ERRORS,
    *_UNRESOLVED_TOPIC_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


async def _wait_without_member(timeout_s: float) -> None:
    await asyncio.sleep(min(timeout_s, _RETRY_BACKOFF.first_delay))


def _split_topic(
    offset: OffsetAndMetadata, cluster_id: str | None
) -> tuple[OffsetAndMetadata, TopicMark | None]:
    metadata, mark = TopicMark.split(offset.metadata)
    if mark is not None and mark.is_of_other_cluster(cluster_id):
        mark = None
    return offset._replace(metadata=metadata), mark


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The committed offsets of one group, as one consumer reads and writes them.

    Owned by an `Assignment`. It has no state.

    Attributes:
        get_identity: Returns the identity of the member; NO_MEMBER for a consumer without one.
        get_owned: Returns the partitions that may be committed; None if any may.
        heartbeat_soon: Sends a heartbeat, to learn the member's new epoch. Returns after the
            response, or after the given seconds.
    """

    coordinators: Coordinators
    group: str
    get_identity: Callable[[], MemberIdentity] = lambda: NO_MEMBER
    get_owned: Callable[[], Collection[TopicPartition]] | None = None
    heartbeat_soon: Callable[[float], Awaitable[None]] = _wait_without_member

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        get_mark: Callable[[str], TopicMark | None],
    ) -> None:
        """Commit the next offsets, repeating transient failures for 30 seconds.

        `get_mark` returns the mark of a topic, without the cluster.

        Raises:
            NotOwned: Partitions are not the member's (any more). The others are committed.
            UnknownTopic: The coordinator did not know topics for UNKNOWN_TOPIC_TIMEOUT_S. The
                others are committed. The time is short because a member that gives up a deleted
                topic commits it first: until that has ended, the rebalance does not, and nobody
                reads the topic that may take its place.
            AccessDenied: The group or a topic may not be used.
            GroupFailed: The coordinator refuses for another reason.
            BrokerUnavailable: The coordinator did not answer in time.

            The `partitions` of each error are those that are not committed.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + COMMIT_TIMEOUT_S
        pending, not_owned = dict(offsets), set[TopicPartition]()
        failures, failure = 0, BrokerUnavailable("no answer in time", timeout=True)
        # A topic that was just created is unknown to some brokers for a moment, a deleted one for
        # good.
        unknown_since: dict[str, float] = {}
        while pending:
            if self.get_owned is not None:  # of the others, their owners may have later offsets
                not_owned |= pending.keys() - set(self.get_owned())
                pending = {tp: offset for tp, offset in pending.items() if tp not in not_owned}
                if not pending:
                    break
            request = self._build_commit_request(pending, get_mark)
            try:
                response = await self.coordinators.send(self.group, request)
                errors = {tp: response.errors.get(tp, 0) for tp in pending}
            except BrokerUnavailable as exc:
                errors, failure = dict.fromkeys(pending, ErrorCode.REQUEST_TIMED_OUT), exc
            pending = {tp: offset for tp, offset in pending.items() if errors[tp]}
            unknown = {tp.topic for tp in pending if errors[tp] in _UNRESOLVED_TOPIC_ERRORS}
            unknown_since = {topic: unknown_since.get(topic, now()) for topic in unknown}
            if pending:
                failures += 1
                codes, lacking = {errors[tp] for tp in pending}, pending.keys() | not_owned
                try:
                    # Only once nothing else is left, so that the others are committed first.
                    if codes <= _UNRESOLVED_TOPIC_ERRORS:
                        self._check_unknown_topics(unknown_since)
                    await self._prepare_retry(codes, lacking, deadline, failures, failure)
                except KafkaError as error:
                    error.partitions = frozenset(lacking)
                    raise
        if not_owned:
            names = ", ".join(map(str, sorted(not_owned)))
            raise NotOwned(f"not this member's (any more): {names}", partitions=not_owned)

    def _check_unknown_topics(self, unknown_since: Mapping[str, float]) -> None:
        now = asyncio.get_running_loop().time()
        if now - max(unknown_since.values()) >= UNKNOWN_TOPIC_TIMEOUT_S:
            topic = min(unknown_since)
            reason = f"the coordinator of the group {self.group} knows no topic {topic} (any more)"
            raise UnknownTopic(f"{reason}; its offsets are not committed", topic=topic)

    async def committed(
        self, tps: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        found = await self.committed_with_topics(tps)
        return {tp: offset for tp, (offset, _) in found.items()}

    async def committed_with_topics(
        self, tps: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, tuple[OffsetAndMetadata, TopicMark | None]]:
        """Return the committed offsets with the marks of their topics; with None all of the group.

        A mark is None if there is none, or if the offset was copied from another cluster. Raises
        AccessDenied, GroupFailed and BrokerUnavailable as `commit` does.
        """
        deadline, failures = asyncio.get_running_loop().time() + COMMIT_TIMEOUT_S, 0
        failure = BrokerUnavailable("no answer in time", timeout=True)
        while True:
            try:
                response = await self.coordinators.send(
                    self.group, OffsetFetchRequest(self.group, tps)
                )
            except BrokerUnavailable as exc:
                failure, errors = exc, {int(ErrorCode.REQUEST_TIMED_OUT)}
            else:
                offsets = response.offsets
                errors = {response.error} | {e for e in offsets.values() if isinstance(e, int)}
                errors.discard(0)
                if not errors:
                    cluster_id = self.coordinators.cluster_id
                    return {
                        tp: _split_topic(offset, cluster_id)
                        for tp, offset in offsets.items()
                        if isinstance(offset, OffsetAndMetadata)
                    }
            failures += 1
            await self._prepare_retry(errors, tps or (), deadline, failures, failure)

    def _build_commit_request(
        self,
        pending: Mapping[TopicPartition, OffsetAndMetadata],
        get_mark: Callable[[str], TopicMark | None],
    ) -> OffsetCommitRequest:
        cluster_id = self.coordinators.cluster_id
        marks = {
            topic: mark._replace(cluster_id=cluster_id)
            for topic in {tp.topic for tp in pending}
            if (mark := get_mark(topic)) is not None
        }
        marked = {
            tp: offset._replace(metadata=marks[tp.topic].append_to(offset.metadata))
            if tp.topic in marks
            else offset
            for tp, offset in pending.items()
        }
        topic_ids = {topic: mark.topic_id for topic, mark in marks.items()}
        return OffsetCommitRequest(self.group, marked, self.get_identity(), topic_ids)

    async def _prepare_retry(
        self,
        errors: Collection[int],
        tps: Collection[TopicPartition],
        deadline: float,
        failures: int,
        failure: KafkaError,
    ) -> None:
        """Wait and prepare for the next attempt, or raise if none can succeed.

        Args:
            tps: The partitions that are not done, which a failure names.
            deadline: When to give up, in loop time.
            failures: How many attempts failed in a row. The wait grows with them, unless a
                heartbeat is waited for.
            failure: The error to raise at the deadline.
        """
        errors, names = set(errors), ", ".join(map(str, sorted(tps)))
        now = asyncio.get_running_loop().time()
        if errors & _FENCED_MEMBER_ERRORS:
            # The heartbeat lets the member learn at once that it was fenced, and join again.
            await self.heartbeat_soon(0.0)
            reason = f"the group {self.group} went on without this member; {names} are lost"
            raise NotOwned(reason)
        if errors & AUTHORIZATION_ERRORS:
            raise AccessDenied(f"the gateway may not read {names} with the group {self.group}")
        if fatal := errors - _RETRIABLE_ERRORS:
            code = min(fatal)
            message = f"offsets of {names} in the group {self.group}: error {code}"
            raise GroupFailed(message, group=self.group, code=code)
        if now >= deadline:
            raise failure
        if errors & COORDINATOR_ERRORS:
            self.coordinators.forget(self.group)
        # A stale epoch is cured by the heartbeat that brings the new one, and by nothing else.
        if errors & _STALE_MEMBER_ERRORS:
            await self.heartbeat_soon(deadline - now)
        else:
            delay = _RETRY_BACKOFF.compute_delay(failures, random.random)
            await asyncio.sleep(min(delay, deadline - now))
