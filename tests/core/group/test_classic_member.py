from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.classic_group import (
    ClassicGroupCoordinator,
    MemberConnection,
    build_topics,
    create_member,
    is_settled,
    settle_group,
)

from gateway.core.error_code import ErrorCode
from gateway.core.group.classic_member import FIRST_HEARTBEAT_S, METADATA_WAIT_S, ClassicMember
from gateway.core.group.member import (
    FATAL_ERRORS,
    RETRIABLE_ERRORS,
    CoordinatorMoved,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    MemberIdentity,
    MembershipFailed,
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


def tps(*partitions: int, topic: str = "orders") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, one) for one in partitions)


def build_peer(partitions: int = 4, **options: str) -> MemberConnection:
    one = create_member(**options)
    one.on_metadata(build_topics(orders=partitions), 0.0)
    return MemberConnection(one)


@pytest.fixture
def group() -> ClassicGroupCoordinator:
    return ClassicGroupCoordinator()


@pytest.fixture
def alone(group: ClassicGroupCoordinator) -> MemberConnection:
    """A member that has everything."""
    one = build_peer()
    settle_group(group, [one], 0.0)
    assert one.member.owned == tps(0, 1, 2, 3)
    return one


def test_who_joins_first_asks_for_a_name_leads_and_has_all(group: ClassicGroupCoordinator):
    one = build_peer()
    first = one.send_due(group, 0.0)
    assert isinstance(first, JoinRequest) and first.identity == MemberIdentity("", -1)
    one.deliver_response(0.0)
    second = one.send_due(group, 0.0)
    assert isinstance(second, JoinRequest) and second.identity == MemberIdentity("member-0", -1)
    one.deliver_response(0.0)
    given_out = one.send_due(group, 0.0)
    assert isinstance(given_out, SyncRequest) and given_out.assignment == {
        "member-0": tps(0, 1, 2, 3)
    }
    assert one.member.state is MemberState.REBALANCING and not one.member.owned
    one.deliver_response(0.0)
    assert one.events == [PartitionsAssigned(tps(0, 1, 2, 3))]
    assert one.member.state is MemberState.RUNNING and one.member.identity == MemberIdentity(
        "member-0", 1
    )


def test_heartbeats_come_soon_after_an_assignment_and_then_at_their_interval(group, alone):
    """What others gave up waits until everybody has heard of the next round."""
    waits, now = [], 0.0
    for _ in range(8):
        assert alone.send_due(group, alone.member.next_request_at - 0.01) is None
        waits.append(alone.member.next_request_at - now)
        now = alone.member.next_request_at
        assert isinstance(alone.send_due(group, now), HeartbeatRequest)
        assert alone.member.next_request_at == float("inf")
        alone.deliver_response(now)
    assert waits[0] <= FIRST_HEARTBEAT_S < waits[2] < waits[4] < waits[-1]
    assert 0.8 * 3.0 <= waits[-1] <= 3.0


def test_who_is_there_keeps_what_it_keeps_while_another_joins(group, alone):
    """Two rounds, and nothing but what moves is ever touched."""
    two = build_peer()
    settle_group(group, [alone, two], 10.0)
    assert alone.events[1:] == [PartitionsRevoked(tps(2, 3))]
    assert (alone.member.owned, two.member.owned) == (tps(0, 1), tps(2, 3))
    assert two.events == [PartitionsAssigned(tps(2, 3))]
    assert {one.member.state for one in (alone, two)} == {MemberState.RUNNING}
    assert group.rebalance_count == 3


def test_what_is_given_up_is_held_until_it_is_released_with_heartbeats(group, alone):
    two = build_peer()
    now = 10.0
    while not alone.revoking_partitions:
        for one in (two, alone):
            one.send_due(group, now)
            one.deliver_response(now)
        now += 1
    assert alone.member.owned == tps(0, 1, 2, 3)
    for _ in range(3):
        now = alone.member.next_request_at
        assert isinstance(alone.send_due(group, now), HeartbeatRequest)
        alone.deliver_response(now)
    assert alone.member.state is MemberState.REBALANCING and not two.member.owned
    alone.release_revoking(now)
    again = alone.send_due(group, now)
    assert isinstance(again, JoinRequest) and again.subscription.owned == tps(0, 1)
    settle_group(group, [alone, two], now)
    assert two.member.owned == tps(2, 3)


def test_what_who_left_had_goes_to_others_who_give_up_nothing(group, alone):
    two = build_peer()
    now = settle_group(group, [alone, two], 10.0)
    last = alone.member.leave(now)
    assert isinstance(last, LeaveRequest) and alone.member.state is MemberState.LEFT
    assert alone.member.next_request_at == float("inf") and alone.member.leave(now) is None
    group.handle_request(alone, last)
    settle_group(group, [two], now)
    assert two.events == [PartitionsAssigned(tps(2, 3)), PartitionsAssigned(tps(0, 1))]


def test_who_never_joined_has_nothing_to_leave():
    assert create_member().leave(0.0) is None


def test_a_static_member_says_nothing_as_it_leaves_and_comes_back_to_what_it_had(group):
    static, other = build_peer(instance_id="pod-0"), build_peer()
    now = settle_group(group, [static, other], 0.0)
    had, rebalances, others = static.member.owned, group.rebalance_count, list(other.events)
    assert static.member.leave(now) is None
    back = build_peer(instance_id="pod-0")
    settle_group(group, [back, other], now)
    assert back.events == [PartitionsAssigned(had)]
    assert (group.rebalance_count, other.events) == (rebalances, others)


def test_a_static_leader_that_is_back_changes_nothing(group: ClassicGroupCoordinator):
    static, other = build_peer(instance_id="pod-0"), build_peer()
    now = settle_group(group, [static, other], 0.0)
    assert group.leader_id == static.member.identity.member_id
    back = build_peer(instance_id="pod-0")
    back.send_due(group, now)
    back.deliver_response(now)
    ask = back.send_due(group, now)
    assert isinstance(ask, SyncRequest) and ask.assignment is None


def test_the_elder_of_two_with_one_instance_id_joins_again_once_the_younger_has_gone(
    group: ClassicGroupCoordinator,
):
    """It was fenced for good: when the younger one had stopped, nobody read the group. Before that
    it must not take the id back."""
    elder, younger = build_peer(instance_id="pod-0"), build_peer(instance_id="pod-0")
    now = settle_group(group, [elder], 0.0)
    settle_group(group, [younger], now)
    for attempt in range(4):
        now = elder.member.next_request_at
        assert isinstance(elder.send_due(group, now), HeartbeatRequest)
        elder.deliver_response(now)
        assert elder.member.state is MemberState.FAILED and not elder.member.is_closed
        assert elder.member.next_request_at >= now + 1.0
        if attempt == 0:
            _, lost, failed = elder.events
            assert isinstance(lost, PartitionsLost) and lost.tps == tps(0, 1, 2, 3)
            assert isinstance(failed, MembershipFailed) and not failed.is_final
    assert younger.member.owned == tps(0, 1, 2, 3) and not group.is_joining
    group.expire_member(younger.member.identity.member_id)
    settle_group(group, [elder], elder.member.next_request_at)
    assert elder.member.state is MemberState.RUNNING and elder.member.owned == tps(0, 1, 2, 3)


@pytest.mark.parametrize("error", FATAL_ERRORS)
def test_what_cannot_be_mended_ends_the_membership_and_says_why(error: int):
    one = create_member()
    ask = one.next_request(0.0)
    assert ask is not None
    assert one.on_response(ask, JoinResponse(0, error), 0.0) == [
        MembershipFailed(error, FATAL_ERRORS[error], True)
    ]
    assert one.next_request(1e9) is None and one.is_closed


@pytest.mark.parametrize("error", RETRIABLE_ERRORS)
def test_a_refusal_that_may_pass_is_tried_again_slowly(error: int):
    """A right that was taken away for seconds ended the membership until a restart.

    Between two refusals the coordinator forgets the member, as it does with one that may not say
    that it lives. That makes the next attempt no sooner.
    """
    one, now, delays = create_member(), 0.0, []
    for _ in range(5):
        ask = one.next_request(now)
        assert isinstance(ask, JoinRequest) and not ask.subscription.owned
        assert one.on_response(ask, JoinResponse(0, error), now) == [
            MembershipFailed(error, RETRIABLE_ERRORS[error], False)
        ]
        assert one.state is MemberState.FAILED and not one.is_closed
        one.subscribe(["orders"], now)  # as often as a pattern is looked at
        one.heartbeat_soon(now)
        delays.append(one.next_request_at - now)
        now = one.next_request_at
        if (ask := one.next_request(now)) is not None:
            one.on_response(ask, JoinResponse(0, ErrorCode.UNKNOWN_MEMBER_ID), now)
            now = one.next_request_at
    assert delays == pytest.approx([5.0, 5.0, 10.0, 20.0, 30.0])  # the draws are 0.5


@pytest.mark.parametrize("expired", [False, True])
def test_a_member_whose_right_is_back_has_all_that_it_had(group, alone, expired):
    had, now = alone.member.owned, alone.member.next_request_at
    name = alone.member.identity.member_id
    ask = alone.member.next_request(now)
    assert ask is not None
    refusal = ErrorResponse(0, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    alone.apply_events(events := alone.member.on_response(ask, refusal, now))
    assert [type(event) for event in events] == [
        PartitionsLost,
        MembershipFailed,
    ] and not alone.member.owned
    alone.in_flight = None
    if expired:
        group.expire_member(name)
    settle_group(group, [alone], now)
    assert alone.member.owned == had and alone.member.state is MemberState.RUNNING


@pytest.mark.parametrize(
    ("error", "name"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "member-0")],
)
def test_who_is_forgotten_has_lost_all_and_joins_anew(alone, error, name):
    now = alone.member.next_request_at
    ask = alone.member.next_request(now)
    assert ask is not None
    (lost,) = alone.member.on_response(ask, ErrorResponse(0, error), now)
    assert (
        isinstance(lost, PartitionsLost) and lost.tps == tps(0, 1, 2, 3) and not alone.member.owned
    )
    again = alone.member.next_request(now)
    assert isinstance(again, JoinRequest) and again.identity == MemberIdentity(name, -1)
    assert (again.subscription.owned, again.subscription.generation) == (frozenset(), -1)


def test_who_is_forgotten_again_and_again_is_not_in_a_hurry():
    one = create_member()
    ask = one.next_request(0.0)
    assert ask is not None
    one.on_response(ask, JoinResponse(0, ErrorCode.UNKNOWN_MEMBER_ID), 0.0)
    assert one.next_request(0.0) is None and 0.0 < one.next_request_at <= 2.0


def test_another_coordinator_is_looked_up_and_what_is_owned_stays(alone: MemberConnection):
    now = alone.member.next_request_at
    ask = alone.member.next_request(now)
    assert ask is not None
    assert alone.member.on_response(ask, ErrorResponse(0, ErrorCode.NOT_COORDINATOR), now) == [
        CoordinatorMoved()
    ]
    assert alone.member.owned == tps(0, 1, 2, 3)
    assert isinstance(alone.member.next_request(alone.member.next_request_at), HeartbeatRequest)


def test_after_the_session_timeout_without_a_word_all_is_lost(group, alone):
    now = 0.0
    while (now := alone.member.next_request_at) < 10.0:
        alone.send_due(group, now)
        alone.drop_connection(now, retry_after=1.0)
    now = max(10.1, alone.member.next_request_at)
    alone.send_due(group, now)
    alone.drop_connection(now)
    assert isinstance(alone.events[-1], PartitionsLost) and not alone.member.owned
    settle_group(group, [alone], now)
    assert alone.member.owned == tps(0, 1, 2, 3)


def test_an_assignment_whose_answer_was_lost_is_asked_for_again(group: ClassicGroupCoordinator):
    one = build_peer()
    for _ in range(2):
        one.send_due(group, 0.0)
        one.deliver_response(0.0)
    one.send_due(group, 0.0)
    one.drop_connection(0.0)
    settle_group(group, [one], one.member.next_request_at)
    assert one.events == [PartitionsAssigned(tps(0, 1, 2, 3))] and group.rebalance_count == 1


def test_a_rebalance_that_begins_before_the_assignment_is_told_is_joined(alone: MemberConnection):
    alone.member.subscribe(["orders", "prices"], 1.0)
    join = alone.member.next_request(1.0)
    assert isinstance(join, JoinRequest) and join.subscription.topics == {"orders", "prices"}
    alone.member.on_response(join, JoinResponse(0, 0, 7, "", "another", "member-0"), 1.0)
    sync = alone.member.next_request(1.0)
    assert isinstance(sync, SyncRequest) and sync.assignment is None
    events = alone.member.on_response(sync, SyncResponse(0, ErrorCode.REBALANCE_IN_PROGRESS), 1.0)
    again = alone.member.next_request(1.0)
    assert not events and isinstance(again, JoinRequest)
    # The generation that gave it what it has, not the one whose assignment it never heard.
    assert (again.subscription.owned, again.subscription.generation) == (tps(0, 1, 2, 3), 1)


def test_a_commit_that_was_refused_brings_the_next_heartbeat_forward(alone: MemberConnection):
    alone.member.heartbeat_soon(0.5)
    assert isinstance(alone.member.next_request(0.5), HeartbeatRequest)


def test_a_leader_waits_for_metadata_of_all_topics_of_all_members(group, alone):
    two = MemberConnection(create_member(topics=["prices"]))
    now = 10.0
    while not alone.member.has_unknown_topics:
        for one in (two, alone):
            one.deliver_response(now)
            one.send_due(group, now)
        now += 1
    assert alone.member.needed_topics == {"orders", "prices"}
    assert alone.member.next_request(now) is None
    alone.member.on_metadata(build_topics(orders=4, prices=2), now)
    assert not alone.member.has_unknown_topics
    settle_group(group, [alone, two], now)
    assert two.member.owned == tps(0, 1, topic="prices")
    assert alone.member.owned == tps(0, 1, 2, 3)


def test_a_leader_waits_once_for_a_topic_that_does_not_exist():
    one = MemberConnection(create_member(topics=["orders", "gone"]))
    one.member.on_metadata(build_topics(orders=1), 0.0)
    group, now = ClassicGroupCoordinator(), 0.0
    while not one.member.has_unknown_topics:
        one.send_due(group, now)
        one.deliver_response(now)
    assert one.member.next_request_at == now + METADATA_WAIT_S
    now = settle_group(group, [one], now)
    assert one.member.owned == tps(0) and not one.member.has_unknown_topics
    settle_group(group, [one, MemberConnection(create_member())], now)
    assert not one.member.has_unknown_topics and now == METADATA_WAIT_S


def test_a_leader_gives_out_partitions_that_are_new(group, alone):
    alone.member.on_metadata(build_topics(orders=4, other=1), 1.0)
    assert alone.member.state is MemberState.RUNNING
    alone.member.on_metadata(build_topics(orders=6), 1.0)
    settle_group(group, [alone], 1.0)
    assert alone.events[1:] == [PartitionsAssigned(tps(4, 5))]


def test_a_topic_that_was_made_anew_is_lost_and_taken_from_its_start(alone: MemberConnection):
    """The coordinator goes by names and tells nobody: it was never read again."""
    first, second = UUID(int=1), UUID(int=2)
    assert alone.member.on_metadata({"orders": TopicInfo(first, 4)}, 1.0) == []
    alone.events.clear()
    alone.apply_events(alone.member.on_metadata({"orders": TopicInfo(second, 3)}, 2.0))
    lost, taken = alone.events
    assert isinstance(lost, PartitionsLost) and lost.tps == tps(0, 1, 2, 3)
    assert taken == PartitionsAssigned(tps(0, 1, 2))
    assert alone.member.owned == tps(0, 1, 2)
    assert alone.member.on_metadata({"orders": TopicInfo(second, 3)}, 3.0) == []


def test_what_is_being_given_up_of_a_topic_that_is_made_anew_is_given_up_at_once(group, alone):
    alone.member.on_metadata({"orders": TopicInfo(UUID(int=1), 4)}, 1.0)
    other = build_peer()
    for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        for each in (alone, other):
            each.send_due(group, now)
            each.deliver_response(now)
        if alone.revoking_partitions:
            break
    assert alone.revoking_partitions
    gone = alone.revoking_partitions
    alone.apply_events(alone.member.on_metadata({"orders": TopicInfo(UUID(int=2), 4)}, 7.0))
    assert alone.member.owned == tps(0, 1, 2, 3) - gone
    settle_group(group, [alone, other], 8.0)
    assert alone.member.owned | other.member.owned == tps(0, 1, 2, 3)


def test_topics_no_longer_wanted_are_given_up(group, alone):
    alone.member.subscribe(["orders"], 1.0)
    assert alone.member.state is MemberState.RUNNING
    alone.member.subscribe(["prices"], 1.0)
    alone.member.on_metadata(build_topics(orders=4, prices=1), 1.0)
    settle_group(group, [alone], 1.0)
    assert alone.member.owned == tps(0, topic="prices")
    assert alone.events[1:] == [
        PartitionsAssigned(tps(0, topic="prices")),
        PartitionsRevoked(tps(0, 1, 2, 3)),
    ]


def test_an_answer_to_what_was_given_up_changes_nothing(alone: MemberConnection):
    now = alone.member.next_request_at
    stale = alone.member.next_request(now)
    assert stale is not None
    alone.member.on_no_response(stale, now, 0.0)
    assert not alone.member.on_response(stale, ErrorResponse(0, ErrorCode.UNKNOWN_MEMBER_ID), now)
    assert alone.member.owned == tps(0, 1, 2, 3)


# What may happen to a group. Every number picks the member that it happens to.
HAPPENINGS = ("send", "take", "release", "cut", "lose", "join", "leave", "crash", "expire", "late")
STORY = st.lists(
    st.tuples(st.sampled_from(("send", "take", "release", *HAPPENINGS)), st.integers(0, 9)),
    max_size=120,
)


class GroupStory:
    """A group to which things happen; nobody may ever read what another reads."""

    def __init__(self, static: bool, partitions: int) -> None:
        self.group = ClassicGroupCoordinator()
        self.is_static = static
        self.partitions = partitions
        self.peers: list[MemberConnection] = []
        self.unaware_peers: set[int] = set()  # who is out and has not heard of it
        self.now = 0.0
        self.created_count = 0

    def apply_step(self, what: str, number: int) -> None:
        self.now += 0.25
        if what == "join":
            if len(self.peers) > 4:
                return
            self.created_count += 1
            name = f"pod-{self.created_count}" if self.is_static else None
            self.peers.append(MemberConnection(create_member(name)))
            self.peers[-1].member.on_metadata(build_topics(orders=self.partitions), self.now)
        elif what == "late":
            self._forget(self.group.end_rebalance_wait())
        elif self.peers:
            getattr(self, f"_{what}")(self.peers[number % len(self.peers)])
        self.check_ownership()

    def _send(self, one: MemberConnection) -> None:
        one.send_due(self.group, self.now)

    def _take(self, one: MemberConnection) -> None:
        before = len(one.events)
        one.deliver_response(self.now)
        if any(isinstance(event, PartitionsLost) for event in one.events[before:]):
            self.unaware_peers.discard(id(one))

    def _release(self, one: MemberConnection) -> None:
        one.release_revoking(self.now)

    def _cut(self, one: MemberConnection) -> None:
        one.drop_connection(self.now)

    def _lose(self, one: MemberConnection) -> None:
        """What it asks never arrives."""
        if (ask := one.member.next_request(self.now)) is not None:
            one.apply_events(one.member.on_no_response(ask, self.now, 0.5))

    def _leave(self, one: MemberConnection) -> None:
        self.peers.remove(one)
        if (ask := one.member.leave(self.now)) is not None:
            self.group.handle_request(one, ask)

    def _crash(self, one: MemberConnection) -> None:
        self.peers.remove(one)

    def _expire(self, one: MemberConnection) -> None:
        """The session of one that lives is over, as after a long pause."""
        name = one.member.identity.member_id
        if name in self.group.members:
            self._forget([name])
            self.group.expire_member(name)

    def _forget(self, names: list[str]) -> None:
        self.unaware_peers |= {
            id(one) for one in self.peers if one.member.identity.member_id in names
        }

    def check_ownership(self) -> None:
        reading = [one.member for one in self.peers if id(one) not in self.unaware_peers]
        owned = [tp for one in reading for tp in one.owned]
        assert len(owned) == len(set(owned))
        for one in self.peers:
            assert one.revoking_partitions <= one.member.owned

    def finish(self) -> None:
        """The coordinator finds out who is gone; then all is shared among who is left."""
        for one in self.peers:
            one.drop_connection(self.now)
        living = {one.member.identity.member_id for one in self.peers}
        for name in set(self.group.members) - living:
            self.group.expire_member(name)
        self.group.known_member_ids.clear()
        self._settle()
        loads = [len(one.member.owned) for one in self.peers]
        if self.peers:
            assert sum(loads) == self.partitions and max(loads) - min(loads) <= 1
            assert {one.member.state for one in self.peers} == {MemberState.RUNNING}

    def _settle(self) -> None:
        for _ in range(100):
            if is_settled(self.group, self.peers):
                return
            for one in self.peers:
                for what in (self._send, self._take, self._release):
                    what(one)
                    self.check_ownership()
            self.now += 1.0
            if self.group.is_joining and self.now % 20 < 1:
                self._forget(self.group.end_rebalance_wait())
        raise AssertionError("the group does not settle")


@given(story=STORY, static=st.booleans(), partitions=st.integers(0, 7))
def test_whatever_happens_no_two_read_the_same_and_in_the_end_all_is_read(
    story, static, partitions
):
    told = GroupStory(static, partitions)
    for what, number in [("join", 0), ("join", 0), *story]:
        told.apply_step(what, number)
    told.finish()


def test_a_member_is_made_of_what_the_group_says():
    one = ClassicMember("g", 10.0, 60.0, 3.0, random=lambda: 0.0)
    assert one.next_request(0.0) is None and one.next_request_at == float("inf")
