"""What patches would save is measured of patches that are right."""

from __future__ import annotations

from typing import Any

import pytest

from bench.deltas import Size, build_patch, measure


def apply_patch(value: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396, of objects that have no objects in them."""
    return {name: each for name, each in {**value, **patch}.items() if each is not None}


@pytest.mark.parametrize(
    "after", [{}, {"a": 1, "b": "x"}, {"a": 2, "b": "x"}, {"b": "x", "c": [1]}, {"a": 1}]
)
def test_a_patch_makes_one_value_of_the_other(after: dict[str, Any]):
    before = {"a": 1, "b": "x"}
    patch = build_patch(before, after)
    assert apply_patch(before, patch) == after
    assert {name: patch[name] for name in patch if patch[name] == before.get(name)} == {}


def test_a_note_that_stays_the_same_is_what_only_a_patch_saves():
    short, long = measure(Size(sampled=100, measured=200))
    assert short.patch.compressed < short.whole.compressed < short.whole.plain
    # Other notes make other orders, whose names are longer or shorter.
    assert 45 < long.whole.plain - short.whole.plain < 55
    assert abs(long.patch.plain - short.patch.plain) < 5
    assert long.saved_share > short.saved_share
