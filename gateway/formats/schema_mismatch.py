"""Say where in a value something does not fit its schema."""

from __future__ import annotations

from collections.abc import Iterable


class SchemaMismatch(Exception):
    """A part of a value does not fit its schema.

    It is raised where that part is checked. Each enclosing part adds its step, so that in the end
    `pointer` leads from the whole value to the part.
    """

    def __init__(self, message: str, path: Iterable[str] = ()) -> None:
        """Create one.

        Args:
            message: What does not fit; it continues "the value ...".
            path: The steps to the part that are known, innermost first. By default it is raised for
                the part itself.
        """
        super().__init__(message)
        self._path = list(path)  # innermost step first

    def add_step(self, step: str | int) -> SchemaMismatch:
        """Add the name or index of the part in the enclosing object or array, and return self."""
        self._path.append(str(step))
        return self

    @property
    def path(self) -> tuple[str, ...]:
        """Return the steps that were added, innermost first."""
        return tuple(self._path)

    @property
    def pointer(self) -> str:
        """Return the JSON pointer of the part (RFC 6901); empty for the whole value."""
        return build_pointer(reversed(self._path))


def build_pointer(path: Iterable[object]) -> str:
    """Return the JSON pointer of a path (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
