"""Count how readable the source is: `python -m bench.source [DIRECTORY ...]`.

Prints one column per directory that holds `gateway/` and `tests/`, so that two checkouts stand side
by side. The counts are symptoms, not the aim: they show where to look. Function names are counted
once per definition; dunder methods and decorated overloads are left out.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG_FUNCTION_LINES = 40  # lines
LARGE_CLASS_METHODS = 15  # methods

# Participles that do not end in -ed, and words that do and are none.
_IRREGULAR_WORDS = """
begun bought broken brought built caught chosen done drawn driven fed felt found forgotten
given gone grown heard held hidden kept known laid led left lent lost made meant met paid
rewritten said seen sent shown shut spent sprung stood struck sworn taken taught thought told
took torn understood woken won worn written went gave came
"""
IRREGULAR_PARTICIPLES = frozenset(_IRREGULAR_WORDS.split())
NON_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"})
FRAGMENT_PATTERN = re.compile(
    r"(What|Of|Where|As|It|Those|Who|Whose|Whom|Which|How|When|With|Without|For|From|By|At|In|On|"
    r"To|Until|Also|And|But|The|A|An|All|Each|Every|No|Not|None|Nothing|One|Only|Once|That|This|"
    r"These|They|Its|If|Is|Are|So|Such|Some)\b"
)


@dataclass
class SourceCounts:
    """What was counted in one checkout."""

    line_count: int = 0
    module_count: int = 0
    largest_folder_modules: int = 0
    circle_count: int = 0
    function_count: int = 0
    long_function_count: int = 0
    large_class_count: int = 0
    public_function_count: int = 0
    one_word_count: int = 0
    participle_count: int = 0
    docstring_count: int = 0
    fragment_count: int = 0
    comment_count: int = 0
    test_line_count: int = 0

    def iter_rows(self) -> Iterator[tuple[str, str]]:
        """Yield what is printed: a label, and the count as text."""
        yield "source lines", f"{self.line_count:,}"
        yield "modules", f"{self.module_count:,}"
        yield "largest folder, modules", str(self.largest_folder_modules)
        yield "import circles", str(self.circle_count)
        yield f"functions of {LONG_FUNCTION_LINES} lines and more", str(self.long_function_count)
        yield (
            f"classes of {LARGE_CLASS_METHODS} public methods and more",
            str(self.large_class_count),
        )
        yield (
            "public functions of one word",
            _format_share(self.one_word_count, self.public_function_count),
        )
        yield (
            "functions that are a bare participle",
            _format_share(self.participle_count, self.function_count),
        )
        yield (
            "docstrings that begin with a fragment",
            _format_share(self.fragment_count, self.docstring_count),
        )
        yield "comments per 100 lines", f"{100 * self.comment_count / max(1, self.line_count):.1f}"
        yield "test lines", f"{self.test_line_count:,}"


def count_source(root: Path) -> SourceCounts:
    """Count everything in the checkout at `root`."""
    counts = SourceCounts()
    folders: dict[Path, int] = {}
    for path in sorted((root / "gateway").rglob("*.py")):
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        counts.module_count += 1
        counts.line_count += text.count("\n")
        counts.comment_count += _count_comments(text)
        folders[path.parent] = folders.get(path.parent, 0) + (path.stem != "__init__")
        _count_names(tree, counts)
    counts.largest_folder_modules = max(folders.values(), default=0)
    counts.circle_count = len(list(find_circles(read_imports(root))))
    tests = (root / "tests").rglob("*.py")
    counts.test_line_count = sum(path.read_text("utf-8").count("\n") for path in tests)
    return counts


def read_imports(root: Path) -> dict[str, set[str]]:
    """Return the modules of the package that each of them imports; see `_iter_imports`."""
    modules = {_get_module_name(root, path): path for path in (root / "gateway").rglob("*.py")}
    return {
        module: set(_iter_imports(ast.parse(path.read_text("utf-8")), module, path, set(modules)))
        for module, path in sorted(modules.items())
    }


def find_circles(edges: Mapping[str, Iterable[str]]) -> Iterator[set[str]]:
    """Yield the modules of each import circle: strongly connected components (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges.get(module, ()):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            circle: set[str] = set()
            while module not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                found.append(circle)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for module in edges:
            if module not in index:
                visit(module)
    finally:
        sys.setrecursionlimit(limit)
    yield from found


def is_bare_participle(name: str) -> bool:
    """Return whether a function's name is nothing but a participle: `told`, `_made`."""
    word = name.strip("_")
    if "_" in word or word in NON_PARTICIPLES:
        return False
    return word in IRREGULAR_PARTICIPLES or (word.endswith("ed") and len(word) > 3)


def _count_names(tree: ast.Module, counts: SourceCounts) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if _is_function(each)]
            named = [each for each in methods if not each.name.startswith("_")]  # type: ignore[attr-defined]
            counts.large_class_count += len(named) >= LARGE_CLASS_METHODS
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("__"):
            continue
        counts.function_count += 1
        counts.long_function_count += (
            node.end_lineno or 0
        ) - node.lineno + 1 >= LONG_FUNCTION_LINES
        counts.participle_count += is_bare_participle(node.name)
        if not node.name.startswith("_"):
            counts.public_function_count += 1
            counts.one_word_count += "_" not in node.name
        docstring = ast.get_docstring(node)
        if docstring:
            counts.docstring_count += 1
            counts.fragment_count += FRAGMENT_PATTERN.match(docstring) is not None


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _count_comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def _get_module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _iter_imports(tree: ast.Module, module: str, path: Path, names: set[str]) -> Iterator[str]:
    """Yield the modules that one imports, also inside functions.

    For type checkers alone, modules of one sub-package may name each other's classes.
    """
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


def _format_share(count: int, total: int) -> str:
    return f"{count:,} of {total:,} ({100 * count / max(1, total):.0f} %)"


def main(directories: list[str]) -> None:
    """Print a table: one column for each directory, this checkout where none is named."""
    roots = [Path(each) for each in directories] or [ROOT]
    columns = [dict(count_source(root).iter_rows()) for root in roots]
    width = max(len(label) for label in columns[0])
    for label in columns[0]:
        print(f"{label:<{width}}", *(f"{column[label]:>22}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
