"""What a member of a consumer group sends next and when, and what the answers did to it.

Two protocols fit: KIP-848 (`consumer_member`) and the classic one with cooperative rebalancing
(`classic_member`, KIP-429). Sans-I/O: time is an argument, in seconds of any monotonic clock;
`kafka/group/group_member` is the shell. It keeps at most one ask under way, and does this for ever:

    wait until member.due or until something was told to the member
    ask = member.ask(now)               # None: nothing after all
    events = member.answered(ask, answer, now), or member.unanswered(ask, now, retry_after)
    act on the events, in order

An ask is plain data, a subclass of `Ask`; a `Request` of `kafka/` wraps it (`JoinRequest(ask)`) and
decodes to the core's answer, whose `error` is Kafka's code. `REQUESTS` in the module of a
protocol's messages says which request carries which ask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from gateway.core.log.record import TopicPartition

NO_GENERATION = -1  # of who is no member: what is committed with it is not fenced


class MemberState(StrEnum):
    """REBALANCING: joining, giving up, or not through with a new assignment.

    FAILED: the coordinator does not let the member in. It may be tried again: see `Failed`.
    """

    REBALANCING = "rebalancing"
    RUNNING = "running"
    FAILED = "failed"
    LEFT = "left"


class MemberIdentity(NamedTuple):
    """What a commit says of its member. epoch: the generation, or the member's epoch (KIP-848)."""

    member_id: str
    epoch: int
    instance_id: str | None = None


class TopicInfo(NamedTuple):
    """What metadata says. id: None where the broker has none (before Kafka 2.8)."""

    id: UUID | None
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """One request to the group's coordinator.

    held: seconds for which it may be held back (JoinGroup, SyncGroup). One that is held goes over
          a connection of its own: Kafka answers the requests of one connection in their order.
    """

    group: str
    max_hold: float = 0.0


class GroupResponse(Protocol):
    @property
    def error(self) -> int: ...


class PartitionsAssigned(NamedTuple):
    """They are the member's from now on, and in `owned`."""

    tps: frozenset[TopicPartition]


class PartitionsRevoked(NamedTuple):
    """To be given up. They are owned (and may be committed) until `released`, which must come."""

    tps: frozenset[TopicPartition]


class PartitionsLost(NamedTuple):
    """They are not the member's any more and may be another's: nothing may be committed."""

    tps: frozenset[TopicPartition]
    reason: str


class CoordinatorMoved(NamedTuple):
    """The coordinator is another one, or was not ready: to be looked up before the next ask."""


class MembershipFailed(NamedTuple):
    """The coordinator does not let the member in, which owns nothing any more.

    error:    Kafka's code.
    is_final: nothing but another configuration of this process helps. Otherwise the member asks
              again, slowly, because the reason may pass by itself: a right is given back, or
              other members leave.
    """

    error: int
    reason: str
    is_final: bool


MemberEvent: TypeAlias = (
    PartitionsAssigned | PartitionsRevoked | PartitionsLost | CoordinatorMoved | MembershipFailed
)


class GroupMembership(Protocol):
    """One member of one group. Methods that take `now` may move `due`."""

    @property
    def state(self) -> MemberState: ...

    @property
    def is_closed(self) -> bool:
        """Nothing is asked any more: it was left, or failed for good."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What may be read and committed; with what is being revoked."""

    @property
    def identity(self) -> MemberIdentity: ...

    @property
    def needed_topics(self) -> frozenset[str]:
        """Topics whose metadata the member needs (a leader: of all members')."""

    @property
    def has_unknown_topics(self) -> bool:
        """It was told of a topic that `learn` does not know: metadata is to be asked for anew."""

    @property
    def next_request_at(self) -> float:
        """When `ask` is to be called: infinity while an ask is under way or all is over."""

    def subscribe(self, topics: Collection[str], now: float) -> None:
        """From now on these topics and no others; the coordinator hears of it soon."""

    def on_metadata(self, topics: Mapping[str, TopicInfo], now: float) -> Sequence[MemberEvent]:
        """All that metadata knows of `interest`, whenever some of it changed."""

    def next_request(self, now: float) -> GroupRequest | None:
        """What to send now, None for nothing (see `due` again)."""

    def on_response(
        self, ask: GroupRequest, answer: GroupResponse, now: float
    ) -> Sequence[MemberEvent]: ...

    def on_no_response(
        self, ask: GroupRequest, now: float, retry_after: float
    ) -> Sequence[MemberEvent]:
        """No answer came: the coordinator may have got the ask or not. retry_after in seconds."""

    def on_released(self, tps: frozenset[TopicPartition], now: float) -> Sequence[MemberEvent]:
        """The work on what was `Revoking` is over; now the coordinator may hear of it."""

    def heartbeat_soon(self, now: float) -> None:
        """A commit was refused as stale, fenced or amid a rebalance: ask soon."""

    def leave(self, now: float) -> GroupRequest | None:
        """The last thing to send (None: nothing, as for a classic static member). LEFT after it."""
