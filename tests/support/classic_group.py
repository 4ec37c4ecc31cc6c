"""A coordinator of a classic group in a few lines, without I/O, and members that talk to it.

It does what a broker does with JoinGroup, SyncGroup, Heartbeat and LeaveGroup; when sessions end
and how long a rebalance is waited for is up to the test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gateway.core.error_code import ErrorCode
from gateway.core.group.assignor import GroupAssignment, MemberSubscription
from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.member import (
    GroupRequest,
    GroupResponse,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    MemberEvent,
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    SyncRequest,
    SyncResponse,
    TopicInfo,
)
from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.requests import ErrorResponse


@dataclass
class _MemberSlot:
    subscription: MemberSubscription
    instance_id: str | None
    pending_join: tuple[MemberConnection, GroupRequest] | None = None
    pending_sync: tuple[MemberConnection, GroupRequest] | None = None


@dataclass
class ClassicGroupCoordinator:
    """stable: everybody has its assignment. open: it waits for members to join."""

    generation: int = 0
    is_stable: bool = False
    is_joining: bool = True
    leader_id: str = ""
    members: dict[str, _MemberSlot] = field(default_factory=dict)
    assignments: GroupAssignment = field(default_factory=dict)
    known_member_ids: set[str] = field(default_factory=set)
    rebalance_count: int = 0
    _id_counter: Any = field(default_factory=count)

    def handle_request(self, peer: MemberConnection, request: GroupRequest) -> None:
        """Answer at once, or later."""
        if isinstance(request, JoinRequest):
            self._handle_join(peer, request)
        elif isinstance(request, SyncRequest):
            self._handle_sync(peer, request)
        elif isinstance(request, HeartbeatRequest):
            error = self._check_identity(request) or (
                ErrorCode.REBALANCE_IN_PROGRESS if self.is_joining else 0
            )
            peer.receive_response(request, ErrorResponse(0, error))
        elif isinstance(request, LeaveRequest):
            known = request.identity.member_id in self.members
            peer.receive_response(
                request, ErrorResponse(0, 0 if known else ErrorCode.UNKNOWN_MEMBER_ID)
            )
            self.expire_member(request.identity.member_id)

    def expire_member(self, member_id: str) -> None:
        """Its session is over, or it left."""
        if self.members.pop(member_id, None) is not None:
            self._prepare_rebalance()
            self._complete_join()

    def end_rebalance_wait(self) -> list[str]:
        """The rebalance timeout: who has not joined is out."""
        late = [name for name, slot in self.members.items() if slot.pending_join is None]
        if self.is_joining:
            for name in late:
                del self.members[name]
            self._complete_join()
            return late
        return []

    def _handle_join(self, peer: MemberConnection, request: JoinRequest) -> None:
        name, _, instance = request.identity
        static = next(
            (m for m, s in self.members.items() if instance and s.instance_id == instance), ""
        )
        if not name and static:
            return self._replace_static_member(static, peer, request)
        if not name and not instance:
            name = f"member-{next(self._id_counter)}"
            self.known_member_ids.add(name)
            return peer.receive_response(
                request, JoinResponse(0, ErrorCode.MEMBER_ID_REQUIRED, member_id=name)
            )
        if static not in ("", name):
            return peer.receive_response(request, JoinResponse(0, ErrorCode.FENCED_INSTANCE_ID))
        if name and name not in self.members and name not in self.known_member_ids:
            return peer.receive_response(request, JoinResponse(0, ErrorCode.UNKNOWN_MEMBER_ID))
        name = name or f"{instance}-{next(self._id_counter)}"
        self.known_member_ids.discard(name)
        known = self.members.get(name)
        claim = request.subscription._replace(member_id=name)
        if (
            known is not None
            and known.subscription == claim
            and not self.is_joining
            and name != self.leader_id
        ):
            return peer.receive_response(request, self._build_join_response(name))
        self.members[name] = _MemberSlot(claim, instance, (peer, request))
        self._prepare_rebalance()
        self._complete_join()

    def _replace_static_member(
        self, old_id: str, peer: MemberConnection, request: JoinRequest
    ) -> None:
        """A static member is back: under another name, to what it had (KIP-345, KIP-814)."""
        name = f"{request.identity.instance_id}-{next(self._id_counter)}"
        slot = self.members.pop(old_id)
        slot.subscription = request.subscription._replace(member_id=name)
        self.members[name] = slot
        if self.leader_id == old_id:
            self.leader_id = name
        self.assignments[name] = self.assignments.pop(old_id, frozenset())
        if self.is_stable:
            return peer.receive_response(
                request,
                self._build_join_response(name)._replace(skip_assignment=self.leader_id == name),
            )
        slot.pending_join = peer, request
        self._prepare_rebalance()
        self._complete_join()

    def _build_join_response(self, member_id: str) -> JoinResponse:
        claims = tuple(slot.subscription for slot in self.members.values())
        return JoinResponse(
            0,
            0,
            self.generation,
            "cooperative-sticky",
            self.leader_id,
            member_id,
            claims if member_id == self.leader_id else (),
        )

    def _prepare_rebalance(self) -> None:
        self.is_stable, self.is_joining = False, True
        for slot in self.members.values():
            if slot.pending_sync is not None:
                (peer, ask), slot.pending_sync = slot.pending_sync, None
                peer.receive_response(ask, SyncResponse(0, ErrorCode.REBALANCE_IN_PROGRESS))

    def _complete_join(self) -> None:
        if any(slot.pending_join is None for slot in self.members.values()):
            return
        self.generation += 1
        self.rebalance_count += 1
        self.is_joining, self.assignments = not self.members, {}
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members), "")
        for name, slot in self.members.items():
            assert slot.pending_join is not None
            (peer, ask), slot.pending_join = slot.pending_join, None
            peer.receive_response(ask, self._build_join_response(name))

    def _check_identity(self, request: SyncRequest | HeartbeatRequest) -> int:
        name, _, instance = request.identity
        if name not in self.members:
            holders = [slot.instance_id for slot in self.members.values()]
            is_fenced = instance is not None and instance in holders
            return ErrorCode.FENCED_INSTANCE_ID if is_fenced else ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if request.identity.epoch == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _handle_sync(self, peer: MemberConnection, request: SyncRequest) -> None:
        name = request.identity.member_id
        if error := self._check_identity(request) or (
            ErrorCode.REBALANCE_IN_PROGRESS if self.is_joining else 0
        ):
            return peer.receive_response(request, SyncResponse(0, error))
        if self.is_stable:
            return peer.receive_response(
                request, SyncResponse(0, 0, self.assignments.get(name, frozenset()))
            )
        self.members[name].pending_sync = peer, request
        if name == self.leader_id and request.assignment is not None:
            self.assignments, self.is_stable = dict(request.assignment), True
            for member, slot in self.members.items():
                if slot.pending_sync is not None:
                    (one, asked), slot.pending_sync = slot.pending_sync, None
                    one.receive_response(
                        asked, SyncResponse(0, 0, self.assignments.get(member, frozenset()))
                    )


@dataclass
class MemberConnection:
    """One member and what lies between it and the coordinator.

    events: all it was told to do. revoking: what its listener has not let go yet.
    """

    member: ClassicMember
    response: tuple[GroupRequest, GroupResponse] | None = None
    in_flight: GroupRequest | None = None
    events: list[MemberEvent] = field(default_factory=list)
    revoking_partitions: frozenset[TopicPartition] = frozenset()

    def receive_response(self, request: GroupRequest, response: GroupResponse) -> None:
        """An answer is on its way; one to a question that was given up is not."""
        if request is self.in_flight:
            self.response = request, response

    def send_due(self, coordinator: ClassicGroupCoordinator, now: float) -> GroupRequest | None:
        """What is due, to the coordinator."""
        if (ask := self.member.next_request(now)) is not None:
            self.in_flight = ask
            coordinator.handle_request(self, ask)
        return ask

    def deliver_response(self, now: float) -> bool:
        """The answer that came, if one did."""
        if self.response is None:
            return False
        (ask, answer), self.response, self.in_flight = self.response, None, None
        self.apply_events(self.member.on_response(ask, answer, now))
        return True

    def drop_connection(self, now: float, retry_after: float = 0.0) -> None:
        """The connection breaks: whatever was asked has no answer."""
        if self.in_flight is not None:
            ask, self.in_flight, self.response = self.in_flight, None, None
            self.apply_events(self.member.on_no_response(ask, now, retry_after))

    def release_revoking(self, now: float) -> bool:
        gone, self.revoking_partitions = self.revoking_partitions, frozenset()
        if gone:
            self.apply_events(self.member.on_released(gone, now))
        return bool(gone)

    def apply_events(self, events: Iterable[MemberEvent]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, PartitionsRevoked):
                self.revoking_partitions |= event.tps
            elif isinstance(event, PartitionsLost):
                self.revoking_partitions -= event.tps

    @property
    def assignments(self) -> list[frozenset[TopicPartition]]:
        return [event.tps for event in self.events if isinstance(event, PartitionsAssigned)]


def create_member(
    instance_id: str | None = None, topics: Iterable[str] = ("orders",)
) -> ClassicMember:
    """One that wants `topics`, at time 0."""
    made = ClassicMember(
        "group",
        session_timeout=10.0,
        rebalance_timeout=60.0,
        heartbeat_interval=3.0,
        random=lambda: 0.5,
        instance_id=instance_id,
    )
    made.subscribe(tuple(topics), 0.0)
    return made


def build_topics(**partitions: int) -> dict[str, TopicInfo]:
    return {name: TopicInfo(None, count) for name, count in partitions.items()}


def is_settled(coordinator: ClassicGroupCoordinator, peers: Iterable[MemberConnection]) -> bool:
    """Everybody runs in the group's generation. (A member may think so of an earlier one.)"""
    return all(
        peer.member.state is MemberState.RUNNING
        and peer.member.identity.epoch == coordinator.generation
        and peer.member.identity.member_id in coordinator.members
        and coordinator.is_stable
        for peer in peers
    )


def settle_group(
    coordinator: ClassicGroupCoordinator, peers: Iterable[MemberConnection], now: float
) -> float:
    """Until nobody has anything to say or to give up, heartbeats apart. The time it is then."""
    peers = list(peers)
    for _ in range(400):
        busy = [peer.deliver_response(now) or peer.release_revoking(now) for peer in peers]
        busy += [
            isinstance(peer.send_due(coordinator, now), (JoinRequest, SyncRequest))
            for peer in peers
        ]
        if not any(busy) and not any(peer.response for peer in peers):
            if is_settled(coordinator, peers):
                return now
            now += 1.0  # a heartbeat or a retry is due
    raise AssertionError("the group does not settle")
