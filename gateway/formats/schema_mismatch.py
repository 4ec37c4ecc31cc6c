"""Where in a value something does not fit."""

from __future__ import annotations

from collections.abc import Iterable


class SchemaMismatch(Exception):
    """A part of a value that its schema does not take; what holds it adds the way there."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._path: list[str] = []

    def add_step(self, step: str | int) -> SchemaMismatch:
        """The same, seen from the object or array that has it under that name or index."""
        self._path.append(str(step))
        return self

    @property
    def pointer(self) -> str:
        return build_pointer(reversed(self._path))


def build_pointer(path: Iterable[object]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
