from __future__ import annotations

from gateway.core.caches import cache_short


def test_short_texts_are_worked_out_once_and_long_ones_are_not_kept():
    """Headers of 64 KB each were kept in caches that were bounded by their entries only."""
    worked_out: list[str] = []

    @cache_short(2, max_chars=3)
    def work_out(text: str) -> int:
        worked_out.append(text)
        return len(text)

    for text in ("a", "a", "long", "long", "b", "c", "a"):
        assert work_out(text) == len(text)
    assert worked_out == ["a", "long", "long", "b", "c", "a"]
