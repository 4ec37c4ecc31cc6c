"""What a key, a header or a field of the value must be, beyond being equal to one text.

A condition looks at what is there as text: bytes of a key or header as they are, a field's
text as `filters` has it. In a range is what that text is as a JSON number, compared exactly
however many digits it has; a text that is no JSON number is in no range.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from .exact_json import Number, normalize_number, parse_number

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
BOUND_NAMES: Final = tuple(_OPERATORS)


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds where all that is given does.

    one_of: the texts that it may be. prefix: what its text begins with.
    exists: whether there is anything at all, null too; False stands alone.
    bounds: `gt`, `gte`, `lt`, `lte`, each with a number.
    Equal conditions are equal values, in whatever order they were written.
    Raises ValueError for a condition that says nothing, or that contradicts itself.
    """

    one_of: tuple[str, ...] | None = None
    prefix: str | None = None
    exists: bool | None = None
    bounds: tuple[tuple[str, Number], ...] = ()
    _one_of: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _prefix: bytes = field(init=False, repr=False, compare=False)
    _bounds: tuple[tuple[Callable[[Any, Any], bool], Number, float], ...] = field(
        init=False, repr=False, compare=False
    )
    _checks_text: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        looks = self.one_of is not None or self.prefix is not None or bool(self.bounds)
        if not looks and self.exists is None:
            raise ValueError("a condition without any part; add in, prefix, exists or a range")
        if looks and self.exists is False:
            raise ValueError("what is not there is in no list or range; ask for one of the two")
        bounds = tuple(sorted({(name, normalize_number(number)) for name, number in self.bounds}))
        self._set_fields(
            one_of=None if self.one_of is None else tuple(sorted(set(self.one_of))),
            exists=None if looks else self.exists,  # what has a text is there
            bounds=bounds,
            _one_of=frozenset(text.encode() for text in self.one_of or ()),
            _prefix=(self.prefix or "").encode(),
            _bounds=tuple((_OPERATORS[name], at, float(at)) for name, at in bounds),
            _checks_text=looks,
        )

    def _set_fields(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def matches_any(self, found: Iterable[bytes | None]) -> bool:
        """Of what there is under one name, nothing perhaps; None has no text."""
        if self._checks_text:
            return any(each is not None and self._matches_text(each) for each in found)
        return self.exists is any(True for _ in found)

    def matches_field(
        self, found: Any, text: bytes | None, read_numeral: Callable[[], str]
    ) -> bool:
        """Of a field that is there.

        found: as orjson reads it. text: None for an object or array.
        exactly: says how a number is written in the value.
        """
        if not self._checks_text:
            return self.exists is True
        if text is None:
            return False
        if type(found) is int or type(found) is float:
            return self._is_listed(text) and self._is_number_in_bounds(found, read_numeral)
        return self._matches_text(text)

    def _matches_text(self, text: bytes) -> bool:
        return self._is_listed(text) and (not self._bounds or self._is_numeral_in_bounds(text))

    def _is_listed(self, text: bytes) -> bool:
        if self.one_of is not None and text not in self._one_of:
            return False
        return not self._prefix or text.startswith(self._prefix)

    def _is_numeral_in_bounds(self, text: bytes) -> bool:
        # isascii() first: decoding what is no UTF-8 raises.
        number = parse_number(text.decode()) if text.isascii() else None
        return number is not None and all(holds(number, at) for holds, at, _ in self._bounds)

    def _is_number_in_bounds(self, found: int | float, read_numeral: Callable[[], str]) -> bool:
        for holds, at, near in self._bounds:
            if type(found) is int:
                if not holds(found, at):
                    return False
            elif found != near:
                # Rounding to a double keeps the order, so unequal doubles tell it exactly.
                if not holds(found, near):
                    return False
            else:
                exact = parse_number(read_numeral())
                if exact is None or not holds(exact, at):
                    return False
        return True
