"""How the source is laid out: packages that a reader can see at a glance, and that say what they
are for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench.source import count_source, find_circles

SOURCE = Path(__file__).parents[1] / "gateway"
MAX_MODULES = 20
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE.parent))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_folder_has_few_enough_modules_to_be_seen(package: Path):
    assert len([path for path in package.glob("*.py") if path.stem != "__init__"]) <= MAX_MODULES


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_says_what_it_is_for(package: Path):
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert sorted(folders) == PACKAGES


def test_no_two_modules_import_each_other_not_even_for_types():
    """A module is understood with those below it: a circle has to be read as a whole."""
    assert [
        sorted(circle) for circle in find_circles(count_source(SOURCE.parent).imports_by_module)
    ] == []
