"""A circle of imports is found, but for what type checkers alone are told."""

from __future__ import annotations

from pathlib import Path

from support.module_imports import find_circle, read_imports


def test_a_circle_is_found_also_inside_a_function(tmp_path: Path):
    package = tmp_path / "gateway" / "hub"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from . import two\n")
    (package / "two.py").write_text("if TYPE_CHECKING:\n    from .one import One\n")
    assert find_circle(read_imports(tmp_path)) == []
    (package / "two.py").write_text("def f():\n    from .one import One\n")
    circle = find_circle(read_imports(tmp_path))
    assert set(circle) == {"gateway.hub.one", "gateway.hub.two"}
