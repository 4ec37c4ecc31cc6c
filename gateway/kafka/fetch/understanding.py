"""Entries that are understood only with what somebody else knows, such as schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from gateway.core.log.record import Entry


class Understood(NamedTuple):
    """entries: those up to the first one that is not understood yet.
    ask: to be awaited before that one is read again; raises RegistryUnavailable. None if all is
         understood."""

    entries: Sequence[Entry]
    ask: Callable[[], Awaitable[None]] | None = None


Understand: TypeAlias = Callable[[Sequence[Entry]], Understood]


def as_it_is(topic: str) -> Understand | None:
    """There is nothing to be understood."""
    return None
