"""Small sets hold what a set would, in the order of adding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.small_set import MAX_TUPLE_SIZE, SmallSet, add_member, discard_member

MEMBERS = [object() for _ in range(3 * MAX_TUPLE_SIZE)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, len(MEMBERS) - 1))))
def test_it_holds_what_an_ordered_set_would(steps: list[tuple[bool, int]]):
    small_set: SmallSet[object] = ()
    expected: dict[object, None] = {}
    for is_added, index in steps:
        member = MEMBERS[index]
        if is_added:
            small_set = add_member(small_set, member)
            expected[member] = None
        else:
            small_set = discard_member(small_set, member)
            expected.pop(member, None)
        assert list(small_set) == list(expected)
        assert len(small_set) == len(expected)
        assert (member in small_set) is is_added


@pytest.mark.parametrize("count", [MAX_TUPLE_SIZE, 1000])
def test_an_emptied_set_takes_as_little_memory_as_a_new_one(count: int):
    small_set: SmallSet[int] = ()
    for member in range(count):
        small_set = add_member(small_set, member)
    for member in range(count):
        small_set = discard_member(small_set, member)
    assert small_set == ()
