"""Define how the fetcher decodes entries that need something loaded first, such as schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from gateway.core.log.record import Entry


class ModelResult(NamedTuple):
    """What a model made of some entries.

    Attributes:
        entries: The decoded entries, up to the first one that cannot be decoded yet.
        load_schemas: Loads what that one needs; awaited before it is fetched again. It raises
            RegistryUnavailable. None if all were decoded.
    """

    entries: Sequence[Entry]
    load_schemas: Callable[[], Awaitable[None]] | None = None


TopicModel: TypeAlias = Callable[[Sequence[Entry]], ModelResult]
"""Decode the entries of a topic, as far as that is possible without I/O."""


def get_no_model(topic: str) -> TopicModel | None:
    """Return None, so that the entries of every topic are delivered as they are."""
    return None
