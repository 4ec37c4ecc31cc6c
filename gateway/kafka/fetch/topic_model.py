"""Entries that are understood only with what somebody else knows, such as schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from gateway.core.log.record import Entry


class ModelResult(NamedTuple):
    """entries: those up to the first one that is not understood yet.
    ask: to be awaited before that one is read again; raises RegistryUnavailable. None if all is
         understood."""

    entries: Sequence[Entry]
    load_schemas: Callable[[], Awaitable[None]] | None = None


TopicModel: TypeAlias = Callable[[Sequence[Entry]], ModelResult]


def get_no_model(topic: str) -> TopicModel | None:
    """There is nothing to be understood."""
    return None
