"""Record what became of each value of a file that is migrated.

Every leaf of the file has one outcome: it was *carried* to a place of the new configuration, it is
*implied* by what the gateway does anyway, or it was *omitted* for a reason. What no converter has
looked at is omitted as unknown, so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gateway.config.types.section import Loc

from .source import Source, iter_leaves

UNKNOWN = "is not known to `gateway migrate`; look up what it does, and whether you need it here"


class OutcomeKind(StrEnum):
    """What became of a value."""

    CARRIED = "carried"
    IMPLIED = "implied"
    OMITTED = "not carried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one leaf of the source.

    Attributes:
        target: Its place in the new configuration, if it was carried.
        reason: Why it is implied or omitted, and what to do instead.
    """

    kind: OutcomeKind
    target: Loc = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Omission:
    """What was not carried: a value of the source with all below it.

    Attributes:
        reason: Why, and what to do instead.
        near: The place in the new configuration where readers miss it; empty for none.
        is_rest: Whether something below it has another outcome.
    """

    loc: Loc
    reason: str
    near: Loc = ()
    is_rest: bool = False


class MigrationReport:
    """The outcome of every leaf of one source. The first outcome of a leaf counts.

    Created by the command, filled by the converter of the source, and changed by `validation` if
    what was carried turns out to be refused.
    """

    def __init__(self, source: Source) -> None:
        """Create a report without outcomes."""
        self.source = source
        self.leaves: dict[Loc, Any] = dict(iter_leaves(source.values))
        self.outcomes: dict[Loc, Outcome] = {}
        self._omissions: list[Omission] = []
        # Documents have thousands of leaves, so those below a place are looked up.
        self._leaves_below: dict[Loc, list[Loc]] = {}
        for leaf in self.leaves:
            for length in range(len(leaf) + 1):
                self._leaves_below.setdefault(leaf[:length], []).append(leaf)

    def carry(self, loc: Loc, target: Loc, *, is_same: bool = False) -> None:
        """Record that a value was carried, with all below it that has no outcome yet.

        Args:
            loc: Its place in the source.
            target: Its place in the new configuration.
            is_same: Whether what is below it has the same paths there.
        """
        for leaf in self._iter_open_leaves(loc):
            below = leaf[len(loc) :] if is_same else ()
            self.outcomes[leaf] = Outcome(OutcomeKind.CARRIED, (*target, *below))

    def imply(self, loc: Loc, reason: str) -> None:
        """Record that the gateway does anyway what a value says, with all below it."""
        for leaf in self._iter_open_leaves(loc):
            self.outcomes[leaf] = Outcome(OutcomeKind.IMPLIED, reason=reason)

    def omit(self, loc: Loc, reason: str, near: Loc = ()) -> None:
        """Record that a value was not carried, with all below it that has no outcome yet."""
        open_leaves = list(self._iter_open_leaves(loc))
        for leaf in open_leaves:
            self.outcomes[leaf] = Outcome(OutcomeKind.OMITTED, reason=reason)
        if open_leaves:
            is_rest = len(self._leaves_below[loc]) > len(open_leaves)
            self._omissions.append(Omission(loc, reason, near, is_rest))

    def omit_rest(self, reason: str = UNKNOWN) -> None:
        """Omit everything that has no outcome yet; nothing is open afterwards."""
        for loc in _find_highest(set(self._iter_open_leaves(())), self.leaves):
            self.omit(loc, reason)

    def drop_target(self, target: Loc, reason: str) -> None:
        """Omit all that was carried to a place of the new configuration, or below it."""
        lost = {
            leaf
            for leaf, outcome in self.outcomes.items()
            if outcome.kind is OutcomeKind.CARRIED and outcome.target[: len(target)] == target
        }
        for leaf in lost:
            self.outcomes[leaf] = Outcome(OutcomeKind.OMITTED, reason=reason)
        self._omissions += [Omission(loc, reason) for loc in _find_highest(lost, self.leaves)]

    def move_targets(self, moves: Iterable[tuple[Loc, Loc]]) -> None:
        """Change the places of what was carried, because places before them are gone."""
        changes = dict(moves)
        for leaf, outcome in self.outcomes.items():
            self.outcomes[leaf] = replace(outcome, target=_move(outcome.target, changes))
        self._omissions = [
            replace(each, near=_move(each.near, changes)) for each in self._omissions
        ]

    @property
    def omissions(self) -> list[Omission]:
        """All that was not carried, in the order of the file."""
        numbers = {leaf: number for number, leaf in enumerate(self.leaves)}

        def rank(omission: Omission) -> tuple[int, int]:
            return numbers[self._leaves_below[omission.loc][0]], len(omission.loc)

        return sorted(self._omissions, key=rank)

    def count(self, kind: OutcomeKind) -> int:
        """Return how many leaves have an outcome."""
        return sum(outcome.kind is kind for outcome in self.outcomes.values())

    def _iter_open_leaves(self, loc: Loc) -> Iterator[Loc]:
        for leaf in self._leaves_below.get(loc, ()):
            if leaf not in self.outcomes:
                yield leaf


class SourceValue:
    """A value of the source, with its place and the report on it. Missing ones have None."""

    def __init__(self, report: MigrationReport, loc: Loc, value: Any) -> None:
        """Create the value of a place."""
        self.report = report
        self.loc = loc
        self.value = value

    @property
    def exists(self) -> bool:
        """Whether the file has it, and not as null."""
        return self.value is not None

    @property
    def text(self) -> str:
        """Its text; empty if it is none. Numbers and booleans are texts, too."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return str(self.value) if isinstance(self.value, (str, int, float)) else ""

    def get(self, *steps: str | int) -> SourceValue:
        """Return the value at a path below it."""
        value: Any = self.value
        for step in steps:
            if isinstance(value, dict):
                value = value.get(str(step))
            elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
                value = value[step]
            else:
                value = None
        return SourceValue(self.report, (*self.loc, *steps), value)

    def items(self) -> Iterator[tuple[str, SourceValue]]:
        """Yield the keys and values of a mapping; nothing of anything else."""
        for key in self.value if isinstance(self.value, dict) else ():
            yield key, self.get(key)

    def __iter__(self) -> Iterator[SourceValue]:
        """Yield the items of a list; nothing of anything else."""
        for index in range(len(self.value) if isinstance(self.value, list) else 0):
            yield self.get(index)

    def list_texts(self) -> list[str]:
        """Return the texts of a list, or the one text that stands for it."""
        if isinstance(self.value, list):
            return [item.text for item in self if item.text]
        return [self.text] if self.text else []

    def carry(self, *target: str | int, is_same: bool = False) -> Any:
        """Record that it was carried to a place, and return it; see `MigrationReport.carry`."""
        if self._is_in_source():
            self.report.carry(self.loc, target, is_same=is_same)
        return self.value

    def imply(self, reason: str) -> None:
        """Record that the gateway does anyway what it says."""
        if self._is_in_source():
            self.report.imply(self.loc, reason)

    def omit(self, reason: str, near: Loc = ()) -> None:
        """Record that it was not carried."""
        if self._is_in_source():
            self.report.omit(self.loc, reason, near)

    def _is_in_source(self) -> bool:
        """Return whether the file has it, also as null."""
        return self.exists or self.loc in self.report.leaves


def _find_highest(open_leaves: set[Loc], leaves: Iterable[Loc]) -> list[Loc]:
    """Return the fewest paths that have all of these leaves below them and no other one."""
    closed = {
        leaf[:length]
        for leaf in leaves
        if leaf not in open_leaves
        for length in range(len(leaf) + 1)
    }
    highest: dict[Loc, None] = {}
    for leaf in leaves:
        if leaf in open_leaves:
            length = next((n for n in range(1, len(leaf)) if leaf[:n] not in closed), len(leaf))
            highest[leaf[:length]] = None
    return list(highest)


def _move(loc: Loc, changes: dict[Loc, Loc]) -> Loc:
    for length in range(len(loc), 0, -1):
        if loc[:length] in changes:
            return (*changes[loc[:length]], *loc[length:])
    return loc
