"""Read a zilla.yaml, and record the outcome of each of its values.

Every leaf of the file has one outcome: it was *carried* to a place of the new configuration, it is
*implied* by what the gateway does anyway, or it was *omitted* for a reason. A value that no
converter has looked at is omitted as unknown, so that nothing is dropped silently. Nothing is
substituted: `${...}` means something else there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode

from gateway.config.source.nodes import MalformedYamlError, SourceMark, compose, get_mark
from gateway.config.source.problems import format_loc
from gateway.config.source.yaml_document import decode_utf8, parse_plain
from gateway.config.types.section import Loc
from gateway.errors import ConfigError

MAX_VALUES = 200_000  # with aliases expanded: refuses an alias bomb
UNKNOWN = "is not known to `gateway migrate`; look up what it does, and whether you need it here"


@dataclass(slots=True)
class Source:
    """A YAML file. `marks` has the places of values in the file, by path: those of their keys."""

    name: str
    values: Any
    marks: dict[Loc, SourceMark] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, name: str) -> Source:
        source = cls(name, None)
        try:
            source.values = source._build(compose(text), ())
        except MalformedYamlError as exc:
            place = f"{name}:{exc.mark.line}:{exc.mark.column}"
            raise ConfigError([f"{place}: {exc.message}"]) from exc
        return source

    def format_place(self, loc: Loc) -> str:
        mark = self.marks.get(loc)
        line = f":{mark.line}" if mark is not None else ""
        return f"{self.name}{line}: {format_loc(loc) or 'the file'}"

    def _build(self, node: Node, loc: Loc, mark: SourceMark | None = None) -> Any:
        self.marks[loc] = mark or get_mark(node)
        if len(self.marks) > MAX_VALUES:
            message = f"more than {MAX_VALUES} values, aliases expanded; use fewer"
            raise MalformedYamlError(get_mark(node), message)
        if isinstance(node, ScalarNode):
            return node.value if node.style else parse_plain(node.value)
        if isinstance(node, SequenceNode):
            return [self._build(item, (*loc, index)) for index, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key, item in node.value:
            if key.value in values:
                first = self.marks[*loc, key.value].line
                message = f"duplicate key '{key.value}', first on line {first}; remove one"
                raise MalformedYamlError(get_mark(key), message)
            values[key.value] = self._build(item, (*loc, key.value), get_mark(key))
        return values


def read_source(file: Path) -> Source:
    try:
        raw = file.read_bytes()
    except OSError as exc:
        raise ConfigError([f"{file}:1:1: cannot be read ({exc.strerror}); check the path"]) from exc
    return Source.parse(decode_utf8(raw, name=str(file)), str(file))


def iter_leaves(values: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    if isinstance(values, Mapping) and values:
        for key, item in values.items():
            yield from iter_leaves(item, (*loc, key))
    elif isinstance(values, list) and values:
        for index, item in enumerate(values):
            yield from iter_leaves(item, (*loc, index))
    else:
        yield loc, values


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

    def describe(self) -> str:
        rest = " (the rest of it)" if self.is_rest else ""
        return f"{rest}: {self.reason}"


class MigrationReport:
    """The outcome of every leaf of one source. The first outcome of a leaf counts."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.outcomes: dict[Loc, Outcome] = {}
        self._leaves = [loc for loc, _ in iter_leaves(source.values)]
        self._omissions: list[Omission] = []
        self._leaves_below: dict[Loc, list[Loc]] = {}
        for leaf in self._leaves:
            for length in range(len(leaf) + 1):
                self._leaves_below.setdefault(leaf[:length], []).append(leaf)

    def carry(self, loc: Loc, target: Loc, *, is_same: bool = False) -> None:
        """Record that a value was carried; with `is_same`, the paths below it stay the same."""
        for leaf in self._list_open_leaves(loc):
            below = leaf[len(loc) :] if is_same else ()
            self.outcomes[leaf] = Outcome(OutcomeKind.CARRIED, (*target, *below))

    def imply(self, loc: Loc, reason: str) -> None:
        """Record that the gateway does anyway what a value says, with all below it."""
        for leaf in self._list_open_leaves(loc):
            self.outcomes[leaf] = Outcome(OutcomeKind.IMPLIED, reason=reason)

    def omit(self, loc: Loc, reason: str, near: Loc = ()) -> None:
        """Record that a value was not carried, with all below it that has no outcome yet."""
        if leaves := self._list_open_leaves(loc):
            self.outcomes |= dict.fromkeys(leaves, Outcome(OutcomeKind.OMITTED, reason=reason))
            is_rest = len(self._leaves_below[loc]) > len(leaves)
            self._omissions.append(Omission(loc, reason, near, is_rest))

    def omit_rest(self) -> None:
        for loc in self._find_highest(set(self._list_open_leaves(()))):
            self.omit(loc, UNKNOWN)

    def drop_target(self, target: Loc, reason: str) -> None:
        """Omit all values that were carried to a place of the new configuration, or below it."""
        lost = {
            leaf
            for leaf, outcome in self.outcomes.items()
            if outcome.kind is OutcomeKind.CARRIED and outcome.target[: len(target)] == target
        }
        self.outcomes |= dict.fromkeys(lost, Outcome(OutcomeKind.OMITTED, reason=reason))
        self._omissions += [Omission(loc, reason) for loc in self._find_highest(lost)]

    def move_targets(self, changes: Mapping[Loc, Loc]) -> None:
        """Change the targets of carried values, because places before them are gone."""
        for leaf, outcome in self.outcomes.items():
            self.outcomes[leaf] = replace(outcome, target=move(outcome.target, changes))
        self._omissions = [replace(each, near=move(each.near, changes)) for each in self._omissions]

    @property
    def omissions(self) -> list[Omission]:
        """What was not carried, in the order of the file."""
        numbers = {leaf: number for number, leaf in enumerate(self._leaves)}
        return sorted(
            self._omissions,
            key=lambda each: (numbers[self._leaves_below[each.loc][0]], len(each.loc)),
        )

    def _list_open_leaves(self, loc: Loc) -> list[Loc]:
        return [leaf for leaf in self._leaves_below.get(loc, ()) if leaf not in self.outcomes]

    def _find_highest(self, leaves: set[Loc]) -> Iterable[Loc]:
        """Return the fewest paths that have all of these leaves below them and no other one."""
        highest: dict[Loc, None] = {}
        for leaf in self._leaves:
            if leaf in leaves:
                paths = (leaf[:length] for length in range(1, len(leaf)))
                whole = (path for path in paths if leaves.issuperset(self._leaves_below[path]))
                highest[next(whole, leaf)] = None
        return highest


def move(loc: Loc, changes: Mapping[Loc, Loc]) -> Loc:
    for length in range(len(loc), 0, -1):
        if loc[:length] in changes:
            return (*changes[loc[:length]], *loc[length:])
    return loc


@dataclass(frozen=True, slots=True)
class SourceValue:
    """A value of the source, with its place and the report on it. Missing ones have None."""

    report: MigrationReport
    loc: Loc
    value: Any

    @property
    def exists(self) -> bool:
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

    def carry(self, *target: str | int, is_same: bool = False) -> None:
        """Record that it was carried to a place; see `MigrationReport.carry`."""
        self.report.carry(self.loc, target, is_same=is_same)

    def imply(self, reason: str) -> None:
        self.report.imply(self.loc, reason)

    def omit(self, reason: str, near: Loc = ()) -> None:
        self.report.omit(self.loc, reason, near)

    def explain(self, place: str, near: Loc = ()) -> None:
        """Record what `reasons.yaml` says of this place, for values that have no outcome yet."""
        reasons = load_reasons().get(place, {})
        for path, reason in reasons.get("implied", {}).items():
            for value in self._select(path.split(".")):
                value.imply(reason)
        for path, reason in reasons.get("omitted", {}).items():
            for value in self._select(path.split(".")):
                value.omit(reason, near)

    def _select(self, steps: Sequence[str]) -> Iterator[SourceValue]:
        if not steps:
            yield self
            return
        if steps[0] == "*":
            values: list[SourceValue] = [*self, *(value for _, value in self.items())]
        else:
            values = [self.get(steps[0])]
        for value in values:
            yield from value._select(steps[1:])


@cache
def load_reasons() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    text = files(__package__).joinpath("reasons.yaml").read_text("utf-8")
    reasons: Mapping[str, Mapping[str, Mapping[str, str]]] = YAML(typ="safe").load(text)
    return reasons
