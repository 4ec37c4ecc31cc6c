"""Where in a value something does not fit."""

from __future__ import annotations

from collections.abc import Iterable


class Misfit(Exception):
    """A part of a value that its schema does not take; what holds it adds the way there."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._way: list[str] = []

    def inside(self, step: str | int) -> Misfit:
        """The same, seen from the object or array that has it under that name or index."""
        self._way.append(str(step))
        return self

    @property
    def pointer(self) -> str:
        return pointer(reversed(self._way))


def pointer(way: Iterable[object]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in way)
