"""Offsets of a group: committed, and asked for, until the coordinator has said what is what.

Only what the member owns is sent, and looked at again before each attempt: a commit that was
refused as stale is repeated with the epoch that the next heartbeat brings, without the partitions
that went with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from gateway.core.group.member import MemberIdentity
from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    GroupFailed,
    KafkaError,
    NotOwned,
    UnknownTopic,
)
from gateway.kafka.client.coordinators import Coordinators
from gateway.kafka.protocol.group_messages import (
    NO_MEMBER,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

COMMIT_TIMEOUT_S = 30.0  # seconds
_RETRY_DELAYS_S = (0.05, 1.0)  # seconds between attempts, from and to

_COORDINATOR_MOVED_CODES = {
    14,
    15,
    16,
}  # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_STALE_MEMBER_CODES = {22, 27, 113}  # ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH
_FENCED_MEMBER_CODES = {25, 82, 110}  # UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH
_UNKNOWN_TOPIC_CODES = {3, 100, 103}  # the topic is not known yet, or any more
_RETRIABLE_CODES = {7, 88} | _UNKNOWN_TOPIC_CODES  # REQUEST_TIMED_OUT, UNSTABLE_OFFSET_COMMIT
UNKNOWN_TOPIC_TIMEOUT_S = 2.0  # seconds until a topic that the coordinator does not know is deleted
_DENIED_CODES = {29, 30}


async def _wait_without_member(timeout_s: float) -> None:
    await asyncio.sleep(min(timeout_s, _RETRY_DELAYS_S[0]))


class _UnknownTopics:
    """The topics of one commit that the coordinator does not know, and since when."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._since: dict[str, float] = {}  # loop time, by topic

    def update(self, topics: Collection[str]) -> None:
        """Take the topics of the last answer in place of those before."""
        now = asyncio.get_running_loop().time()
        self._since = {topic: self._since.get(topic, now) for topic in topics}

    def raise_if_expired(self) -> None:
        """Raise UnknownTopic where each of them has been unknown for long enough."""
        now = asyncio.get_running_loop().time()
        if now - max(self._since.values()) >= UNKNOWN_TOPIC_TIMEOUT_S:
            topic = min(self._since)
            what = f"the coordinator of the group {self._group} knows no topic {topic} (any more)"
            raise UnknownTopic(f"{what}; its offsets are not committed", topic=topic)


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Of one group.

    identity: of the member, NOBODY for none. owned: what may be committed.
    hurry:    has the coordinator asked for the member's epoch; returns when it has answered.
    """

    coordinators: Coordinators
    group: str
    get_identity: Callable[[], MemberIdentity] = lambda: NO_MEMBER
    get_owned: Callable[[], Collection[TopicPartition]] | None = None
    heartbeat_soon: Callable[[float], Awaitable[None]] = _wait_without_member

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        get_topic_id: Callable[[str], UUID | None],
        *,
        timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        """Raises NotOwned for what is not the member's (any more), after the rest is committed;
        UnknownTopic for topics that the coordinator did not know for `UNKNOWN_TIMEOUT`, also after
        the rest; AccessDenied, GroupFailed; BrokerUnavailable when `within` seconds were not
        enough.

        A member that gives up a deleted topic commits it first, so the group stands still, and no
        new topic is read, for as long as that takes.
        """
        left = dict(offsets)
        deadline, lacking = self._compute_deadline(timeout_s), set[TopicPartition]()
        pause, failure = _RETRY_DELAYS_S[0], BrokerUnavailable("no answer in time", timeout=True)
        unknown = _UnknownTopics(self.group)
        while left:
            lacking |= self._drop_unowned(left)
            if not left:
                break
            request = self._build_commit_request(left, get_topic_id)
            try:
                answer = await self.coordinators.send(self.group, request)
                errors = {tp: answer.errors.get(tp, 0) for tp in left}
            except BrokerUnavailable as exc:
                errors, failure = dict.fromkeys(left, 7), exc
            left = {tp: one for tp, one in left.items() if errors[tp]}
            unknown.update({tp.topic for tp in left if errors[tp] in _UNKNOWN_TOPIC_CODES})
            if left:
                if {errors[tp] for tp in left} <= _UNKNOWN_TOPIC_CODES:
                    unknown.raise_if_expired()
                await self._prepare_retry(
                    {errors[tp] for tp in left}, left, deadline, pause, failure
                )
                pause = min(pause * 2, _RETRY_DELAYS_S[1])
        if lacking:
            raise NotOwned(f"not this member's (any more): {', '.join(map(str, sorted(lacking)))}")

    async def committed(
        self, tps: Collection[TopicPartition] | None, *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is committed of them (None: of all partitions); those of which nothing is are
        absent. Raises as `commit`."""
        deadline, pause = self._compute_deadline(timeout_s), _RETRY_DELAYS_S[0]
        failure = BrokerUnavailable("no answer in time", timeout=True)
        while True:
            try:
                answer = await self.coordinators.send(
                    self.group, OffsetFetchRequest(self.group, tps)
                )
            except BrokerUnavailable as exc:
                failure, errors = exc, {7}
            else:
                found = answer.offsets
                errors = {answer.error} | {e for e in found.values() if isinstance(e, int)}
                errors.discard(0)
                if not errors:
                    return {
                        tp: one for tp, one in found.items() if isinstance(one, OffsetAndMetadata)
                    }
            await self._prepare_retry(errors, tps or (), deadline, pause, failure)
            pause = min(pause * 2, _RETRY_DELAYS_S[1])

    def _build_commit_request(
        self,
        pending: Mapping[TopicPartition, OffsetAndMetadata],
        get_topic_id: Callable[[str], UUID | None],
    ) -> OffsetCommitRequest:
        known = {
            topic: id
            for topic in {tp.topic for tp in pending}
            if (id := get_topic_id(topic)) is not None
        }
        return OffsetCommitRequest(self.group, dict(pending), self.get_identity(), known)

    def _drop_unowned(
        self, pending: dict[TopicPartition, OffsetAndMetadata]
    ) -> set[TopicPartition]:
        """What is not owned must not be sent: another member may have got further."""
        if self.get_owned is None:
            return set()
        lacking = pending.keys() - set(self.get_owned())
        for tp in lacking:
            del pending[tp]
        return lacking

    async def _prepare_retry(
        self,
        errors: Collection[int],
        tps: Collection[TopicPartition],
        deadline: float,
        delay: float,
        failure: KafkaError,
    ) -> None:
        """Do what may help before the next attempt; raise where nothing does."""
        errors, names = set(errors), ", ".join(map(str, sorted(tps)))
        now = asyncio.get_running_loop().time()
        if errors & _FENCED_MEMBER_CODES:
            await self.heartbeat_soon(0.0)
            raise NotOwned(f"the group {self.group} went on without this member; {names} are lost")
        if errors & _DENIED_CODES:
            raise AccessDenied(f"the gateway may not read {names} with the group {self.group}")
        if hopeless := errors - _COORDINATOR_MOVED_CODES - _STALE_MEMBER_CODES - _RETRIABLE_CODES:
            code = min(hopeless)
            message = f"offsets of {names} in the group {self.group}: error {code}"
            raise GroupFailed(message, group=self.group, code=code)
        if now >= deadline:
            raise failure
        if errors & _COORDINATOR_MOVED_CODES:
            self.coordinators.forget(self.group)
        if errors & _STALE_MEMBER_CODES:
            await self.heartbeat_soon(deadline - now)
        else:
            await asyncio.sleep(min(delay, deadline - now))

    @staticmethod
    def _compute_deadline(timeout_s: float) -> float:
        return asyncio.get_running_loop().time() + timeout_s
