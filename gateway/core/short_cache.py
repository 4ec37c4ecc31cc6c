"""A cache for functions of one text that a client may make long."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")


def cache_short(
    max_entries: int, max_chars: int = 256
) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Return a decorator that remembers what a function returned for short texts.

    A cache that is bounded by its entries alone keeps megabytes for whoever sends many long
    headers. Texts of more than `max_chars` characters are worked out each time.

    Args:
        entries: How many texts are remembered; the ones unused for longest are forgotten.
        max_chars: The longest text that is remembered.
    """

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(max_entries)(function)

        @wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= max_chars else function(text)

        return call

    return decorate
