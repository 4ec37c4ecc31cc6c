"""Define `guarded`: the guards of a route or section, each with the roles that it must grant."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from .fields import Text
from .section import Loc, WrittenForm
from .shorthand import Shorthand


def _expand_names(value: Any) -> WrittenForm | None:
    """Return the long form of a list of guards, which require no roles."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        return None
    moves: dict[Loc, Loc] = {(name,): (index,) for index, name in enumerate(value)}
    return WrittenForm({name: [] for name in value}, moves)


Guarded: TypeAlias = Annotated[
    dict[Text, tuple[Text, ...]],
    Shorthand(_expand_names, {"type": "array", "items": {"type": "string", "minLength": 1}}),
]
"""Guards by name, each with its roles. A list of names requires no roles."""
