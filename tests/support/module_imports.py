"""Which modules of the package import each other."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


def find_circle(edges: Mapping[str, Collection[str]]) -> list[str]:
    """Return modules of which each imports the next, and the last is the first; else nothing."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def read_imports(root: Path) -> dict[str, set[str]]:
    """Return the modules of the package that each of them imports, also inside functions.

    For type checkers alone, modules of one sub-package may name each other's classes.
    """
    modules = {_get_name(root, path): path for path in (root / "gateway").rglob("*.py")}
    return {
        module: {*_iter_imports(ast.parse(path.read_text("utf-8")), module, path, modules)}
        - {module}
        for module, path in sorted(modules.items())
    }


def _get_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _iter_imports(
    tree: ast.Module, module: str, path: Path, names: Collection[str]
) -> Iterator[str]:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for_types = {
        node
        for each in tree.body
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
        for node in each.body
        if isinstance(node, ast.ImportFrom) and node.level == 1
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node in for_types:
            continue
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            if full in names:
                yield full
            elif base in names and base != package:  # a package's own module imports its parts
                yield base
