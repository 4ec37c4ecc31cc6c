"""Keep values that are cached for clients, within bounds that no client can exceed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Generic, TypeVar

T = TypeVar("T")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


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


class SizedCache(Generic[K, V]):
    """Values by key; the one that was stored first goes first.

    The value that was stored last stays, however large it is.

    Args:
        max_bytes: How many bytes the values may have together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[K, tuple[V, int]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def store(self, key: K, value: V, size: int) -> None:
        """Keep a value.

        Args:
            key: Its key.
            value: The value.
            size: How many bytes count for it.
        """
        self.remove(key)
        self._entries[key] = value, size
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._entries) > 1:
            self.remove(next(iter(self._entries)))

    def remove(self, key: K) -> None:
        """Forget a value, if it is there."""
        _, size = self._entries.pop(key, (None, 0))
        self._bytes -= size
