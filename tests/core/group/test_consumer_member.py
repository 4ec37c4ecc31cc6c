"""A member by KIP-848, alone and against a small coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.consumer_group import Coordinator, answer

from gateway.core.group.consumer_member import FINAL, PASSING, Beat, ConsumerMember
from gateway.core.group.member import Assigned, Event, Failed, Lost, Moved, Revoking, State, Topic
from gateway.core.log.record import TopicPartition

ID, NEW_ID = UUID(int=7), UUID(int=8)


def tps(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", p) for p in partitions)


def places(*partitions: int, topic: UUID = ID) -> frozenset[tuple[UUID, int]]:
    return frozenset((topic, p) for p in partitions)


def member(id: str = "m", **options) -> ConsumerMember:
    made = ConsumerMember("g", id, 60.0, lambda: 0.5, **options)
    made.learn({"orders": Topic(ID, 6)}, 0.0)
    made.subscribe(["orders"], 0.0)
    return made


def told(of: ConsumerMember, said, now: float = 0.0) -> list[Event]:
    """What the answer to the next ask did."""
    ask = of.ask(max(now, of.due))
    assert ask is not None
    return list(of.answered(ask, said, now))


def owning(*partitions: int, epoch: int = 1) -> ConsumerMember:
    """One that owns these, and has said so."""
    made = member()
    told(made, answer(0, epoch, places(*partitions)))
    told(made, answer(0, epoch))
    assert made.state is State.RUNNING
    return made


def test_joins_with_epoch_0_and_says_everything():
    ask = member(instance_id="i").ask(0.0)
    assert ask == Beat(
        group="g", member_id="m", epoch=0, instance_id="i", rebalance_timeout=60.0,
        topics=("orders",), owned=frozenset(),
    )  # fmt: skip


def test_asks_nothing_before_it_is_subscribed_nor_while_an_ask_is_under_way():
    unsubscribed = ConsumerMember("g", "m", 60.0, lambda: 0.5)
    assert unsubscribed.ask(100.0) is None
    joining = member()
    assert joining.ask(0.0) is not None
    assert joining.ask(100.0) is None


def test_acknowledges_what_it_was_assigned_at_once():
    one = member()
    assert told(one, answer(0, 1, places(0, 1))) == [Assigned(tps(0, 1))]
    assert one.state is State.REBALANCING
    ask = one.ask(0.0)
    assert ask is not None and ask.owned == places(0, 1) and ask.epoch == 1
    one.answered(ask, answer(0, 1), 0.0)
    assert one.state is State.RUNNING


def test_says_only_what_changed_once_the_broker_knows_it():
    one = owning(0)
    ask = one.ask(one.due)
    assert ask is not None and (ask.topics, ask.owned, ask.rebalance_timeout) == (None,) * 3
    one.answered(ask, answer(0, 1), 10.0)
    one.subscribe(["orders", "more"], 11.0)
    ask = one.ask(11.0)
    assert ask is not None and ask.topics == ("more", "orders") and ask.owned is None


def test_gives_up_first_says_so_when_released_and_takes_new_ones_only_then():
    one = owning(0, 1)
    assert told(one, answer(0, 1, places(0, 2)), 5.0) == [Revoking(tps(1))]
    assert one.owned == tps(0, 1) and one.state is State.REBALANCING
    beat = one.ask(one.due)
    assert beat is not None and beat.owned is None  # it lives, and owns what it did
    one.answered(beat, answer(0, 1), 9.0)
    assert one.released(tps(1), 10.0) == [Assigned(tps(2))]
    beat = one.ask(10.0)
    assert beat is not None and beat.owned == places(0, 2)


def test_what_is_revoked_and_given_back_meanwhile_is_released_all_the_same():
    one = owning(0, 1)
    told(one, answer(0, 1, places(0)), 5.0)
    assert told(one, answer(0, 2, places(0, 1)), 10.0) == []
    assert one.released(tps(1), 11.0) == [Assigned(tps(1))]


@pytest.mark.parametrize("error", [25, 110])
def test_who_is_forgotten_or_fenced_has_lost_all_and_joins_again_under_the_same_name(error):
    one = owning(0, 1)
    (lost,) = told(one, answer(error), 5.0)
    assert isinstance(lost, Lost) and lost.tps == tps(0, 1)
    assert one.owned == frozenset() and one.identity.epoch == -1
    beat = one.ask(5.0)
    assert beat is not None and beat.epoch == 0 and beat.owned == frozenset()
    assert beat.member_id == "m"


def test_who_is_fenced_amid_a_revocation_is_released_of_nothing():
    one = owning(0, 1)
    told(one, answer(0, 1, places(0)), 5.0)
    told(one, answer(110), 9.0)
    assert one.released(tps(1), 10.0) == []
    assert one.owned == frozenset()


def test_after_an_answer_that_did_not_come_it_says_everything_again():
    one = owning(0)
    ask = one.ask(one.due)
    assert ask is not None
    one.unanswered(ask, 10.0, 0.5)
    assert one.ask(10.4) is None
    again = one.ask(10.5)
    assert again is not None and again.whole and again.owned == places(0) and again.epoch == 1


@pytest.mark.parametrize("error, looks_up", [(14, False), (15, True), (16, True)])
def test_a_coordinator_that_moved_is_looked_up_and_costs_no_partition(error, looks_up):
    one = owning(0)
    assert told(one, answer(error), 5.0) == ([Moved()] if looks_up else [])
    assert one.owned == tps(0)
    assert 5.0 < one.due < 5.2


@pytest.mark.parametrize("error", FINAL)
def test_what_cannot_be_helped_ends_the_membership(error):
    one = owning(0)
    lost, failed = told(one, answer(error), 5.0)
    assert isinstance(lost, Lost) and isinstance(failed, Failed) and failed.error == error
    assert failed.is_final and one.is_over
    assert one.state is State.FAILED and one.ask(1e9) is None and one.leave(1e9) is None


@pytest.mark.parametrize("error", PASSING)
def test_a_refusal_that_may_pass_is_tried_again_slowly_until_it_has(error):
    """A right that was taken away for seconds ended the membership until a restart."""
    one = member()
    told(one, answer(error))
    delays = []
    for _ in range(6):
        assert one.state is State.FAILED and not one.is_over and not one.owned
        now = one.due
        one.subscribe(["orders"], now - 1.0)  # as often as a pattern is looked at
        one.hurry(now - 1.0)
        assert one.ask(now - 0.1) is None
        (failed,) = told(one, answer(error), now)
        assert isinstance(failed, Failed) and not failed.is_final
        delays.append(one.due - now)
    assert delays == pytest.approx([5.0, 10.0, 20.0, 30.0, 30.0, 30.0])  # the draws are 0.5
    assert told(one, answer(0, 3, places(0)), one.due) == [Assigned(tps(0))]
    now = one.due
    told(one, answer(30), now)
    assert one.due - now == pytest.approx(5.0), "the next refusal is the first of its kind"


def test_a_member_whose_right_is_back_joins_with_nothing_and_owns_what_it_is_given():
    one = owning(0, 1)
    lost, _ = told(one, answer(30), 5.0)
    assert isinstance(lost, Lost) and lost.tps == tps(0, 1)
    beat = one.ask(one.due)
    assert isinstance(beat, Beat) and beat.epoch == 0 and beat.owned == frozenset()
    assert one.answered(beat, answer(0, 7, places(0, 1)), 20.0) == [Assigned(tps(0, 1))]
    assert one.identity.epoch == 7 and one.state is not State.FAILED


def test_other_topics_are_asked_for_at_once_where_the_former_ones_are_denied():
    one = member()
    told(one, answer(29))
    one.subscribe(["payments"], 1.0)
    beat = one.ask(1.0)
    assert isinstance(beat, Beat) and beat.topics == ("payments",)


def test_a_group_that_was_deleted_is_joined_anew():
    """A member that was away for longer than its group lived stayed out of it for ever."""
    one = owning(0)
    (lost,) = told(one, answer(69), 5.0)
    assert isinstance(lost, Lost) and one.state is State.REBALANCING and one.due == 5.0


def test_an_instance_id_that_is_not_free_yet_is_asked_for_again():
    one = member(instance_id="i")
    assert told(one, answer(111)) == []
    assert 0.0 < one.due <= 2.0
    assert told(one, answer(0, 1, places(0)), one.due) == [Assigned(tps(0))]


def test_the_broker_says_how_often_unless_the_member_wants_it_oftener():
    calm = owning(0)
    told(calm, answer(0, 1), 100.0)
    assert 104.0 <= calm.due <= 105.0
    eager = member(interval=0.2)
    told(eager, answer(0, 1, frozenset()), 100.0)
    told(eager, answer(0, 1), 100.0)
    assert 100.16 <= eager.due <= 100.2


def test_leaves_with_epoch_minus_1_and_a_static_one_with_minus_2():
    one = owning(0)
    leave = one.leave(5.0)
    assert leave is not None and leave.epoch == -1 and one.state is State.LEFT
    static = member(instance_id="i")
    told(static, answer(0, 1, places(0)))
    leave = static.leave(5.0)
    assert leave is not None and (leave.epoch, leave.instance_id) == (-2, "i")


def test_who_may_have_joined_unheard_leaves_and_who_has_not_asked_need_not():
    assert member().leave(0.0) is None
    asking = member()
    asking.ask(0.0)
    leave = asking.leave(0.1)
    assert leave is not None and leave.member_id == "m"


def test_a_topic_that_metadata_does_not_know_yet_is_taken_when_it_does():
    one = member()
    both = places(0) | places(0, topic=NEW_ID)
    assert told(one, answer(0, 1, both)) == [Assigned(tps(0))]
    assert one.unresolved and one.state is State.REBALANCING
    events = one.learn({"orders": Topic(ID, 6), "new": Topic(NEW_ID, 1)}, 1.0)
    assert events == [Assigned(frozenset({TopicPartition("new", 0)}))]
    assert not one.unresolved


def test_a_topic_that_was_made_anew_is_lost_and_assigned_not_revoked():
    """Offsets of the old one would be committed for its successor otherwise."""
    one = owning(0, 1)
    one.learn({"orders": Topic(NEW_ID, 6)}, 5.0)
    lost, assigned = told(one, answer(0, 2, places(0, topic=NEW_ID)), 5.0)
    assert isinstance(lost, Lost) and lost.tps == tps(0, 1)
    assert assigned == Assigned(tps(0))


def test_a_topic_that_is_no_longer_subscribed_is_revoked_not_lost():
    one = owning(0)
    one.subscribe(["other"], 5.0)
    assert one.interest == {"orders", "other"}
    assert told(one, answer(0, 2, frozenset()), 5.0) == [Revoking(tps(0))]


def test_hurry_asks_at_once_also_when_an_ask_is_under_way():
    one = owning(0)
    assert one.ask(0.1) is None
    one.hurry(0.1)
    beat = one.ask(0.1)
    assert beat is not None
    one.hurry(0.2)
    one.answered(beat, answer(0, 1), 0.3)
    assert one.ask(0.3) is not None


# against a coordinator

STEPS = ("beat", "beat", "beat", "release", "ask unheard", "answer unheard", "expire", "end")


@dataclass
class World:
    """Members by number, each of whose listeners takes as long as the steps will have it."""

    coordinator: Coordinator = field(
        default_factory=lambda: Coordinator(frozenset((ID, p) for p in range(5)))
    )
    members: dict[int, ConsumerMember] = field(default_factory=dict)
    giving_up: dict[int, list[frozenset[TopicPartition]]] = field(default_factory=dict)
    now: float = 0.0
    born: int = 0

    def step(self, kind: str, number: int) -> None:
        one = self.members.get(number) or self._new(number)
        if kind == "release":
            self.release(number)
        elif kind == "expire":
            self.coordinator.expire(one.member_id)
        elif kind == "end":
            self._end(number, one)
        else:
            self._beat(number, one, kind)
        self.check()

    def release(self, number: int) -> None:
        for gone in self.giving_up.pop(number, ()):
            self._note(number, self.members[number].released(gone, self.now))

    def settle(self) -> None:
        for _ in range(12):
            for number, one in list(self.members.items()):
                self.release(number)
                self._beat(number, one, "beat")
                self.check()

    def check(self) -> None:
        """Whom the coordinator knows shares no partition with another one that it knows."""
        seen: dict[TopicPartition, str] = {}
        for one in self.members.values():
            if one.member_id in self.coordinator.members:
                for tp in one.owned:
                    assert tp not in seen, f"{tp} of {one.member_id} and {seen[tp]}"
                    seen[tp] = one.member_id

    def _new(self, number: int) -> ConsumerMember:
        self.born += 1
        instance = "static" if number == 0 else None
        self.members[number] = made = member(f"m{self.born}", instance_id=instance)
        return made

    def _beat(self, number: int, one: ConsumerMember, kind: str) -> None:
        self.now = max(self.now, one.due)
        ask = one.ask(self.now)
        assert ask is not None
        if kind == "ask unheard":
            one.unanswered(ask, self.now, 0.0)
            return
        said = self.coordinator.beat(ask)
        if kind == "answer unheard":
            one.unanswered(ask, self.now, 0.0)
        else:
            self._note(number, one.answered(ask, said, self.now))

    def _end(self, number: int, one: ConsumerMember) -> None:
        leave = one.leave(self.now)
        if leave is not None:
            self.coordinator.beat(leave)
        del self.members[number]
        self.giving_up.pop(number, None)

    def _note(self, number: int, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Revoking):
                self.giving_up.setdefault(number, []).append(event.tps)
            elif isinstance(event, Lost):
                self.giving_up.pop(number, None)


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
    world = World()
    world.step("beat", 1)
    for kind, number in steps:
        world.step(kind, number)
    for id in world.coordinator.members.keys() - {m.member_id for m in world.members.values()}:
        world.coordinator.expire(id)  # static ones that did not come back
    world.settle()
    if world.members:
        owned = [tp for one in world.members.values() for tp in one.owned]
        assert sorted(owned) == sorted(tps(*range(5)))
        assert {one.state for one in world.members.values()} == {State.RUNNING}
