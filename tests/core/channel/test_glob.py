from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.channel.filters import matches_glob

names = st.text("ab.", max_size=8)
patterns = st.text("ab.*", max_size=8)


@given(patterns, names)
def test_a_star_stands_for_any_text_and_all_else_for_itself(pattern: str, name: str):
    regex = ".*".join(map(re.escape, pattern.split("*")))
    assert matches_glob(pattern, name) == (re.fullmatch(regex, name, re.DOTALL) is not None)


def test_many_stars_do_not_take_long():
    """As a regular expression this takes longer than anyone waits."""
    assert not matches_glob("*a" * 120 + "b", "a" * 249)
