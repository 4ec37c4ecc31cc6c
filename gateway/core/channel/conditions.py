"""Test a key, a header or a field of the value for more than equality with one text.

A condition tests text: the bytes of a key or header as they are, or a field's text as `filters`
defines it. A range is tested on the number that the text is in the grammar of JSON, compared
exactly however many digits it has. A text that is not a JSON number is in no range.
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
BOUND_NAMES: Final = tuple(_OPERATORS)  # the names of bounds in configuration and requests


@dataclass(frozen=True, slots=True)
class Condition:
    """A test that holds where all of its given parts do.

    A frozen value: equal conditions compare equal, in whatever order their parts were written, so
    that equal filters share a channel. Raises ValueError without any part, or if parts contradict
    each other.

    Attributes:
        prefix: The beginning that the text has to have; None for any.
        exists: Whether anything must be there at all, where null counts as something. False
            excludes all other parts.
        bounds: Pairs of `gt`, `gte`, `lt` or `lte` and a number.
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
        checks_text = self.one_of is not None or self.prefix is not None or bool(self.bounds)
        if not checks_text and self.exists is None:
            raise ValueError("a condition without any part; add in, prefix, exists or a range")
        if checks_text and self.exists is False:
            raise ValueError(
                "'exists: false' excludes in, prefix and ranges; ask for one of the two"
            )
        bounds = tuple(sorted({(name, normalize_number(number)) for name, number in self.bounds}))
        self._set_fields(
            one_of=None if self.one_of is None else tuple(sorted(set(self.one_of))),
            exists=None if checks_text else self.exists,  # implied by a test of the text
            bounds=bounds,
            _one_of=frozenset(text.encode() for text in self.one_of or ()),
            _prefix=(self.prefix or "").encode(),
            _bounds=tuple((_OPERATORS[name], bound, float(bound)) for name, bound in bounds),
            _checks_text=checks_text,
        )

    def _set_fields(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def matches_any(self, contents: Iterable[bytes | None]) -> bool:
        """Return whether any of the contents under one name matches; None has no text."""
        if self._checks_text:
            return any(text is not None and self._matches_text(text) for text in contents)
        return self.exists is any(True for _ in contents)

    def matches_field(
        self, content: Any, text: bytes | None, read_numeral: Callable[[], str]
    ) -> bool:
        """Return whether a field that is there matches, by its content and text (None: no scalar).

        `read_numeral` is called only where a double is too inexact to decide.
        """
        if not self._checks_text:
            return self.exists is True
        if text is None:
            return False
        # type(), because isinstance() takes a bool for an int; a bool is compared as text.
        if type(content) is int or type(content) is float:
            return self._is_listed(text) and self._is_number_in_bounds(content, read_numeral)
        return self._matches_text(text)

    def _matches_text(self, text: bytes) -> bool:
        return self._is_listed(text) and (not self._bounds or self._is_numeral_in_bounds(text))

    def _is_listed(self, text: bytes) -> bool:
        if self.one_of is not None and text not in self._one_of:
            return False
        return not self._prefix or text.startswith(self._prefix)

    def _is_numeral_in_bounds(self, text: bytes) -> bool:
        # isascii() first, because decoding bytes that are not UTF-8 raises an exception.
        number = parse_number(text.decode()) if text.isascii() else None
        return number is not None and all(holds(number, bound) for holds, bound, _ in self._bounds)

    def _is_number_in_bounds(self, content: int | float, read_numeral: Callable[[], str]) -> bool:
        for holds, bound, bound_as_float in self._bounds:
            if type(content) is int:
                if not holds(content, bound):
                    return False
            elif content != bound_as_float:
                # Rounding to doubles keeps the order, so unequal doubles decide exactly. That holds
                # for a bound beyond all doubles as well, which is rounded to infinity.
                if not holds(content, bound_as_float):
                    return False
            else:  # the rounded values are equal: the digits decide
                exact = parse_number(read_numeral())
                if exact is None or not holds(exact, bound):
                    return False
        return True
