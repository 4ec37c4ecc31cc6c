"""Validate a section that is one of several kinds, chosen by its `type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SerializationInfo, ValidationInfo

from gateway.config.source.expression import suggest
from gateway.config.source.substitution import safe_repr

from .section import Problem, Section, create_section_error


def validate_by_type(
    value: object, info: ValidationInfo, types: Mapping[str, type[Section]], noun: str
) -> Section:
    """Return the section of the kind that `type` names.

    A problem in it is reported at its own place, once: a pydantic union would report it for every
    kind.

    Args:
        value: The raw mapping, or a section that was validated before.
        info: Pydantic's validation info, whose context is passed on.
        types: The kinds, by their `type`.
        noun: What these are kinds of, for messages, such as `guard`.
    """
    if isinstance(value, tuple(types.values())):
        return value  # type: ignore[return-value]
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind in types:
        return types[kind].model_validate(value, context=info.context)
    if not isinstance(value, Mapping):
        return next(iter(types.values())).model_validate(value)  # raises: it is not a mapping
    if kind is None:
        raise create_section_error(
            Problem((), f"'type' is missing; add one of {', '.join(types)}", is_key=True)
        )
    hint = suggest(kind, types) if isinstance(kind, str) else f"use one of {', '.join(types)}"
    raise create_section_error(
        Problem(("type",), f"{safe_repr(kind)} is no kind of {noun}; {hint}")
    )


def serialize_section(section: Section, info: SerializationInfo) -> Any:
    """Return the section as its own class serializes it."""
    return section.model_dump(mode=info.mode, by_alias=bool(info.by_alias))
