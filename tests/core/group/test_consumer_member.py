"""A member by KIP-848, alone and against a small coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.consumer_group import ConsumerGroupCoordinator, build_response

from gateway.core.group.consumer_member import (
    FATAL_ERRORS,
    RETRIABLE_ERRORS,
    ConsumerHeartbeatRequest,
    ConsumerMember,
)
from gateway.core.group.member import (
    CoordinatorMoved,
    MemberEvent,
    MembershipFailed,
    MemberState,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    TopicInfo,
)
from gateway.core.log.record import TopicPartition

ID, NEW_ID = UUID(int=7), UUID(int=8)


def tps(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", p) for p in partitions)


def build_topic_partitions(*partitions: int, topic: UUID = ID) -> frozenset[tuple[UUID, int]]:
    return frozenset((topic, p) for p in partitions)


def build_member(id: str = "m", **options) -> ConsumerMember:
    made = ConsumerMember("g", id, 60.0, lambda: 0.5, **options)
    made.on_metadata({"orders": TopicInfo(ID, 6)}, 0.0)
    made.subscribe(["orders"], 0.0)
    return made


def apply_response(
    consumer_member: ConsumerMember, response, now: float = 0.0
) -> list[MemberEvent]:
    """What the answer to the next ask did."""
    ask = consumer_member.next_request(max(now, consumer_member.next_request_at))
    assert ask is not None
    return list(consumer_member.on_response(ask, response, now))


def build_owner(*partitions: int, epoch: int = 1) -> ConsumerMember:
    """One that owns these, and has said so."""
    made = build_member()
    apply_response(made, build_response(0, epoch, build_topic_partitions(*partitions)))
    apply_response(made, build_response(0, epoch))
    assert made.state is MemberState.RUNNING
    return made


def test_joins_with_epoch_0_and_says_everything():
    ask = build_member(instance_id="i").next_request(0.0)
    assert ask == ConsumerHeartbeatRequest(
        group="g", member_id="m", epoch=0, instance_id="i", rebalance_timeout=60.0,
        topics=("orders",), owned=frozenset(),
    )  # fmt: skip


def test_asks_nothing_before_it_is_subscribed_nor_while_an_ask_is_under_way():
    unsubscribed = ConsumerMember("g", "m", 60.0, lambda: 0.5)
    assert unsubscribed.next_request(100.0) is None
    joining = build_member()
    assert joining.next_request(0.0) is not None
    assert joining.next_request(100.0) is None


def test_acknowledges_what_it_was_assigned_at_once():
    one = build_member()
    assert apply_response(one, build_response(0, 1, build_topic_partitions(0, 1))) == [
        PartitionsAssigned(tps(0, 1))
    ]
    assert one.state is MemberState.REBALANCING
    ask = one.next_request(0.0)
    assert ask is not None and ask.owned == build_topic_partitions(0, 1) and ask.epoch == 1
    one.on_response(ask, build_response(0, 1), 0.0)
    assert one.state is MemberState.RUNNING


def test_says_only_what_changed_once_the_broker_knows_it():
    one = build_owner(0)
    ask = one.next_request(one.next_request_at)
    assert ask is not None and (ask.topics, ask.owned, ask.rebalance_timeout) == (None,) * 3
    one.on_response(ask, build_response(0, 1), 10.0)
    one.subscribe(["orders", "more"], 11.0)
    ask = one.next_request(11.0)
    assert ask is not None and ask.topics == ("more", "orders") and ask.owned is None


def test_gives_up_first_says_so_when_released_and_takes_new_ones_only_then():
    one = build_owner(0, 1)
    assert apply_response(one, build_response(0, 1, build_topic_partitions(0, 2)), 5.0) == [
        PartitionsRevoked(tps(1))
    ]
    assert one.owned == tps(0, 1) and one.state is MemberState.REBALANCING
    beat = one.next_request(one.next_request_at)
    assert beat is not None and beat.owned is None  # it lives, and owns what it did
    one.on_response(beat, build_response(0, 1), 9.0)
    assert one.on_released(tps(1), 10.0) == [PartitionsAssigned(tps(2))]
    beat = one.next_request(10.0)
    assert beat is not None and beat.owned == build_topic_partitions(0, 2)


def test_what_is_revoked_and_given_back_meanwhile_is_released_all_the_same():
    one = build_owner(0, 1)
    apply_response(one, build_response(0, 1, build_topic_partitions(0)), 5.0)
    assert apply_response(one, build_response(0, 2, build_topic_partitions(0, 1)), 10.0) == []
    assert one.on_released(tps(1), 11.0) == [PartitionsAssigned(tps(1))]


@pytest.mark.parametrize("error", [25, 110])
def test_who_is_forgotten_or_fenced_has_lost_all_and_joins_again_under_the_same_name(error):
    one = build_owner(0, 1)
    (lost,) = apply_response(one, build_response(error), 5.0)
    assert isinstance(lost, PartitionsLost) and lost.tps == tps(0, 1)
    assert one.owned == frozenset() and one.identity.epoch == -1
    beat = one.next_request(5.0)
    assert beat is not None and beat.epoch == 0 and beat.owned == frozenset()
    assert beat.member_id == "m"


def test_who_is_fenced_amid_a_revocation_is_released_of_nothing():
    one = build_owner(0, 1)
    apply_response(one, build_response(0, 1, build_topic_partitions(0)), 5.0)
    apply_response(one, build_response(110), 9.0)
    assert one.on_released(tps(1), 10.0) == []
    assert one.owned == frozenset()


def test_after_an_answer_that_did_not_come_it_says_everything_again():
    one = build_owner(0)
    ask = one.next_request(one.next_request_at)
    assert ask is not None
    one.on_no_response(ask, 10.0, 0.5)
    assert one.next_request(10.4) is None
    again = one.next_request(10.5)
    assert (
        again is not None
        and again.is_full
        and again.owned == build_topic_partitions(0)
        and again.epoch == 1
    )


@pytest.mark.parametrize("error, looks_up", [(14, False), (15, True), (16, True)])
def test_a_coordinator_that_moved_is_looked_up_and_costs_no_partition(error, looks_up):
    one = build_owner(0)
    assert apply_response(one, build_response(error), 5.0) == (
        [CoordinatorMoved()] if looks_up else []
    )
    assert one.owned == tps(0)
    assert 5.0 < one.next_request_at < 5.2


@pytest.mark.parametrize("error", FATAL_ERRORS)
def test_what_cannot_be_helped_ends_the_membership(error):
    one = build_owner(0)
    lost, failed = apply_response(one, build_response(error), 5.0)
    assert (
        isinstance(lost, PartitionsLost)
        and isinstance(failed, MembershipFailed)
        and failed.error == error
    )
    assert failed.is_final and one.is_closed
    assert (
        one.state is MemberState.FAILED and one.next_request(1e9) is None and one.leave(1e9) is None
    )


@pytest.mark.parametrize("error", RETRIABLE_ERRORS)
def test_a_refusal_that_may_pass_is_tried_again_slowly_until_it_has(error):
    """A right that was taken away for seconds ended the membership until a restart."""
    one = build_member()
    apply_response(one, build_response(error))
    delays = []
    for _ in range(6):
        assert one.state is MemberState.FAILED and not one.is_closed and not one.owned
        now = one.next_request_at
        one.subscribe(["orders"], now - 1.0)  # as often as a pattern is looked at
        one.heartbeat_soon(now - 1.0)
        assert one.next_request(now - 0.1) is None
        (failed,) = apply_response(one, build_response(error), now)
        assert isinstance(failed, MembershipFailed) and not failed.is_final
        delays.append(one.next_request_at - now)
    assert delays == pytest.approx([5.0, 10.0, 20.0, 30.0, 30.0, 30.0])  # the draws are 0.5
    assert apply_response(
        one, build_response(0, 3, build_topic_partitions(0)), one.next_request_at
    ) == [PartitionsAssigned(tps(0))]
    now = one.next_request_at
    apply_response(one, build_response(30), now)
    assert one.next_request_at - now == pytest.approx(5.0), (
        "the next refusal is the first of its kind"
    )


def test_a_member_whose_right_is_back_joins_with_nothing_and_owns_what_it_is_given():
    one = build_owner(0, 1)
    lost, _ = apply_response(one, build_response(30), 5.0)
    assert isinstance(lost, PartitionsLost) and lost.tps == tps(0, 1)
    beat = one.next_request(one.next_request_at)
    assert (
        isinstance(beat, ConsumerHeartbeatRequest) and beat.epoch == 0 and beat.owned == frozenset()
    )
    assert one.on_response(beat, build_response(0, 7, build_topic_partitions(0, 1)), 20.0) == [
        PartitionsAssigned(tps(0, 1))
    ]
    assert one.identity.epoch == 7 and one.state is not MemberState.FAILED


def test_other_topics_are_asked_for_at_once_where_the_former_ones_are_denied():
    one = build_member()
    apply_response(one, build_response(29))
    one.subscribe(["payments"], 1.0)
    beat = one.next_request(1.0)
    assert isinstance(beat, ConsumerHeartbeatRequest) and beat.topics == ("payments",)


def test_a_group_that_was_deleted_is_joined_anew():
    """A member that was away for longer than its group lived stayed out of it for ever."""
    one = build_owner(0)
    (lost,) = apply_response(one, build_response(69), 5.0)
    assert (
        isinstance(lost, PartitionsLost)
        and one.state is MemberState.REBALANCING
        and one.next_request_at == 5.0
    )


def test_an_instance_id_that_is_not_free_yet_is_asked_for_again():
    one = build_member(instance_id="i")
    (failed,) = apply_response(one, build_response(111))
    assert isinstance(failed, MembershipFailed) and not failed.is_final
    assert 0.0 < one.next_request_at <= 2.0
    assert apply_response(
        one, build_response(0, 1, build_topic_partitions(0)), one.next_request_at
    ) == [PartitionsAssigned(tps(0))]


def test_the_broker_says_how_often_unless_the_member_wants_it_oftener():
    calm = build_owner(0)
    apply_response(calm, build_response(0, 1), 100.0)
    assert 104.0 <= calm.next_request_at <= 105.0
    eager = build_member(heartbeat_interval=0.2)
    apply_response(eager, build_response(0, 1, frozenset()), 100.0)
    apply_response(eager, build_response(0, 1), 100.0)
    assert 100.16 <= eager.next_request_at <= 100.2


def test_leaves_with_epoch_minus_1_and_a_static_one_with_minus_2():
    one = build_owner(0)
    leave = one.leave(5.0)
    assert leave is not None and leave.epoch == -1 and one.state is MemberState.LEFT
    static = build_member(instance_id="i")
    apply_response(static, build_response(0, 1, build_topic_partitions(0)))
    leave = static.leave(5.0)
    assert leave is not None and (leave.epoch, leave.instance_id) == (-2, "i")


def test_who_may_have_joined_unheard_leaves_and_who_has_not_asked_need_not():
    assert build_member().leave(0.0) is None
    asking = build_member()
    asking.next_request(0.0)
    leave = asking.leave(0.1)
    assert leave is not None and leave.member_id == "m"


def test_a_topic_that_metadata_does_not_know_yet_is_taken_when_it_does():
    one = build_member()
    both = build_topic_partitions(0) | build_topic_partitions(0, topic=NEW_ID)
    assert apply_response(one, build_response(0, 1, both)) == [PartitionsAssigned(tps(0))]
    assert one.has_unknown_topics and one.state is MemberState.REBALANCING
    events = one.on_metadata({"orders": TopicInfo(ID, 6), "new": TopicInfo(NEW_ID, 1)}, 1.0)
    assert events == [PartitionsAssigned(frozenset({TopicPartition("new", 0)}))]
    assert not one.has_unknown_topics


def test_a_topic_that_was_made_anew_is_lost_and_assigned_not_revoked():
    """Offsets of the old one would be committed for its successor otherwise."""
    one = build_owner(0, 1)
    one.on_metadata({"orders": TopicInfo(NEW_ID, 6)}, 5.0)
    lost, assigned = apply_response(
        one, build_response(0, 2, build_topic_partitions(0, topic=NEW_ID)), 5.0
    )
    assert isinstance(lost, PartitionsLost) and lost.tps == tps(0, 1)
    assert assigned == PartitionsAssigned(tps(0))


def test_a_topic_that_is_no_longer_subscribed_is_revoked_not_lost():
    one = build_owner(0)
    one.subscribe(["other"], 5.0)
    assert one.needed_topics == {"orders", "other"}
    assert apply_response(one, build_response(0, 2, frozenset()), 5.0) == [
        PartitionsRevoked(tps(0))
    ]


def test_hurry_asks_at_once_also_when_an_ask_is_under_way():
    one = build_owner(0)
    assert one.next_request(0.1) is None
    one.heartbeat_soon(0.1)
    beat = one.next_request(0.1)
    assert beat is not None
    one.heartbeat_soon(0.2)
    one.on_response(beat, build_response(0, 1), 0.3)
    assert one.next_request(0.3) is not None


# against a coordinator

STEPS = ("beat", "beat", "beat", "release", "ask unheard", "answer unheard", "expire", "end")


@dataclass
class MembersWorld:
    """Members by number, each of whose listeners takes as long as the steps will have it."""

    coordinator: ConsumerGroupCoordinator = field(
        default_factory=lambda: ConsumerGroupCoordinator(frozenset((ID, p) for p in range(5)))
    )
    members: dict[int, ConsumerMember] = field(default_factory=dict)
    revoking: dict[int, list[frozenset[TopicPartition]]] = field(default_factory=dict)
    now: float = 0.0
    created_count: int = 0

    def run_step(self, kind: str, number: int) -> None:
        one = self.members.get(number) or self._create_member(number)
        if kind == "release":
            self.release_revoked(number)
        elif kind == "expire":
            self.coordinator.expire_member(one.member_id)
        elif kind == "end":
            self._remove_member(number, one)
        else:
            self._send_heartbeat(number, one, kind)
        self.check_ownership()

    def release_revoked(self, number: int) -> None:
        for gone in self.revoking.pop(number, ()):
            self._record_events(number, self.members[number].on_released(gone, self.now))

    def settle_members(self) -> None:
        for _ in range(12):
            for number, one in list(self.members.items()):
                self.release_revoked(number)
                self._send_heartbeat(number, one, "beat")
                self.check_ownership()

    def check_ownership(self) -> None:
        """Whom the coordinator knows shares no partition with another one that it knows."""
        seen: dict[TopicPartition, str] = {}
        for one in self.members.values():
            if one.member_id in self.coordinator.members:
                for tp in one.owned:
                    assert tp not in seen, f"{tp} of {one.member_id} and {seen[tp]}"
                    seen[tp] = one.member_id

    def _create_member(self, number: int) -> ConsumerMember:
        self.created_count += 1
        instance = "static" if number == 0 else None
        self.members[number] = made = build_member(f"m{self.created_count}", instance_id=instance)
        return made

    def _send_heartbeat(self, number: int, one: ConsumerMember, kind: str) -> None:
        self.now = max(self.now, one.next_request_at)
        ask = one.next_request(self.now)
        assert ask is not None
        if kind == "ask unheard":
            one.on_no_response(ask, self.now, 0.0)
            return
        said = self.coordinator.handle_heartbeat(ask)
        if kind == "answer unheard":
            one.on_no_response(ask, self.now, 0.0)
        else:
            self._record_events(number, one.on_response(ask, said, self.now))

    def _remove_member(self, number: int, one: ConsumerMember) -> None:
        leave = one.leave(self.now)
        if leave is not None:
            self.coordinator.handle_heartbeat(leave)
        del self.members[number]
        self.revoking.pop(number, None)

    def _record_events(self, number: int, events: list[MemberEvent]) -> None:
        for event in events:
            if isinstance(event, PartitionsRevoked):
                self.revoking.setdefault(number, []).append(event.tps)
            elif isinstance(event, PartitionsLost):
                self.revoking.pop(number, None)


# A static member whose answers were lost joins again, and owns nothing of what it is to give up.
@example(
    [
        ("beat", 0),
        ("beat", 2),
        ("beat", 3),
        ("answer unheard", 0),
        ("expire", 1),
        ("answer unheard", 0),
    ]
)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=60))
def test_no_partition_ever_has_two_owners_and_in_the_end_each_has_one(steps):
    world = MembersWorld()
    world.run_step("beat", 1)
    for kind, number in steps:
        world.run_step(kind, number)
    for id in world.coordinator.members.keys() - {m.member_id for m in world.members.values()}:
        world.coordinator.expire_member(id)  # static ones that did not come back
    world.settle_members()
    if world.members:
        owned = [tp for one in world.members.values() for tp in one.owned]
        assert sorted(owned) == sorted(tps(*range(5)))
        assert {one.state for one in world.members.values()} == {MemberState.RUNNING}
