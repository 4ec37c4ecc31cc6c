"""Record the outcome of each value of a file that is migrated.

Every leaf of the file has one outcome: it was *carried* to a place of the new configuration, it is
*implied* by what the gateway does anyway, or it was *omitted* for a reason. A value that no
converter has looked at is omitted as unknown, so that nothing is dropped silently.
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
    CARRIED = "carried"
    IMPLIED = "implied"
    OMITTED = "not carried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one leaf: its target if carried, or the reason if implied or omitted."""

    kind: OutcomeKind
    target: Loc = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Omission:
    """A value of the source that was not carried, with all below it.

    Attributes:
        near: The place in the new configuration where readers miss it; empty for none.
        is_rest: Whether something below it has another outcome.
    """

    loc: Loc
    reason: str
    near: Loc = ()
    is_rest: bool = False


class MigrationReport:
    """The outcome of every leaf of one source. The first outcome of a leaf counts.

    Filled by the converter, and changed by `validation` if a carried value is refused.
    """

    def __init__(self, source: Source) -> None:
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
        """Record that a value was carried; with `is_same`, the paths below it stay the same."""
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
        """Omit every leaf that has no outcome yet."""
        for loc in _find_highest(set(self._iter_open_leaves(())), self.leaves):
            self.omit(loc, reason)

    def drop_target(self, target: Loc, reason: str) -> None:
        """Omit all values that were carried to a place of the new configuration, or below it."""
        lost = {
            leaf
            for leaf, outcome in self.outcomes.items()
            if outcome.kind is OutcomeKind.CARRIED and outcome.target[: len(target)] == target
        }
        for leaf in lost:
            self.outcomes[leaf] = Outcome(OutcomeKind.OMITTED, reason=reason)
        self._omissions += [Omission(loc, reason) for loc in _find_highest(lost, self.leaves)]

    def move_targets(self, moves: Iterable[tuple[Loc, Loc]]) -> None:
        """Change the targets of carried values, because places before them are gone."""
        changes = dict(moves)
        for leaf, outcome in self.outcomes.items():
            self.outcomes[leaf] = replace(outcome, target=_move(outcome.target, changes))
        self._omissions = [
            replace(each, near=_move(each.near, changes)) for each in self._omissions
        ]

    @property
    def omissions(self) -> list[Omission]:
        numbers = {leaf: number for number, leaf in enumerate(self.leaves)}

        def rank(omission: Omission) -> tuple[int, int]:
            return numbers[self._leaves_below[omission.loc][0]], len(omission.loc)

        return sorted(self._omissions, key=rank)

    def count(self, kind: OutcomeKind) -> int:
        return sum(outcome.kind is kind for outcome in self.outcomes.values())

    def _iter_open_leaves(self, loc: Loc) -> Iterator[Loc]:
        for leaf in self._leaves_below.get(loc, ()):
            if leaf not in self.outcomes:
                yield leaf


class SourceValue:
    """A value of the source, with its place and the report on it. Missing ones have None."""

    def __init__(self, report: MigrationReport, loc: Loc, value: Any) -> None:
        self.report = report
        self.loc = loc
        self.value = value

    @property
    def exists(self) -> bool:
        """Whether the file has it, and not as null."""
        return self.value is not None

    @property
    def text(self) -> str:
        """Its text, also of a number or boolean; empty for others."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return str(self.value) if isinstance(self.value, (str, int, float)) else ""

    def get(self, *steps: str | int) -> SourceValue:
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
        for key in self.value if isinstance(self.value, dict) else ():
            yield key, self.get(key)

    def __iter__(self) -> Iterator[SourceValue]:
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
        if self._is_in_source():
            self.report.imply(self.loc, reason)

    def omit(self, reason: str, near: Loc = ()) -> None:
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
