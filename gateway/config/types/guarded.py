"""Define `guarded`: the guards of a route or section, each with the roles that it must grant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from gateway.config.source.substitution import SubstitutedText, describe_not_text, safe_repr

from .fields import Text
from .section import Loc, WrittenForm, create_value_error
from .shorthand import Shorthand


def _expand_names(value: Any) -> WrittenForm | None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        return None
    moves: dict[Loc, Loc] = {(name,): (index,) for index, name in enumerate(value)}
    return WrittenForm({name: [] for name in value}, moves)


def _check_form(value: Any) -> Any:
    if value is None:
        raise create_value_error("is empty; name a guard, or remove it")
    if not isinstance(value, (list, tuple)):
        if isinstance(value, Mapping):
            return value
        hint = f"write [{_show_name(value)}]"
        raise create_value_error(f"expects guards, not {safe_repr(value)}; {hint}")
    for item in value:
        if isinstance(item, Mapping):
            what = "a list has names of guards and no roles"
            hint = f"write {{{_show_name(next(iter(item), None))}: [ROLE]}}"
            raise create_value_error(f"{what}; to require roles, {hint}")
        if not isinstance(item, str):
            raise create_value_error(describe_not_text(item, "names of guards"))
    return value


def _show_name(written: object) -> str:
    """Return a text as the name of a guard, for a hint; NAME if it cannot be one."""
    is_plain = isinstance(written, str) and not isinstance(written, SubstitutedText)
    return str(written) if is_plain and re.fullmatch(r"[\w-]{1,40}", str(written)) else "NAME"


Guarded: TypeAlias = Annotated[
    dict[Text, tuple[Text, ...]],
    Shorthand(_expand_names, {"type": "array", "items": {"type": "string", "minLength": 1}}),
    BeforeValidator(_check_form),
]
"""Guards by name, each with its roles. A list of names requires no roles."""
