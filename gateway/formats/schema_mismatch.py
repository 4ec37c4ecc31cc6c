"""Say where in a value something does not fit its schema."""

from __future__ import annotations

from collections.abc import Iterable


class SchemaMismatch(Exception):
    """A part of a value does not fit its schema; the message continues "the value ...".

    It is raised where that part is checked. Each enclosing part adds its step, so that in the end
    `pointer` leads from the whole value to the part. A known `path` begins with the innermost step.
    """

    def __init__(self, message: str, path: Iterable[str] = ()) -> None:
        super().__init__(message)
        self._path = list(path)  # innermost step first

    def add_step(self, step: str | int) -> SchemaMismatch:
        """Add the name or index of the part in the enclosing object or array, and return self."""
        self._path.append(str(step))
        return self

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self._path)

    @property
    def pointer(self) -> str:
        return build_pointer(reversed(self._path))


def build_pointer(path: Iterable[object]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
