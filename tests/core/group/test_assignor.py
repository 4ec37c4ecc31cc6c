from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.group.assignor import AssignmentPlan, GroupAssignment, MemberSubscription, assign
from gateway.core.log.record import TopicPartition

TOPICS = ("orders", "prices", "users")


def tps(topic: str, *partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, one) for one in partitions)


def claim(
    member: str, owned: frozenset[TopicPartition] = frozenset(), *topics: str, generation: int = 1
) -> MemberSubscription:
    return MemberSubscription(member, frozenset(topics or ("orders",)), owned, generation)


def count_partitions(assignment: GroupAssignment) -> list[int]:
    return sorted(len(tps) for tps in assignment.values())


def find_moved(
    claims: list[MemberSubscription], target: GroupAssignment
) -> frozenset[TopicPartition]:
    """What living owners lose."""
    return frozenset(tp for one in claims for tp in one.owned - target[one.member_id])


def test_a_first_member_has_all():
    plan = assign([claim("a")], {"orders": 3})
    assert plan.current == {"a": tps("orders", 0, 1, 2)}
    assert plan.is_settled


def test_several_that_begin_share_evenly_and_every_topic_is_spread():
    plan = assign([claim(m, frozenset(), *TOPICS) for m in "ab"], dict.fromkeys(TOPICS, 4))
    assert plan.is_settled
    for tps in plan.current.values():
        assert Counter(tp.topic for tp in tps) == dict.fromkeys(TOPICS, 2)


def test_who_joins_gets_nothing_until_the_owner_has_given_it_up():
    before = [claim("a", tps("orders", 0, 1, 2, 3)), claim("b")]
    first = assign(before, {"orders": 4})
    assert first.current == {"a": tps("orders", 0, 1), "b": frozenset()}
    assert not first.is_settled
    second = assign([claim("a", first.current["a"], generation=2), claim("b")], {"orders": 4})
    assert second.current == {"a": tps("orders", 0, 1), "b": tps("orders", 2, 3)}


def test_what_one_leaves_behind_is_shared_at_once_and_nothing_else_moves():
    left = [claim("a", tps("orders", 0, 1)), claim("b", tps("orders", 2, 3))]
    plan = assign(left, {"orders": 6})
    assert plan.is_settled
    assert plan.current["a"] > tps("orders", 0, 1) and plan.current["b"] > tps("orders", 2, 3)


def test_the_later_generation_keeps_what_two_claim():
    stale = claim("a", tps("orders", 0, 1), generation=4)
    fresh = claim("b", tps("orders", 0), generation=5)
    plan = assign([stale, fresh], {"orders": 2})
    assert plan.current == {"a": tps("orders", 1), "b": tps("orders", 0)}


def test_a_claim_from_an_earlier_generation_counts_where_nobody_else_claims():
    """A member that missed a round keeps what it has, if that went to nobody (KAFKA-13419)."""
    plan = assign([claim("a", tps("orders", 1), generation=4), claim("b")], {"orders": 2})
    assert plan.current == {"a": tps("orders", 1), "b": tps("orders", 0)}


def test_what_two_claim_in_one_generation_is_given_up_by_both_first():
    plan = assign([claim("a", tps("orders", 0)), claim("b", tps("orders", 0))], {"orders": 1})
    assert plan.current == {"a": frozenset(), "b": frozenset()}
    assert count_partitions(plan.target) == [0, 1]


def test_what_its_owner_no_longer_subscribes_goes_to_others_in_the_next_round():
    claims = [claim("a", tps("orders", 0), "prices"), claim("b")]
    plan = assign(claims, {"orders": 1, "prices": 1})
    assert plan.current == {"a": tps("prices", 0), "b": frozenset()}
    assert plan.target["b"] == tps("orders", 0)


def test_topics_that_do_not_exist_and_partitions_that_went_are_nobodys():
    plan = assign([claim("a", tps("gone", 0) | tps("orders", 7), "gone", "orders")], {"orders": 1})
    assert plan.current == {"a": tps("orders", 0)}


def test_one_that_reads_more_topics_leaves_the_others_theirs():
    """b reads both topics, a only one: a chain of hand-overs, not one, evens them out."""
    claims = [
        claim("a", tps("orders", 0, 1, 2), "orders"),
        claim("b", tps("prices", 0, 1), "orders", "prices"),
        claim("c", frozenset(), "prices"),
    ]
    plan = assign(claims, {"orders": 3, "prices": 2})
    assert count_partitions(plan.target) == [1, 2, 2]


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), max_size=3)
equal = st.just(frozenset(TOPICS))
subscribed = st.frozensets(st.sampled_from((*TOPICS, "unknown")), max_size=4)


@st.composite
def groups(draw: st.DrawFn, topics: st.SearchStrategy[frozenset[str]] = subscribed):
    """Members with what they might hold, each partition with one owner, and the topics now."""
    members = [f"m{n}" for n in range(draw(st.integers(1, 6)))]
    owner = st.sampled_from([*members, ""])
    owned: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for topic, partition in product(TOPICS, range(draw(st.integers(0, 7)))):
        if holder := draw(owner):
            owned[holder].add(TopicPartition(topic, partition))
    claims = [
        MemberSubscription(m, draw(topics), frozenset(owned[m]), draw(st.integers(0, 2)))
        for m in members
    ]
    return claims, draw(counts)


@st.composite
def disputed_groups(draw: st.DrawFn):
    """The same with claims that contradict each other."""
    claims, partitions = draw(groups())
    some = st.frozensets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 6)))
    return [one._replace(owned=one.owned | draw(some)) for one in claims], partitions


def check_plan(
    claims: list[MemberSubscription], partitions: dict[str, int], plan: AssignmentPlan
) -> None:
    """All is assigned to subscribers, once; nobody gets what another holds."""
    given_out = [tp for tps in plan.target.values() for tp in tps]
    readable = {
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
        if any(topic in one.topics for one in claims)
    }
    assert len(given_out) == len(set(given_out)) and set(given_out) == readable
    for one in claims:
        assert all(tp.topic in one.topics for tp in plan.target[one.member_id])
        assert plan.current[one.member_id] <= plan.target[one.member_id]
        newly = plan.current[one.member_id] - one.owned
        assert not any(newly & other.owned for other in claims if other is not one)


def apply_plan(claims: list[MemberSubscription], plan: AssignmentPlan) -> list[MemberSubscription]:
    """Everybody has what it was given, and joins again."""
    return [one._replace(owned=plan.current[one.member_id], generation=9) for one in claims]


@given(disputed_groups())
def test_all_is_assigned_once_and_settles_in_two_rounds(group):
    claims, partitions = group
    first = assign(claims, partitions)
    check_plan(claims, partitions, first)
    second = assign(apply_plan(claims, first), partitions)
    check_plan(apply_plan(claims, first), partitions, second)
    assert second.is_settled
    third = assign(apply_plan(claims, second), partitions)
    assert third.current == second.current


@given(disputed_groups())
def test_two_never_read_the_same_of_what_they_were_given(group):
    claims, partitions = group
    plan = assign(claims, partitions)
    given_out = [tp for tps in plan.current.values() for tp in tps]
    assert len(given_out) == len(set(given_out))


@given(groups(equal))
def test_equal_subscriptions_are_balanced_within_one_and_move_the_least(group):
    claims, partitions = group
    target = assign(claims, partitions).target
    assert count_partitions(target)[-1] - count_partitions(target)[0] <= 1
    # The least: every member above its share gives what is above it, the fullest keep one more.
    share, more = divmod(sum(partitions.values()), len(claims))
    held = sorted(
        (sum(tp.partition < partitions.get(tp.topic, 0) for tp in one.owned) for one in claims),
        reverse=True,
    )
    surplus = sum(max(0, n - share - (at < more)) for at, n in enumerate(held))
    alive = {tp for tp in find_moved(claims, target) if tp.partition < partitions.get(tp.topic, 0)}
    assert len(alive) == surplus


@given(groups())
def test_no_single_hand_over_or_return_would_make_it_better(group):
    """Unequal subscriptions: nobody could take from one with two more, and no partition was
    moved that could as well have stayed."""
    claims, partitions = group
    target = assign(claims, partitions).target
    owner = {tp: one.member_id for one in claims for tp in one.owned}
    topics = {one.member_id: one.topics for one in claims}
    for member, tps in target.items():
        for other in claims:
            gap = len(tps) - len(target[other.member_id])
            within = {tp for tp in tps if tp.topic in other.topics}
            assert not (within and gap >= 2)
            back = {tp for tp in within if owner.get(tp) == other.member_id != member}
            assert not (back and gap >= 1)
            theirs = {tp for tp in target[other.member_id] if tp.topic in topics[member]}
            there = {tp for tp in theirs if owner.get(tp) == member != other.member_id}
            assert not (back and there), "two exchanged what both could have kept"


@given(groups())
def test_what_is_balanced_does_not_move(group):
    claims, partitions = group
    target = assign(claims, partitions).target
    again = [one._replace(owned=target[one.member_id], generation=3) for one in claims]
    assert assign(again, partitions).current == target


def find_best_load(claims: list[MemberSubscription], partitions: dict[str, int]) -> int:
    """The least possible sum of squared loads, by trying everything."""
    readers = [
        [at for at, one in enumerate(claims) if topic in one.topics]
        for topic, count in partitions.items()
        for _ in range(count)
    ]
    choices = product(*(some for some in readers if some))
    return min(sum(n * n for n in Counter(choice).values()) for choice in choices)


few = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 2), max_size=3)
readers = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=3)


@given(readers, few)
def test_unequal_subscriptions_are_as_even_as_can_be(topics, partitions):
    claims = [MemberSubscription(f"m{at}", some) for at, some in enumerate(topics)]
    target = assign(claims, partitions).target
    assert sum(n * n for n in count_partitions(target)) == find_best_load(claims, partitions)
