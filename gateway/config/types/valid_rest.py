"""Find what is valid of a configuration with invalid options, so that the rest can be checked.

Options that pydantic refuses are left out, until what remains is valid. The checks between sections
run on that. A problem that follows from an option which was left out is none: it might be gone once
the option is corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from .section import ErrorKey, Loc, Problem, read_errors
from .substitution import UnresolvedText

T = TypeVar("T")

STAND_INS: Mapping[str, Any] = {"servers": "embedded", "path": "/", "url": "http://localhost"}
"""Valid values for options that a section cannot do without."""
SECTION_STAND_INS: Mapping[str, Any] = {"kafka": {"servers": "embedded"}}
"""Valid sections, in place of those that a configuration cannot do without."""


class ValidRest:
    """What is left of values as written without those that are invalid.

    Attributes:
        lost: The paths of what was left out because its value is invalid, missing or not known.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._unknown_keys: set[Loc] = set()
        self.lost = set(_iter_unresolved(values))

    def validate(self, validate: Callable[[Any], T], errors: Iterable[ErrorKey]) -> T | None:
        """Return the settings without what is invalid; None if too little is left.

        Args:
            errors: Those of the whole values.
        """
        found = [key for key in errors if not self._is_lost(key[0])]
        while () not in self.lost:
            # First all places: a section that lacks two options must not cost the one around it.
            places = [(self._find_place(loc, kind), kind) for loc, kind, _ in found]
            for place, kind in places:
                left_out = self._unknown_keys if kind == "extra_forbidden" else self.lost
                left_out.add(place)
            try:
                return validate(self._prune(self._values, ()))
            except ValidationError as error:
                # Each is of a value that is not lost yet, or of one that lacks what was lost.
                found = [(self._restore(loc), kind, what) for loc, kind, what in read_errors(error)]
        return None

    def filter_problems(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        """Yield the problems that do not follow from what was left out, with their places."""
        for problem in problems:
            loc = self._restore(problem.loc)
            needs = list(map(self._restore, problem.needs))
            is_known = not any(_concerns(lost, need) for lost in self.lost for need in needs)
            has_moved = self._restore(problem.named)[-1:] != problem.named[-1:]
            if is_known and not has_moved and not self._is_lost(loc):
                yield problem._replace(loc=loc)

    def _is_lost(self, loc: Loc) -> bool:
        return any(loc[: len(lost)] == lost for lost in self.lost)

    def _find_place(self, loc: Loc, kind: str) -> Loc:
        """Return the path of the innermost value that an error is about, and that is not lost.

        A missing option with a stand-in is a place of its own.
        """
        place: Loc = ()
        values: Any = self._values
        for step in loc:
            if (*place, step) in self.lost:
                break
            if not _has_item(values, step):
                is_replaced = kind == "missing" and step in _get_stand_ins(place)
                return (*place, step) if is_replaced else place
            values, place = values[step], (*place, step)
        return place

    def _prune(self, values: Any, loc: Loc) -> Any:
        def is_left(step: str | int) -> bool:
            return (*loc, step) not in self.lost | self._unknown_keys

        if isinstance(values, Mapping):
            items = {
                key: self._prune(item, (*loc, key)) for key, item in values.items() if is_left(key)
            }
            stand_ins = _get_stand_ins(loc).items()
            return items | {key: each for key, each in stand_ins if (*loc, key) in self.lost}
        if isinstance(values, list):
            return [self._prune(item, (*loc, n)) for n, item in enumerate(values) if is_left(n)]
        return values

    def _restore(self, loc: Loc) -> Loc:
        """Return the path in the whole values of a path in the pruned ones."""
        restored: Loc = ()
        values: Any = self._values
        for step in loc:
            if isinstance(step, int) and isinstance(values, Mapping):
                continue  # a single item stands for a list of one
            if isinstance(step, int) and isinstance(values, (list, tuple)):
                left = [n for n in range(len(values)) if (*restored, n) not in self.lost]
                step = left[step] if step < len(left) else step
            values = values[step] if _has_item(values, step) else None
            restored = (*restored, step)
        return restored


def _get_stand_ins(loc: Loc) -> Mapping[str, Any]:
    return STAND_INS if loc else SECTION_STAND_INS


def _has_item(values: Any, step: str | int) -> bool:
    if isinstance(values, Mapping):
        return step in values
    return isinstance(values, (list, tuple)) and isinstance(step, int) and step < len(values)


def _concerns(lost: Loc, need: Loc) -> bool:
    """Return whether something that is needed was lost."""
    if need[-1:] == ("*",):
        return lost[:-1] == need[:-1] or lost == need[: len(lost)]
    length = min(len(lost), len(need))
    return lost[:length] == need[:length]


def _iter_unresolved(values: Any, loc: Loc = ()) -> Iterator[Loc]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(values, Mapping):
        items = values.items()
    elif isinstance(values, (list, tuple)):
        items = enumerate(values)
    elif isinstance(values, UnresolvedText):
        yield loc
    for step, item in items:
        yield from _iter_unresolved(item, (*loc, step))
