"""Read values as written, before validation, when any of them may be invalid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_mapping(value: object) -> Mapping[Any, Any]:
    """Return a mapping as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[Any]:
    """Return the elements of a list; none for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def is_refused_mapping(value: object) -> bool:
    """Return whether a mapping is expected here and something else is written.

    That alone is reported, and not every name that would have to be in the mapping.
    """
    return value is not None and not isinstance(value, Mapping)


def is_true(value: object) -> bool:
    """Return whether a flag is set."""
    return value is True or value == "true"
