"""Read values as written, before validation, when any of them may be invalid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def is_refused_mapping(value: object) -> bool:
    """Return whether another value is written where a mapping is expected.

    That alone is reported, and not every name that would have to be in the mapping.
    """
    return value is not None and not isinstance(value, Mapping)


def is_true(value: object) -> bool:
    return value is True or value == "true"
