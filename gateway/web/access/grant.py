"""What guards say of a client: values, made once for a token and shared by all its streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MAX_EXPIRES_S = 253_402_300_799.0  # since 1970: the last second of the year 9999


@lru_cache(4096)
def _intern_roles(roles: frozenset[str]) -> frozenset[str]:
    return roles


@dataclass(frozen=True, slots=True)
class Grant:
    """What one guard says of a client.

    guard:      its name in the configuration.
    identity:   who the client is, for this guard; never empty.
    attributes: further claims, as text.
    expires:    when it is over, in seconds since 1970; None if nothing ends it. What lies beyond
                the years that dates can tell is the first or the last second of those.

    Roles, which many clients have alike, are held once: with its `Granted` it is 0.31 KB then,
    not 0.53; 0.12 more with an attribute.
    """

    guard: str
    identity: str
    roles: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=dict)
    expires: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", _intern_roles(frozenset(self.roles)))
        object.__setattr__(self, "attributes", dict(self.attributes))
        if self.expires is not None:
            object.__setattr__(self, "expires", _clamp_expiry(self.expires))

    def __hash__(self) -> int:
        claims = frozenset(self.attributes.items())
        return hash((self.guard, self.identity, self.roles, claims, self.expires))

    @property
    def subject(self) -> tuple[str, str]:
        """Whose it is: what stays the same when it is renewed."""
        return self.guard, self.identity


def _clamp_expiry(expires: float) -> float:
    """A time that every clock, timer and calendar here can tell. Raises ValueError for NaN, with
    which no comparison would ever say that it is over."""
    if expires != expires:
        raise ValueError("a grant expires at NaN; give seconds since 1970, or None")
    return float(min(max(expires, 0.0), MAX_EXPIRES_S))


class Granted(Mapping[str, Grant]):
    """What all guards of a route say of a client, by their names, in the order of the route."""

    __slots__ = ("_grants",)

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._grants = tuple(grants)

    def __getitem__(self, guard: str) -> Grant:
        for grant in self._grants:
            if grant.guard == guard:
                return grant
        raise KeyError(guard)

    def __iter__(self) -> Iterator[str]:
        return iter([grant.guard for grant in self._grants])

    def __len__(self) -> int:
        return len(self._grants)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Granted) and self._grants == other._grants

    def __hash__(self) -> int:
        return hash(self._grants)

    def __repr__(self) -> str:
        return f"Granted({list(self._grants)!r})"

    def __or__(self, other: Granted) -> Granted:
        """Both; where both know a guard, what this one says of it."""
        return Granted((*self._grants, *[each for each in other._grants if each.guard not in self]))

    def to_json(self) -> list[Any]:
        """As JSON, for another process of this gateway."""
        return [
            [*each.subject, sorted(each.roles), dict(each.attributes), each.expires]
            for each in self._grants
        ]

    @classmethod
    def from_json(cls, data: Iterable[Any]) -> Granted:
        """What another process `told`."""
        return cls([Grant(g, i, frozenset(r), a, e) for g, i, r, a, e in data])

    @property
    def identity(self) -> str | None:
        """Who the client is for the first guard; None if no guard knows it."""
        return self._grants[0].identity if self._grants else None

    @property
    def identities(self) -> dict[str, str]:
        """By guard; for templates."""
        return {grant.guard: grant.identity for grant in self._grants}

    @property
    def attributes(self) -> dict[str, Mapping[str, str]]:
        """By guard; for templates."""
        return {grant.guard: grant.attributes for grant in self._grants}

    def has(self, asked: Mapping[str, Iterable[str]]) -> bool:
        """Does each of these guards grant all of its roles?"""
        return all(guard in self and self[guard].roles >= set(asked[guard]) for guard in asked)

    def only(self, guards: Set[str]) -> Granted:
        """What these guards say."""
        if self.keys() <= guards:
            return self
        return Granted([each for each in self._grants if each.guard in guards])

    @property
    def subject(self) -> frozenset[tuple[str, str]]:
        """Whose it is, for every guard: what stays the same when it is renewed."""
        return frozenset([grant.subject for grant in self._grants])

    @property
    def expiring(self) -> Grant | None:
        """The grant that is over first; None if none ever is."""
        ending = [
            (grant.expires, n) for n, grant in enumerate(self._grants) if grant.expires is not None
        ]
        return self._grants[min(ending)[1]] if ending else None

    @property
    def expires(self) -> float | None:
        """When the first of them is over, in seconds since 1970; None if none ever is."""
        first = self.expiring
        return None if first is None else first.expires


NO_GRANTS = Granted()
"""Of a client that nobody asked who it is."""
