from __future__ import annotations

from gateway.core.caches import SizedCache


def test_the_oldest_values_go_when_the_bytes_are_too_many():
    """Caches that were bounded by their entries only kept gigabytes of large ones."""
    cache: SizedCache[str, int] = SizedCache(10)
    for number, key in enumerate("abca"):
        cache.store(key, number, 4)
    assert [key for key in "abc" if key in cache] == ["a", "c"]
    assert cache.get("a") == 3
    cache.remove("c")
    cache.store("d", 4, 6)
    assert [key for key in "acd" if key in cache] == ["a", "d"]
    cache.store("large", 5, 99)
    assert [key for key in ("a", "d", "large") if key in cache] == ["large"]
