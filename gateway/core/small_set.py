"""Keep sets that have one member in most cases, and take little memory then.

Each client with a filter of its own has a channel, and several sets of one member. A `set` of one
takes 216 bytes, a `dict` 224 and a tuple 48. These functions return the set to go on with:

    followers: SmallSet[Follower] = ()
    followers = add_member(followers, follower)
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

MAX_TUPLE_SIZE = 4  # members; more are kept in a dict, from which one is removed without a search

T = TypeVar("T")

SmallSet: TypeAlias = tuple[T, ...] | dict[T, None]
"""The members, in the order in which they were added. Members are equal only to themselves."""


def add_member(members: SmallSet[T], member: T) -> SmallSet[T]:
    """Return the set with a member, which may be there already. A dict is changed in place."""
    if isinstance(members, dict):
        members[member] = None
        return members
    if member in members:
        return members
    if len(members) < MAX_TUPLE_SIZE:
        return (*members, member)
    return dict.fromkeys((*members, member))


def discard_member(members: SmallSet[T], member: T) -> SmallSet[T]:
    if isinstance(members, dict):
        members.pop(member, None)
        return members or ()
    return tuple(each for each in members if each is not member)
