"""A small coordinator of KIP-848: who may own what, as the broker reckons it."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.error_code import ErrorCode
from gateway.core.group.consumer_member import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    TopicIdPartition,
)

HEARTBEAT_INTERVAL_S = 5.0  # seconds between heartbeats


@dataclass
class GroupMemberState:
    epoch: int = 0
    previous_epoch: int = 0
    instance_id: str | None = None
    has_left_static: bool = False  # a static one that said it comes back
    target_assignment: frozenset[TopicIdPartition] = frozenset()
    assigned: frozenset[TopicIdPartition] = frozenset()
    revoking: frozenset[TopicIdPartition] = (
        frozenset()
    )  # to be given up; another's only when that is said

    @property
    def owned_partitions(self) -> frozenset[TopicIdPartition]:
        return self.assigned | self.revoking


@dataclass
class ConsumerGroupCoordinator:
    partitions: frozenset[TopicIdPartition]
    epoch: int = 0
    members: dict[str, GroupMemberState] = field(default_factory=dict)

    def handle_heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
        if request.epoch < 0:
            return self._handle_leave(request)
        refused = self._handle_join(request) if request.epoch == 0 else self._check_epoch(request)
        if refused:
            return build_response(refused)
        member = self.members[request.member_id]
        told = member.assigned
        self._reconcile(member, request.owned)
        changed = request.is_full or member.assigned != told
        return build_response(0, member.epoch, member.assigned if changed else None)

    def expire_member(self, member_id: str) -> None:
        """Its session is over."""
        if self.members.pop(member_id, None) is not None:
            self.rebalance()

    def _handle_leave(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
        member = self.members.get(request.member_id)
        if member is None:
            return build_response(ErrorCode.UNKNOWN_MEMBER_ID)
        if request.epoch == -2:
            member.has_left_static = True
        else:
            self.expire_member(request.member_id)
        return build_response(0, request.epoch)

    def _handle_join(self, request: ConsumerHeartbeatRequest) -> int:
        assert request.is_full and request.owned == frozenset() and request.topics is not None
        if request.member_id in self.members:
            return 0
        for id, other in list(self.members.items()):
            if request.instance_id is not None and other.instance_id == request.instance_id:
                if not other.has_left_static:
                    return ErrorCode.UNRELEASED_INSTANCE_ID
                self.members[request.member_id] = self.members.pop(id)
                self.members[request.member_id].has_left_static = False
                return 0
        self.members[request.member_id] = GroupMemberState(instance_id=request.instance_id)
        self.rebalance()
        return 0

    def _check_epoch(self, request: ConsumerHeartbeatRequest) -> int:
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.epoch == member.epoch:
            return 0
        # The answer that brought the epoch was lost.
        lost = request.epoch == member.previous_epoch and request.owned is not None
        return 0 if lost and request.owned <= member.assigned else ErrorCode.FENCED_MEMBER_EPOCH

    def rebalance(self) -> None:
        self.epoch += 1
        ids, places = list(self.members), sorted(self.partitions)
        for at, id in enumerate(ids):
            self.members[id].target_assignment = frozenset(places[at :: len(ids)])

    def _reconcile(
        self, member: GroupMemberState, owned: frozenset[TopicIdPartition] | None
    ) -> None:
        """What is to be given up and is not said to be owned, in this very beat, is free at once:
        one that joins again owns nothing."""
        for _ in range(2):
            if owned is not None and not owned & member.revoking:
                member.revoking = frozenset()
            if not member.revoking:
                member.revoking = member.assigned - member.target_assignment
                member.assigned &= member.target_assignment
        if not member.revoking:
            if member.epoch != self.epoch:
                member.previous_epoch, member.epoch = member.epoch, self.epoch
            others = (
                other.owned_partitions for other in self.members.values() if other is not member
            )
            member.assigned = member.target_assignment - frozenset().union(*others)


def build_response(
    error_code: int, epoch: int = 0, owned: frozenset[TopicIdPartition] | None = None
) -> ConsumerHeartbeatResponse:
    assignment: dict[UUID, frozenset[int]] | None = None
    if owned is not None:
        assignment = {
            topic: frozenset(p for t, p in owned if t == topic) for topic in {t for t, _ in owned}
        }
    return ConsumerHeartbeatResponse(
        error_code, None, None, epoch, HEARTBEAT_INTERVAL_S, assignment
    )
