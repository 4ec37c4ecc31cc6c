from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.classic_group import Coordinator, Peer, known, member, settle, settled

from gateway.core.group.classic_member import PATIENCE, SOON, ClassicMember
from gateway.core.group.classic_requests import (
    FINAL,
    PASSING,
    Code,
    HeartbeatAnswer,
    HeartbeatAsk,
    JoinAnswer,
    JoinAsk,
    LeaveAsk,
    SyncAnswer,
    SyncAsk,
)
from gateway.core.group.member import (
    Assigned,
    Failed,
    Identity,
    Lost,
    Moved,
    Revoking,
    State,
    Topic,
)
from gateway.core.log.record import TopicPartition


def tps(*partitions: int, topic: str = "orders") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, one) for one in partitions)


def peer(partitions: int = 4, **how: str) -> Peer:
    one = member(**how)
    one.learn(known(orders=partitions), 0.0)
    return Peer(one)


@pytest.fixture
def group() -> Coordinator:
    return Coordinator()


@pytest.fixture
def alone(group: Coordinator) -> Peer:
    """A member that has everything."""
    one = peer()
    settle(group, [one], 0.0)
    assert one.member.owned == tps(0, 1, 2, 3)
    return one


def test_who_joins_first_asks_for_a_name_leads_and_has_all(group: Coordinator):
    one = peer()
    first = one.send(group, 0.0)
    assert isinstance(first, JoinAsk) and first.identity == Identity("", -1)
    one.take(0.0)
    second = one.send(group, 0.0)
    assert isinstance(second, JoinAsk) and second.identity == Identity("member-0", -1)
    one.take(0.0)
    given_out = one.send(group, 0.0)
    assert isinstance(given_out, SyncAsk) and given_out.assignment == {"member-0": tps(0, 1, 2, 3)}
    assert one.member.state is State.REBALANCING and not one.member.owned
    one.take(0.0)
    assert one.events == [Assigned(tps(0, 1, 2, 3))]
    assert one.member.state is State.RUNNING and one.member.identity == Identity("member-0", 1)


def test_heartbeats_come_soon_after_an_assignment_and_then_at_their_interval(
    group: Coordinator, alone: Peer
):
    """What others gave up waits until everybody has heard of the next round."""
    waits, now = [], 0.0
    for _ in range(8):
        assert alone.send(group, alone.member.due - 0.01) is None
        waits.append(alone.member.due - now)
        now = alone.member.due
        assert isinstance(alone.send(group, now), HeartbeatAsk)
        assert alone.member.due == float("inf")
        alone.take(now)
    assert waits[0] <= SOON < waits[2] < waits[4] < waits[-1]
    assert 0.8 * 3.0 <= waits[-1] <= 3.0


def test_who_is_there_keeps_what_it_keeps_while_another_joins(group: Coordinator, alone: Peer):
    """Two rounds, and nothing but what moves is ever touched."""
    two = peer()
    settle(group, [alone, two], 10.0)
    assert alone.events[1:] == [Revoking(tps(2, 3))]
    assert (alone.member.owned, two.member.owned) == (tps(0, 1), tps(2, 3))
    assert two.events == [Assigned(tps(2, 3))]
    assert {one.member.state for one in (alone, two)} == {State.RUNNING}
    assert group.rebalances == 3


def test_what_is_given_up_is_held_until_it_is_released_with_heartbeats(
    group: Coordinator, alone: Peer
):
    two = peer()
    now = 10.0
    while not alone.revoking:
        for one in (two, alone):
            one.send(group, now)
            one.take(now)
        now += 1
    assert alone.member.owned == tps(0, 1, 2, 3)
    for _ in range(3):
        now = alone.member.due
        assert isinstance(alone.send(group, now), HeartbeatAsk)
        alone.take(now)
    assert alone.member.state is State.REBALANCING and not two.member.owned
    alone.release(now)
    again = alone.send(group, now)
    assert isinstance(again, JoinAsk) and again.claim.owned == tps(0, 1)
    settle(group, [alone, two], now)
    assert two.member.owned == tps(2, 3)


def test_what_who_left_had_goes_to_others_who_give_up_nothing(group: Coordinator, alone: Peer):
    two = peer()
    now = settle(group, [alone, two], 10.0)
    last = alone.member.leave(now)
    assert isinstance(last, LeaveAsk) and alone.member.state is State.LEFT
    assert alone.member.due == float("inf") and alone.member.leave(now) is None
    group.hear(alone, last)
    settle(group, [two], now)
    assert two.events == [Assigned(tps(2, 3)), Assigned(tps(0, 1))]


def test_who_never_joined_has_nothing_to_leave():
    assert member().leave(0.0) is None


def test_a_static_member_says_nothing_as_it_leaves_and_comes_back_to_what_it_had(
    group: Coordinator,
):
    static, other = peer(instance_id="pod-0"), peer()
    now = settle(group, [static, other], 0.0)
    had, rebalances, others = static.member.owned, group.rebalances, list(other.events)
    assert static.member.leave(now) is None
    back = peer(instance_id="pod-0")
    settle(group, [back, other], now)
    assert back.events == [Assigned(had)]
    assert (group.rebalances, other.events) == (rebalances, others)


def test_a_static_leader_that_is_back_changes_nothing(group: Coordinator):
    static, other = peer(instance_id="pod-0"), peer()
    now = settle(group, [static, other], 0.0)
    assert group.leader == static.member.identity.member_id
    back = peer(instance_id="pod-0")
    back.send(group, now)
    back.take(now)
    ask = back.send(group, now)
    assert isinstance(ask, SyncAsk) and ask.assignment is None


def test_the_elder_of_two_with_one_instance_id_is_fenced_for_good(group: Coordinator):
    elder, younger = peer(instance_id="pod-0"), peer(instance_id="pod-0")
    now = settle(group, [elder], 0.0)
    settle(group, [younger], now)
    now = elder.member.due
    ask = elder.member.ask(now)
    assert ask is not None
    lost, failed = elder.member.answered(ask, HeartbeatAnswer(0, Code.FENCED_INSTANCE_ID), now)
    assert isinstance(lost, Lost) and lost.tps == tps(0, 1, 2, 3)
    assert isinstance(failed, Failed) and failed.error == 82 and failed.is_final
    assert elder.member.state is State.FAILED and elder.member.due == float("inf")


@pytest.mark.parametrize("error", FINAL)
def test_what_cannot_be_mended_ends_the_membership_and_says_why(error: int):
    one = member()
    ask = one.ask(0.0)
    assert ask is not None
    assert one.answered(ask, JoinAnswer(0, error), 0.0) == [Failed(error, FINAL[error], True)]
    assert one.ask(1e9) is None and one.is_over


@pytest.mark.parametrize("error", PASSING)
def test_a_refusal_that_may_pass_is_tried_again_slowly(error: int):
    """A right that was taken away for seconds ended the membership until a restart.

    Between two refusals the coordinator forgets the member, as it does with one that may not say
    that it lives. That makes the next attempt no sooner.
    """
    one, now, delays = member(), 0.0, []
    for _ in range(5):
        ask = one.ask(now)
        assert isinstance(ask, JoinAsk) and not ask.claim.owned
        assert one.answered(ask, JoinAnswer(0, error), now) == [
            Failed(error, PASSING[error], False)
        ]
        assert one.state is State.FAILED and not one.is_over
        one.subscribe(["orders"], now)  # as often as a pattern is looked at
        one.hurry(now)
        delays.append(one.due - now)
        now = one.due
        if (ask := one.ask(now)) is not None:
            one.answered(ask, JoinAnswer(0, Code.UNKNOWN_MEMBER_ID), now)
            now = one.due
    assert delays == pytest.approx([5.0, 5.0, 10.0, 20.0, 30.0])  # the draws are 0.5


@pytest.mark.parametrize("expired", [False, True])
def test_a_member_whose_right_is_back_has_all_that_it_had(
    group: Coordinator, alone: Peer, expired: bool
):
    had, now = alone.member.owned, alone.member.due
    name = alone.member.identity.member_id
    ask = alone.member.ask(now)
    assert ask is not None
    refusal = HeartbeatAnswer(0, Code.GROUP_AUTHORIZATION_FAILED)
    alone.note(events := alone.member.answered(ask, refusal, now))
    assert [type(event) for event in events] == [Lost, Failed] and not alone.member.owned
    alone.waiting = None
    if expired:
        group.expire(name)
    settle(group, [alone], now)
    assert alone.member.owned == had and alone.member.state is State.RUNNING


@pytest.mark.parametrize(
    ("error", "name"), [(Code.UNKNOWN_MEMBER_ID, ""), (Code.ILLEGAL_GENERATION, "member-0")]
)
def test_who_is_forgotten_has_lost_all_and_joins_anew(alone: Peer, error: int, name: str):
    now = alone.member.due
    ask = alone.member.ask(now)
    assert ask is not None
    (lost,) = alone.member.answered(ask, HeartbeatAnswer(0, error), now)
    assert isinstance(lost, Lost) and lost.tps == tps(0, 1, 2, 3) and not alone.member.owned
    again = alone.member.ask(now)
    assert isinstance(again, JoinAsk) and again.identity == Identity(name, -1)
    assert (again.claim.owned, again.claim.generation) == (frozenset(), -1)


def test_who_is_forgotten_again_and_again_is_not_in_a_hurry():
    one = member()
    ask = one.ask(0.0)
    assert ask is not None
    one.answered(ask, JoinAnswer(0, Code.UNKNOWN_MEMBER_ID), 0.0)
    assert one.ask(0.0) is None and 0.0 < one.due <= 2.0


def test_another_coordinator_is_looked_up_and_what_is_owned_stays(alone: Peer):
    now = alone.member.due
    ask = alone.member.ask(now)
    assert ask is not None
    assert alone.member.answered(ask, HeartbeatAnswer(0, Code.NOT_COORDINATOR), now) == [Moved()]
    assert alone.member.owned == tps(0, 1, 2, 3)
    assert isinstance(alone.member.ask(alone.member.due), HeartbeatAsk)


def test_after_the_session_timeout_without_a_word_all_is_lost(group: Coordinator, alone: Peer):
    now = 0.0
    while (now := alone.member.due) < 10.0:
        alone.send(group, now)
        alone.cut(now, retry_after=1.0)
    now = max(10.1, alone.member.due)
    alone.send(group, now)
    alone.cut(now)
    assert isinstance(alone.events[-1], Lost) and not alone.member.owned
    settle(group, [alone], now)
    assert alone.member.owned == tps(0, 1, 2, 3)


def test_an_assignment_whose_answer_was_lost_is_asked_for_again(group: Coordinator):
    one = peer()
    for _ in range(2):
        one.send(group, 0.0)
        one.take(0.0)
    one.send(group, 0.0)
    one.cut(0.0)
    settle(group, [one], one.member.due)
    assert one.events == [Assigned(tps(0, 1, 2, 3))] and group.rebalances == 1


def test_a_rebalance_that_begins_before_the_assignment_is_told_is_joined(alone: Peer):
    alone.member.subscribe(["orders", "prices"], 1.0)
    join = alone.member.ask(1.0)
    assert isinstance(join, JoinAsk) and join.claim.topics == {"orders", "prices"}
    alone.member.answered(join, JoinAnswer(0, 0, 7, "", "another", "member-0"), 1.0)
    sync = alone.member.ask(1.0)
    assert isinstance(sync, SyncAsk) and sync.assignment is None
    events = alone.member.answered(sync, SyncAnswer(0, Code.REBALANCE_IN_PROGRESS), 1.0)
    again = alone.member.ask(1.0)
    assert not events and isinstance(again, JoinAsk)
    # The generation that gave it what it has, not the one whose assignment it never heard.
    assert (again.claim.owned, again.claim.generation) == (tps(0, 1, 2, 3), 1)


def test_a_commit_that_was_refused_brings_the_next_heartbeat_forward(alone: Peer):
    alone.member.hurry(0.5)
    assert isinstance(alone.member.ask(0.5), HeartbeatAsk)


def test_a_leader_waits_for_metadata_of_all_topics_of_all_members(group: Coordinator, alone: Peer):
    two = Peer(member(topics=["prices"]))
    now = 10.0
    while not alone.member.unresolved:
        for one in (two, alone):
            one.take(now)
            one.send(group, now)
        now += 1
    assert alone.member.interest == {"orders", "prices"}
    assert alone.member.ask(now) is None
    alone.member.learn(known(orders=4, prices=2), now)
    assert not alone.member.unresolved
    settle(group, [alone, two], now)
    assert two.member.owned == tps(0, 1, topic="prices")
    assert alone.member.owned == tps(0, 1, 2, 3)


def test_a_leader_waits_once_for_a_topic_that_does_not_exist():
    one = Peer(member(topics=["orders", "gone"]))
    one.member.learn(known(orders=1), 0.0)
    group, now = Coordinator(), 0.0
    while not one.member.unresolved:
        one.send(group, now)
        one.take(now)
    assert one.member.due == now + PATIENCE
    now = settle(group, [one], now)
    assert one.member.owned == tps(0) and not one.member.unresolved
    settle(group, [one, Peer(member())], now)
    assert not one.member.unresolved and now == PATIENCE


def test_a_leader_gives_out_partitions_that_are_new(group: Coordinator, alone: Peer):
    alone.member.learn(known(orders=4, other=1), 1.0)
    assert alone.member.state is State.RUNNING
    alone.member.learn(known(orders=6), 1.0)
    settle(group, [alone], 1.0)
    assert alone.events[1:] == [Assigned(tps(4, 5))]


def test_a_topic_that_was_made_anew_is_lost_and_taken_from_its_start(alone: Peer):
    """The coordinator goes by names and tells nobody: it was never read again."""
    first, second = UUID(int=1), UUID(int=2)
    assert alone.member.learn({"orders": Topic(first, 4)}, 1.0) == []
    alone.events.clear()
    alone.note(alone.member.learn({"orders": Topic(second, 3)}, 2.0))
    lost, taken = alone.events
    assert isinstance(lost, Lost) and lost.tps == tps(0, 1, 2, 3)
    assert taken == Assigned(tps(0, 1, 2))
    assert alone.member.owned == tps(0, 1, 2)
    assert alone.member.learn({"orders": Topic(second, 3)}, 3.0) == []


def test_what_is_being_given_up_of_a_topic_that_is_made_anew_is_given_up_at_once(
    group: Coordinator, alone: Peer
):
    alone.member.learn({"orders": Topic(UUID(int=1), 4)}, 1.0)
    other = peer()
    for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        for each in (alone, other):
            each.send(group, now)
            each.take(now)
        if alone.revoking:
            break
    assert alone.revoking
    gone = alone.revoking
    alone.note(alone.member.learn({"orders": Topic(UUID(int=2), 4)}, 7.0))
    assert alone.member.owned == tps(0, 1, 2, 3) - gone
    settle(group, [alone, other], 8.0)
    assert alone.member.owned | other.member.owned == tps(0, 1, 2, 3)


def test_topics_no_longer_wanted_are_given_up(group: Coordinator, alone: Peer):
    alone.member.subscribe(["orders"], 1.0)
    assert alone.member.state is State.RUNNING
    alone.member.subscribe(["prices"], 1.0)
    alone.member.learn(known(orders=4, prices=1), 1.0)
    settle(group, [alone], 1.0)
    assert alone.member.owned == tps(0, topic="prices")
    assert alone.events[1:] == [Assigned(tps(0, topic="prices")), Revoking(tps(0, 1, 2, 3))]


def test_an_answer_to_what_was_given_up_changes_nothing(alone: Peer):
    now = alone.member.due
    stale = alone.member.ask(now)
    assert stale is not None
    alone.member.unanswered(stale, now, 0.0)
    assert not alone.member.answered(stale, HeartbeatAnswer(0, Code.UNKNOWN_MEMBER_ID), now)
    assert alone.member.owned == tps(0, 1, 2, 3)


# What may happen to a group. Every number picks the member that it happens to.
HAPPENINGS = ("send", "take", "release", "cut", "lose", "join", "leave", "crash", "expire", "late")
STORY = st.lists(
    st.tuples(st.sampled_from(("send", "take", "release", *HAPPENINGS)), st.integers(0, 9)),
    max_size=120,
)


class Story:
    """A group to which things happen; nobody may ever read what another reads."""

    def __init__(self, static: bool, partitions: int) -> None:
        self.group = Coordinator()
        self.static = static
        self.partitions = partitions
        self.peers: list[Peer] = []
        self.out: set[int] = set()  # who is out and has not heard of it
        self.now = 0.0
        self.made = 0

    def happen(self, what: str, number: int) -> None:
        self.now += 0.25
        if what == "join":
            if len(self.peers) > 4:
                return
            self.made += 1
            name = f"pod-{self.made}" if self.static else None
            self.peers.append(Peer(member(name)))
            self.peers[-1].member.learn(known(orders=self.partitions), self.now)
        elif what == "late":
            self._forget(self.group.wait_no_more())
        elif self.peers:
            getattr(self, f"_{what}")(self.peers[number % len(self.peers)])
        self.check()

    def _send(self, one: Peer) -> None:
        one.send(self.group, self.now)

    def _take(self, one: Peer) -> None:
        before = len(one.events)
        one.take(self.now)
        if any(isinstance(event, Lost) for event in one.events[before:]):
            self.out.discard(id(one))

    def _release(self, one: Peer) -> None:
        one.release(self.now)

    def _cut(self, one: Peer) -> None:
        one.cut(self.now)

    def _lose(self, one: Peer) -> None:
        """What it asks never arrives."""
        if (ask := one.member.ask(self.now)) is not None:
            one.note(one.member.unanswered(ask, self.now, 0.5))

    def _leave(self, one: Peer) -> None:
        self.peers.remove(one)
        if (ask := one.member.leave(self.now)) is not None:
            self.group.hear(one, ask)

    def _crash(self, one: Peer) -> None:
        self.peers.remove(one)

    def _expire(self, one: Peer) -> None:
        """The session of one that lives is over, as after a long pause."""
        name = one.member.identity.member_id
        if name in self.group.members:
            self._forget([name])
            self.group.expire(name)

    def _forget(self, names: list[str]) -> None:
        self.out |= {id(one) for one in self.peers if one.member.identity.member_id in names}

    def check(self) -> None:
        reading = [one.member for one in self.peers if id(one) not in self.out]
        owned = [tp for one in reading for tp in one.owned]
        assert len(owned) == len(set(owned))
        for one in self.peers:
            assert one.revoking <= one.member.owned

    def end(self) -> None:
        """The coordinator finds out who is gone; then all is shared among who is left."""
        for one in self.peers:
            one.cut(self.now)
        living = {one.member.identity.member_id for one in self.peers}
        for name in set(self.group.members) - living:
            self.group.expire(name)
        self.group.invited.clear()
        self._settle()
        loads = [len(one.member.owned) for one in self.peers]
        if self.peers:
            assert sum(loads) == self.partitions and max(loads) - min(loads) <= 1
            assert {one.member.state for one in self.peers} == {State.RUNNING}

    def _settle(self) -> None:
        for _ in range(100):
            if settled(self.group, self.peers):
                return
            for one in self.peers:
                for what in (self._send, self._take, self._release):
                    what(one)
                    self.check()
            self.now += 1.0
            if self.group.open and self.now % 20 < 1:
                self._forget(self.group.wait_no_more())
        raise AssertionError("the group does not settle")


@settings(max_examples=300, deadline=None)
@given(story=STORY, static=st.booleans(), partitions=st.integers(0, 7))
def test_whatever_happens_no_two_read_the_same_and_in_the_end_all_is_read(
    story, static: bool, partitions: int
):
    told = Story(static, partitions)
    for what, number in [("join", 0), ("join", 0), *story]:
        told.happen(what, number)
    told.end()


def test_a_member_is_made_of_what_the_group_says():
    one = ClassicMember("g", 10.0, 60.0, 3.0, random=lambda: 0.0)
    assert one.ask(0.0) is None and one.due == float("inf")
