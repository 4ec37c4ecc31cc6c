"""A section that is one of several kinds, by its `type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SerializationInfo, ValidationInfo

from gateway.config.source.expression import nearest
from gateway.config.source.substitution import shown

from .section import Problem, Section, refusal


def of_kind(
    value: object, info: ValidationInfo, kinds: Mapping[str, type[Section]], what: str
) -> Section:
    """What is wrong in it is told in its own place. what: they are kinds of."""
    if isinstance(value, tuple(kinds.values())):
        return value  # type: ignore[return-value]
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind].model_validate(value, context=info.context)
    if not isinstance(value, Mapping):
        return next(iter(kinds.values())).model_validate(value)  # refuses it as any section
    if kind is None:
        raise refusal(Problem((), f"'type' is missing; add one of {', '.join(kinds)}", key=True))
    hint = nearest(kind, kinds) if isinstance(kind, str) else f"use one of {', '.join(kinds)}"
    raise refusal(Problem(("type",), f"{shown(kind)} is no kind of {what}; {hint}"))


def written(section: Section, info: SerializationInfo) -> Any:
    """As its own kind has it."""
    return section.model_dump(mode=info.mode, by_alias=bool(info.by_alias))
