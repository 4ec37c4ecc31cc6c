"""The counts of bench.source."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.source import count_source, find_circles, is_bare_participle


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("told", True),
        ("_made", True),
        ("refused", True),
        ("feed", False),
        ("is_closed", False),
        ("read", False),
        ("red", False),
    ],
)
def test_bare_participles_are_told_from_verbs(name: str, is_one: bool):
    assert is_bare_participle(name) is is_one


def test_circles_are_found_of_any_length():
    edges = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["f"], "f": ["e"]}
    assert sorted(map(sorted, find_circles(edges))) == [["a", "b", "c"], ["e", "f"]]


def test_a_checkout_is_counted(tmp_path: Path):
    package = tmp_path / "gateway" / "hub"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "one.py").write_text(
        "from . import two  # why\n\ndef told(): ...\n\ndef write_chunk():\n    '''What comes.'''\n"
    )
    (package / "two.py").write_text(
        "if TYPE_CHECKING:\n    from .three import Three\n\n"
        "def _made():\n    '''Make it.'''\n    from .one import told\n"
    )
    (package / "three.py").write_text("from .two import _made\n")  # named for types alone
    counts = count_source(tmp_path)
    assert (counts.module_count, counts.largest_folder_modules, counts.circle_count) == (4, 3, 1)
    assert (counts.public_function_count, counts.one_word_count, counts.participle_count) == (
        2,
        1,
        2,
    )
    assert (counts.docstring_count, counts.fragment_count, counts.comment_count) == (2, 1, 1)
