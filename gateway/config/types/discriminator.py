"""A section that is one of several kinds, by its `type`."""

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
    """What is wrong in it is told in its own place. what: they are kinds of."""
    if isinstance(value, tuple(types.values())):
        return value  # type: ignore[return-value]
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind in types:
        return types[kind].model_validate(value, context=info.context)
    if not isinstance(value, Mapping):
        return next(iter(types.values())).model_validate(value)  # refuses it as any section
    if kind is None:
        raise create_section_error(
            Problem((), f"'type' is missing; add one of {', '.join(types)}", is_key=True)
        )
    hint = suggest(kind, types) if isinstance(kind, str) else f"use one of {', '.join(types)}"
    raise create_section_error(
        Problem(("type",), f"{safe_repr(kind)} is no kind of {noun}; {hint}")
    )


def serialize_section(section: Section, info: SerializationInfo) -> Any:
    """As its own kind has it."""
    return section.model_dump(mode=info.mode, by_alias=bool(info.by_alias))
