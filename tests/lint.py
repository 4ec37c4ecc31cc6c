"""What no other linter checks: `python tests/lint.py` prints `FILE:LINE: MESSAGE`, and fails.

- The pages name files, folders and tests that exist: those of `docs/`, and every README.
- Every folder of modules is a package that says what it is for, and is named by the architecture.
- No two modules import each other, for types only within a sub-package: a circle has to be read as
  a whole.
- Nothing is imported that a library marks as private.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "gateway"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.module_imports import find_circle, read_imports  # noqa: E402
from support.used_names import list_imports  # noqa: E402

LIBRARIES = {"aiokafka", "anyio", "asyncio", "httptools", "starlette", "uvicorn", "uvloop"}
GENERATED = re.compile(r"bench/results|examples/.*(\.key|\.crt|/dist/.*)")
PATH = re.compile(r"(?<![\w/.])((?:tests|bench|deploy|examples)/[\w/.-]*\w)(?:::(\w+))?")
MODULE = re.compile(
    r"(?<![\w/.])(?:gateway/)?((?:api|cli|config|core|formats|hub|kafka|pipeline|sidecar|telemetry|"
    r"web|wire)/[\w/]+\.py)"
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)")
NAME_BESIDE_LINK = re.compile(
    r"`([A-Za-z_][\w.]*)(?:\(\))?`\s+(?:in\s+)?\(?\[[^\]]*\]\(([\w/.-]+\.py)\)"
    r"|\[`([A-Za-z_][\w.]*)(?:\(\))?`\]\(([\w/.-]+\.py)\)"
)


def list_pages() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    pages = (ROOT / line for line in done.stdout.splitlines())
    return [page for page in pages if page.is_file() and "/results/" not in str(page)]


@cache
def read_words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text()))


@cache
def list_definitions(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", path.read_text(), re.M))


def check_page(page: Path) -> Iterator[tuple[int, str]]:
    text = page.read_text()
    for found in PATH.finditer(text):
        path = ROOT / found[1]
        if not path.exists() and not GENERATED.fullmatch(found[1]):
            yield found.start(), f"there is no {found[1]}"
        elif found[2] and found[2] not in list_definitions(path):
            yield found.start(), f"{found[1]} has no {found[2]}"
    for found in MODULE.finditer(text):
        if not any((base / found[1]).exists() for base in (SOURCE, page.parent, ROOT)):
            yield found.start(), f"there is no gateway/{found[1]}"
    if page.is_relative_to(ROOT / "docs"):
        return  # zensical knows their links
    for found in LINK.finditer(text):
        if "://" not in found[1] and not (page.parent / found[1]).exists():
            yield found.start(), f"there is no {found[1]}"
    for found in NAME_BESIDE_LINK.finditer(text):
        name, module = found[1] or found[3], page.parent / (found[2] or found[4])
        if module.exists() and not set(name.split(".")) <= read_words(module):
            yield found.start(), f"{found[2] or found[4]} has no {name}"


def check_packages() -> Iterator[tuple[Path, int, str]]:
    readme = SOURCE / "README.md"
    links = set(re.findall(r"\]\(([\w/]+)/\)", readme.read_text()))
    for folder in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        package = folder / "__init__.py"
        if not package.exists():
            yield package, 1, "a folder of modules is a package"
        elif not ast.get_docstring(ast.parse(package.read_text())):
            yield package, 1, "a package says what it is for"
        if folder.parent == SOURCE and folder.name not in links:
            yield readme, 1, f"the table of layers lacks {folder.name}"
    if circle := find_circle(read_imports(ROOT)):
        yield SOURCE / "__init__.py", 1, f"these import each other: {', '.join(circle)}"
    for name in sorted(list_imports(LIBRARIES | {"websockets"})):
        if "._" in name:
            yield SOURCE / "__init__.py", 1, f"{name} is private; see gateway/internals.py"


def iter_problems() -> Iterator[tuple[Path, int, str]]:
    for page in list_pages():
        for position, message in check_page(page):
            yield page, page.read_text().count("\n", 0, position) + 1, message
    yield from check_packages()


def main() -> int:
    problems = list(iter_problems())
    for path, line, message in problems:
        print(f"{path.relative_to(ROOT)}:{line}: {message}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
