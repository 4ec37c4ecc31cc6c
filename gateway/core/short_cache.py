"""Cache functions of one text whose length is the choice of a client."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")


def cache_short(
    max_entries: int, max_chars: int = 256
) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Return a decorator that caches a function for short texts only.

    Otherwise a client that sends many long headers could fill the cache with megabytes.
    """

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(max_entries)(function)

        @wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= max_chars else function(text)

        return call

    return decorate
