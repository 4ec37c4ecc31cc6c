"""Define how the fetcher decodes entries that need something loaded first, such as schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from gateway.core.log.record import Entry


class ModelResult(NamedTuple):
    """The entries that a model has decoded.

    Attributes:
        entries: The decoded entries, up to the first one that cannot be decoded yet.
        load_schemas: Loads the schemas of that one, and raises RegistryUnavailable; awaited before
            it is fetched again. None if all were decoded.
    """

    entries: Sequence[Entry]
    load_schemas: Callable[[], Awaitable[None]] | None = None


TopicModel: TypeAlias = Callable[[Sequence[Entry]], ModelResult]
"""Decode the entries of a topic, as far as that is possible without I/O."""


def get_no_model(topic: str) -> TopicModel | None:
    """Return None, so that the entries of every topic are delivered as they are."""
    return None
