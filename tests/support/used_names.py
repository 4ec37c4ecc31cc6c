"""What the package uses of other libraries, by its source: to be held against `Internals`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from gateway.internals import Internals

PACKAGE = Path(__file__).parents[2] / "gateway"


def list_imports(libraries: Collection[str]) -> set[str]:
    """`module.name` of what is imported from libraries at run time."""
    return {
        name
        for path in PACKAGE.rglob("*.py")
        for name in _iter_imports(ast.parse(path.read_text()))
        if name.partition(".")[0] in libraries
    }


def _iter_imports(tree: ast.AST) -> Iterator[str]:
    for node in _iter_run_time_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _iter_run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _iter_run_time_nodes(node)


def list_used_names(modules: Collection[str], receivers: Collection[str]) -> set[str]:
    """The attributes that modules take from objects of these names, and the methods they define in
    a class if `self` is among the names.

    modules: below the package, such as `web/http/outlet`. receivers: the last part of how the code
    calls the object: `cycle` also stands for `self.cycle`.
    """
    used: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
            if isinstance(node, ast.Attribute):
                receiver = ast.unparse(node.value).replace("super()", "self")
                if receiver.rpartition(".")[2] in receivers:
                    used.add(node.attr)
            elif isinstance(node, ast.ClassDef) and "self" in receivers:
                used |= {each.name for each in node.body if hasattr(each, "name")}
    return used


def list_declared_names(internals: Collection[Internals], name: str) -> set[str]:
    """The names of a class that are checked at start."""
    declared: set[str] = set()
    for each in internals:
        if each.name == name:
            declared |= {*each.methods, *" ".join(each.state.values()).split()}
    return declared
